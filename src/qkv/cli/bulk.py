"""Decode a file of any length into an output file, in chunks, so that a killed job can be continued."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.cli.console import collect_results, info, note, rate_bar, result
from qkv.datasets.text_files import LineFile, is_parsed
from qkv.errors import InputError
from qkv.runtime.files import sampled_sha256
from qkv.runtime.resumable import ResumableOutput, check_resumable

Report = Callable[[int, int], None]  # called with the number of finished lines and of their tokens
Decode = Callable[[list[str], int, Report], None]  # prints the results of lines, the first of which has this index
Check = Callable[[list[str], int], None]  # raises if a line cannot be decoded


@dataclass(frozen=True)
class BulkFiles:
    """An input and an output file."""

    lines: LineFile
    output: Path
    resume: bool
    overwrite: bool


def bulk_files(
    texts: list[str] | None,
    file: Path | None,
    output: Path | None,
    page: Path | None = None,
    *,
    resume: bool,
    overwrite: bool,
    strict: bool,
) -> BulkFiles | None:
    """Return the files of a bulk job; None if the command has no regular input file with lines, or no output file."""
    if resume and page is not None:
        raise InputError("--resume cannot be combined with --page")
    if texts or page is not None or file is None or output is None or is_parsed(file) or not file.is_file():
        if resume and file is not None and str(file) != "-" and not file.exists():
            raise InputError(f"{file}: no such file")
        if resume:
            raise InputError("--resume requires --input FILE, with one text per line, and --output FILE")
        return None
    check_resumable(output, resume=resume, overwrite=overwrite)
    lines = LineFile(file)
    if lines.blank_count and strict:
        raise InputError(f"input {lines.first_blank} is empty ({lines.blank_count} empty input(s))")
    if lines.blank_count:
        note(f"{lines.blank_count} empty line(s), first at line {lines.first_blank}; their results are empty")
    return BulkFiles(lines, output, resume, overwrite)


def decode_file(
    files: BulkFiles, model: Path, options: Mapping[str, Any], decode: Decode, check: Check, *, label: str, chunk: int
) -> None:
    """Decode all lines and print the path of the output file.

    The lines of a chunk are decoded together; a job is continued with a whole chunk, so that its results are those of
    a job that was not interrupted.
    """
    lines, identity = files.lines, {"input": files.lines.sha256, "model": model_sha256(model), "options": dict(options)}
    output = ResumableOutput(files.output, identity, resume=files.resume, overwrite=files.overwrite)
    for begin, texts in lines.chunks(chunk, output.inputs):
        check(texts, begin)
    try:
        with output, rate_bar(label, lines.count, output.inputs) as progress:
            for begin, texts in lines.chunks(chunk, output.inputs):
                with collect_results() as results:
                    decode(texts, begin, progress)
                output.append("".join(f"{line}\n" for line in results).encode(), len(texts))
    except KeyboardInterrupt:
        info(f"interrupted after {output.inputs:,} of {lines.count:,} lines: continue with --resume")
        raise
    result(str(files.output))


def model_sha256(model: Path) -> str:
    """Return a hash of the files of a saved model, of large ones a part."""
    from qkv.hub.model_folder import locate

    digest = hashlib.sha256()
    for path in sorted(locate(model).iterdir()):
        if path.is_file():
            digest.update(f"{path.name}\0{sampled_sha256(path)}\0".encode())
    return digest.hexdigest()
