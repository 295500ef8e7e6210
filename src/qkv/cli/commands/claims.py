"""`qkv claims`: list the claims of the lecture notes, run them, and write their pages."""

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qkv.cli import options
from qkv.cli.commands.catalog import format_rows
from qkv.cli.commands.sweep import interrupt
from qkv.cli.console import info, result, result_json, result_page
from qkv.errors import InputError
from qkv.runtime.files import RUNS
from qkv.runtime.text import message_line

if TYPE_CHECKING:
    from qkv.experiments.claims.claim import Claim
    from qkv.experiments.claims.record import ClaimRecord
    from qkv.experiments.claims.runner import ClaimRun

CLAIMS = RUNS / "claims"  # default output folder

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=options.complete("claim"), help="Claim id, or its number.")
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", autocompletion=options.complete("claim"), help="Claim ids, or their numbers."),
]
OutputFolder = Annotated[
    Path, typer.Option("--output", metavar="FOLDER", help="Folder of records, figures and training runs.")
]


@app.callback(help="List, run and report claims of lecture notes.")
def list_claims(
    context: typer.Context,
    output: OutputFolder = CLAIMS,
    plugin: options.Plugin = None,
    json: options.Json = False,
) -> None:
    """List all claims, with the verdict of the newest record of each."""
    from qkv.experiments.claims.runner import all_claims

    if context.invoked_subcommand is not None:
        return
    rows, newest = [], _newest_records(output)
    for claim in all_claims():
        record = newest.get(claim.registered_name)
        if json:
            result_json(_summary(claim, record))
        verdict, scale = ("not run", "") if record is None else (record.verdict, record.scale)
        notes = ",".join(dict.fromkeys(note.number for note in claim.notes))
        rows.append((str(claim.number), claim.registered_name, notes, verdict, scale, claim.title))
    if not json:
        result_page("\n".join(format_rows(("", "claim", "notes", "verdict", "scale", "title"), rows)))


@app.command(name="show")
def show_claim(name: Name, output: OutputFolder = CLAIMS, json: options.Json = False) -> None:
    """Show a claim and its newest record.

    The statement, equation, code, criteria and numbers.
    """
    from qkv.experiments.claims.runner import command, find_claim

    claim = find_claim(name)
    record = _newest_records(output).get(claim.registered_name)
    if json:
        result_json(_summary(claim, record) if record is None else {**_summary(claim, record), **_numbers(record)})
        return
    notes = "; ".join(f"{note.number} ({note.section})" for note in claim.notes)
    result(f"{claim.number}. {claim.title}\n\n{claim.statement}\n\n{claim.equation}\n")
    result(f"notes     {notes}\ncode      {', '.join(claim.source)}\ncommand   {command(claim, 'small')}\n")
    result(f"expected: {claim.hypothesis}\n")
    if record is None:
        result("not run yet")
        return
    result(_verdict_text(record))
    result(f"\n{record.command}, {record.device}, {record.date}")


