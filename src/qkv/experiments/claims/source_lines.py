"""Line numbers of the code that a claim refers to."""

import ast
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime import provenance
from qkv.runtime.files import read_regular


def checkout() -> Path:
    """Return the folder that the paths of `Claim.source` are relative to."""
    return provenance.PACKAGE.parent.parent


def line_of(reference: str) -> tuple[str, int]:
    """Return the path and the line number of "path::symbol"; raise InputError if there is no such symbol."""
    path, _, symbol = reference.partition("::")
    body: list[ast.stmt] = ast.parse(read_regular(checkout() / path)).body
    line = 0
    for name in symbol.split("."):
        definitions = [
            node for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]  # fmt: skip
        if not definitions:
            raise InputError(f"{reference}: no such symbol")
        line, body = definitions[-1].lineno, definitions[-1].body
    return path, line
