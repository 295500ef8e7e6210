"""The code that a claim refers to, as "path::symbol"."""

import ast
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime import provenance
from qkv.runtime.files import read_regular


def checkout() -> Path:
    """Return the folder that the paths of `Claim.source` are relative to."""
    return provenance.PACKAGE.parent.parent


def find_symbol(reference: str) -> tuple[str, str]:
    """Return the path and the symbol of "path::symbol"; raise InputError if the file does not define it."""
    path, _, symbol = reference.partition("::")
    body: list[ast.stmt] = ast.parse(read_regular(checkout() / path)).body
    for name in symbol.split("."):
        definitions = [
            node for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]  # fmt: skip
        if not definitions:
            raise InputError(f"{reference}: no such symbol")
        body = definitions[-1].body
    return path, symbol