@app.command(name="run")
def run_claims(
    names: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="Run all claims.")] = False,
    scale: Annotated[
        Literal["small", "full"], typer.Option("--scale", help="small: minutes on two cores; full: on a GPU.")
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, max=1000, metavar="N", help="Number of seeds [that of the claim].")
    ] = None,
    output: OutputFolder = CLAIMS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip claims that have a record of this scale in the output folder.")
    ] = False,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, max=1_000_000, metavar="N", help="First seed.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Train N runs at a time [one per CPU, or one per GPU]."),
    ] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Measure claims and print their verdicts.

    Each claim writes a record and a figure to the output folder as soon as it is measured, and a table of all claims
    is printed at the end. Claims share training runs with the same settings. The training runs of an interrupted
    claim are resumed by the same command. A claim without a verdict, for example because data are missing, is an error.
    """
    from qkv.experiments.claims.record import RECORDS
    from qkv.experiments.claims.runner import RunOptions, all_claims, find_claim, run_claims
    from qkv.runtime.cluster import WorkerOptions

    if bool(names) == all_:
        raise InputError("pass the ids of claims, or --all")
    claims = all_claims() if all_ else [find_claim(name) for name in dict.fromkeys(names or [])]
    chosen = claims
    if resume:
        records = output / RECORDS
        chosen = [claim for claim in claims if not (records / f"{claim.registered_name}-{scale}.json").exists()]
        info(f"{len(claims) - len(chosen)} of {len(claims)} claims have a record already")
    failed: list[InputError] = []
    done: list[type[Claim]] = []

    def report(claim: type["Claim"], outcome: "ClaimRun | InputError") -> None:
        done.append(claim)
        if isinstance(outcome, InputError):
            failed.append(outcome)
            info(message_line(f"{len(done)}/{len(chosen)} error: {outcome}"))
        else:
            _print_run(outcome, f"{len(done)}/{len(chosen)}", json=json)

    run_options = RunOptions(scale, seeds, first_seed, output, device, WorkerOptions(workers))
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        run_claims(chosen, run_options, report)
    except KeyboardInterrupt:
        info("interrupted: the same command with --resume runs the remaining claims")
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if len(claims) > 1 and not json:
        _print_table(claims, output / RECORDS, scale)
    if len(claims) == 1 and failed:
        raise failed[0]
    if failed:
        raise InputError(f"{len(failed)} of {len(claims)} claims have no verdict: {'; '.join(map(str, failed))}")


@app.command(name="report")
def report_claims(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="Folder of records, e.g. runs/claims/records.")],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder of the pages.")],
    json: options.Json = False,
) -> None:
    """Write pages from the records of claims.

    An index, and one page with a figure per claim.
    """
    from qkv.experiments.claims.report import write_report

    paths = write_report(records, output)
    if json:
        result_json([str(path) for path in paths])
        return
    for path in paths:
        result(str(path))


@app.command(name="figure")
def draw_note_figure(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Figure; without it, all are listed.")] = None,
    png: Annotated[Path | None, options.png_file("Output file [NAME.png].")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=1_000_000, metavar="N", help="Seed of the training.")] = 0,
    output: OutputFolder = CLAIMS,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Draw a figure of the lecture notes.

    Uses a released model, or trains one in about a minute. Runs are kept in the output folder and reused by the claims
    at small scale.
    """
    from qkv.experiments.claims.note_figures import FIGURES, draw_figure
    from qkv.experiments.claims.runner import WORK

    if name is None:
        rows = [(key, each.note.number, each.title, each.model) for key, each in FIGURES.items()]
        headers = ("figure", "note", "title", "model")
        if json:
            result_json([dict(zip(headers, row, strict=True)) for row in rows])
        else:
            result("\n".join(format_rows(headers, rows)))
        return
    path = png or Path(f"{name}.png")
    drawn = draw_figure(name, output / WORK / "small", path, device, seed)
    if json:
        result_json({"figure": name, "path": str(path), "drawn": drawn})
        return
    result(f"{FIGURES[name].title}: {drawn}")
    info(f"wrote {path}")


def _print_table(claims: "list[type[Claim]]", folder: Path, scale: str) -> None:
    """Print the verdict and the time of each claim."""
    from qkv.experiments.claims.record import read_records

    records = {record.claim: record for record in read_records(folder) if record.scale == scale}
    rows = []
    for claim in claims:
        record = records.get(claim.registered_name)
        verdict, seconds = ("no verdict", "") if record is None else (record.verdict, f"{record.seconds:,.0f}")
        rows.append((str(claim.number), claim.registered_name, verdict, seconds, claim.title))
    verdicts = [record.verdict for record in records.values()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    result("\n".join(["", *format_rows(("", "claim", "verdict", "seconds", "title"), rows), "", counts]))


def _print_run(run: "ClaimRun", progress: str, *, json: bool) -> None:
    if json:
        result_json({**_numbers(run.record), "record_path": str(run.record_path), "figure": str(run.figure_path)})
        return
    result(f"{run.record.number}. {run.record.claim}: {_verdict_text(run.record)}")
    info(f"{progress} wrote {run.record_path} and {run.figure_path} in {run.record.seconds:.0f} s")


def _verdict_text(record: "ClaimRecord") -> str:
    """Return the verdict and one line per criterion."""
    from qkv.experiments.claims.report import number, range_text

    count = len(record.measurements.seeds)
    lines = [f"{record.verdict} ({record.scale} scale, {count} seed{'s' * (count > 1)})"]
    for each in record.results:
        low, high = map(number, each.interval)
        lines.append(
            f"  {each.outcome}: {each.quantity} = {number(each.estimate)} [{low}, {high}], expected {range_text(each)}"
        )
    for table in record.tables:
        lines += ["", f"{table.title}:", *format_rows(table.headers, table.rows)]
    return "\n".join(lines)


def _newest_records(output: Path) -> dict[str, "ClaimRecord"]:
    """Return the newest record of each claim, of this machine or of the checkout."""
    from qkv.experiments.claims.record import RECORDS, newest, read_records, shipped_records

    return newest([*read_records(shipped_records()), *read_records(output / RECORDS)])


def _summary(claim: type["Claim"], record: "ClaimRecord | None") -> dict[str, Any]:
    from qkv.experiments.claims.report import page_path

    return {
        "number": claim.number, "claim": claim.registered_name, "title": claim.title, "statement": claim.statement,
        "notes": [note._asdict() for note in claim.notes], "equation": claim.equation, "source": claim.source,
        "hypothesis": claim.hypothesis, "page": page_path(claim),
        "verdict": record and record.verdict, "scale": record and record.scale, "date": record and record.date,
    }  # fmt: skip


def _numbers(record: "ClaimRecord") -> dict[str, Any]:
    return asdict(record)
