"""Decode files of any length into output files, in chunks, so that a killed job can be continued."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from qkv.cli.console import info, note, rate_bar, result
from qkv.cli.texts import add_unknown_tokens, empty_input, note_unknown_tokens
from qkv.cli.workers import CONTINUE, DecodeJob, Result, open_workers
from qkv.datasets.formats.text_files import LineFile, Span, is_parsed, is_table
from qkv.errors import InputError, QkvError
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import check_output_file, sampled_sha256
from qkv.runtime.resumable import SUFFIX, ResumableOutput, check_resumable

CHECKED_CHUNKS = 16  # chunks whose lines are checked at a time


@dataclass(frozen=True)
class BulkFiles:
    """Input files and an output file, or a folder of output files with the names of the input files."""

    inputs: Sequence[LineFile]
    output: Path
    names: Sequence[str]  # of the files in the output folder; none if the output is a file
    resume: bool
    overwrite: bool
    workers: WorkerOptions


def bulk_files(
    texts: list[str] | None,
    file: Path | None,
    output: Path | None,
    page: Path | None = None,
    *,
    resume: bool,
    overwrite: bool,
    strict: bool,
    workers: WorkerOptions,
) -> BulkFiles | None:
    """Return the files of a bulk job; None if the command has no regular input file with lines, or no output file."""
    option = "--resume" if resume else workers.given
    if option and page is not None:
        raise InputError(f"{option} cannot be combined with --page")
    shards = [] if texts or file is None else find_shards(file)
    if output is not None and not shards:
        check_output_file(output)
    single = file is not None and not is_parsed(file) and not is_table(file) and file.is_file()
    if texts or page is not None or file is None or output is None or not (shards or single):
        if option and file is not None and str(file) != "-" and not file.exists() and not shards:
            raise InputError(f"{file}: no such file")
        if option:
            raise InputError(f"{option} requires --input, with one text per line, and --output")
        if shards:
            raise InputError(f"{file}: several files require --output FOLDER, without texts as arguments and --page")
        return None
    names = [shard.name for shard in shards]
    check_resumable(output, names, resume=resume, overwrite=overwrite)
    inputs = [LineFile(path) for path in shards or [file]]
    _note_blank_lines(inputs, strict=strict, named=bool(names))
    return BulkFiles(inputs, output, names, resume, overwrite, workers)


def find_shards(file: Path) -> list[Path]:
    """Return the files of a folder or those that match a pattern; none if `file` is the path of a file."""
    if file.is_dir():
        paths = [path for path in file.iterdir() if not path.name.startswith(".")]
    elif has_magic(str(file)) and not file.exists():
        paths = [Path(path) for path in glob(str(file), recursive=True)]
    else:
        return []
    shards = sorted(path for path in paths if path.is_file())
    if not shards:
        raise InputError(f"{file}: {'has no files' if file.is_dir() else 'no file matches'}")
    by_name: dict[str, Path] = {}
    for path in shards:
        if is_parsed(path) or is_table(path) or path.name.endswith(SUFFIX):
            raise InputError(f"{path}: expected one text per line; pass a pattern such as '{path.parent}/*.txt'")
        if (other := by_name.setdefault(path.name, path)) != path:
            raise InputError(f"{other} and {path} have the same name, and so would their output files")
    return shards


def _note_blank_lines(files: Sequence[LineFile], *, strict: bool, named: bool) -> None:
    blank = [file for file in files if file.blank_count]
    if not blank:
        return
    count, first = sum(file.blank_count for file in blank), blank[0].first_blank
    if strict:
        raise InputError(f"{f'{blank[0].path}: ' if named else ''}{empty_input(first, count)}")
    where = f"{f'{blank[0].path}, ' if named else ''}line {first}"
    note(f"{count} empty line(s), first at {where}; their results are empty")


@dataclass(frozen=True)
class RemainingLines:
    """The lines of a job after those whose results are in the first `files` output files and in a part of the next."""

    inputs: Sequence[LineFile]
    chunk: int
    files: int
    lines: int
    named: bool

    def checks(self) -> Iterator[Span]:
        return self._spans(CHECKED_CHUNKS * self.chunk)

    def chunks(self) -> Iterator[Span]:
        return self._spans(self.chunk)

    def _spans(self, size: int) -> Iterator[Span]:
        for number, file in enumerate(self.inputs[self.files :]):
            yield from file.spans(size, 0 if number else self.lines)


def decode_files(files: BulkFiles, job: DecodeJob, *, verbose: bool) -> None:
    """Decode all lines and print the path of the output.

    The lines of a chunk are decoded together; a job is continued with a whole chunk, so that its results are those of
    a job that was not interrupted.
    """
    identity = {"input": _sha256(files), "model": model_sha256(job.run), "options": job.settings()}
    output = ResumableOutput(files.output, identity, files.names, resume=files.resume, overwrite=files.overwrite)
    remaining = RemainingLines(files.inputs, job.chunk, output.files, output.inputs, bool(files.names))
    unknown: dict[int | str, Sequence[str]] = {}
    with open_workers(job, remaining, files.workers, verbose=verbose) as workers:
        for checked in workers.check():
            _raise_error(checked)
        counts = [file.count for file in files.inputs]
        done, total = sum(counts[: output.files]) + output.inputs, sum(counts)
        seen = {""}  # this process, and the workers whose results have arrived
        try:
            with output, rate_bar(job.label, total, done) as progress:
                for span, decoded in zip(remaining.chunks(), workers.decode(progress), strict=True):
                    _raise_error(decoded)
                    if verbose and decoded.worker not in seen:
                        seen.add(decoded.worker)
                        info(f"{decoded.worker}: decoding: {decoded.decoding}")
                    add_unknown_tokens(unknown, _by_input(decoded, span, named=remaining.named))
                    output.append(decoded.data, span.count)
                    done += span.count
                    if output.inputs == counts[output.files]:
                        output.next_file()
        except KeyboardInterrupt:
            info(f"interrupted after {done:,} of {total:,} lines: {CONTINUE}")
            raise
    result(str(files.output))
    note_unknown_tokens(unknown)


def _raise_error(answer: Result) -> None:
    if answer.error:
        raise QkvError(f"{answer.error}: {CONTINUE}") if answer.internal else InputError(answer.error)


def _by_input(decoded: Result, span: Span, *, named: bool) -> dict[int | str, Sequence[str]]:
    """Return the out-of-vocabulary tokens by the number of their input, with the name of its file."""
    name = Path(span.path).name
    return {f"{name}:{number}" if named else number: tokens for number, tokens in decoded.unknown.items()}


def _sha256(files: BulkFiles) -> str:
    """Return a hash of the input files and, if there are several, of their names."""
    if not files.names:
        return files.inputs[0].sha256
    names = "".join(f"{file.sha256} {name}\n" for file, name in zip(files.inputs, files.names, strict=True))
    return hashlib.sha256(names.encode()).hexdigest()


def model_sha256(model: Path) -> str:
    """Return a hash of the files of a saved model, of large ones a part."""
    from qkv.hub.model_folder import locate

    digest = hashlib.sha256()
    for path in sorted(locate(model).iterdir()):
        if path.is_file():
            digest.update(f"{path.name}\0{sampled_sha256(path)}\0".encode())
    return digest.hexdigest()
