"""Pages of the claims, generated from their records: an index, and one page per claim with its figure."""

from collections.abc import Sequence
from pathlib import Path

from qkv.errors import InputError
from qkv.experiments.claims.claim import Claim
from qkv.experiments.claims.figure import mean_and_interval, save_claim_figure
from qkv.experiments.claims.record import RECORDS, ClaimRecord, read_records, write_record
from qkv.experiments.claims.runner import FIGURES, all_claims
from qkv.experiments.claims.source_symbols import find_symbol
from qkv.experiments.claims.verdict import CriterionResult
from qkv.experiments.table import code, generated_by, plain
from qkv.runtime.files import write_atomically

NOTES = ("000", "001", "002", "003", "004")
COMMAND = "qkv claims report"
VERDICTS = ("supported", "mixed", "not supported")
ABOUT = (
    "The lecture notes make claims about attention, such as which model is better, or what an operation costs. Each "
    "page states one of them, how it is measured with this package, and the verdict."
)
RULE = (
    "Each claim states its criteria before it is measured: a quantity, and the range in which its 95 % confidence "
    "interval over the seeds must be. A criterion passes if the whole interval is inside the range. A claim is "
    "supported if all its criteria pass, not supported if none does, and mixed otherwise. If the measurement was "
    "changed after a first run, the page of the claim describes it; ranges were never changed."
)


def write_report(records_folder: Path, output: Path) -> list[Path]:
    """Copy the records to the output folder, and write the index, pages and figures of all records there."""
    new = read_records(records_folder)
    if not new:
        raise InputError(f"{records_folder}: has no records of claims: run qkv claims run first")
    for record in new:
        write_record(output / RECORDS, record)
    claims = {claim.registered_name: claim for claim in all_claims()}
    records: dict[str, list[ClaimRecord]] = {}
    for record in read_records(output / RECORDS):
        if record.claim not in claims:
            raise InputError(f"{record.file_name}: no claim is registered as {record.claim}; remove the file")
        records.setdefault(record.claim, []).append(record)
    paths = [output / "index.md"]
    for name, members in records.items():
        page = output / page_path(claims[name])
        save_claim_figure(claims[name], members[-1], output / FIGURES / f"{name}.png")
        write_atomically(page, claim_page(claims[name], members).encode())
        paths.append(page)
    write_atomically(output / "index.md", index_page([members[-1] for members in records.values()]).encode())
    return paths


def page_path(claim: type[Claim]) -> str:
    """Return the path of a page, relative to the index."""
    return f"{claim.group()}/{claim.registered_name}.md"


def index_page(records: Sequence[ClaimRecord]) -> str:
    """Return the index: a table of all claims by note, and a list by verdict."""
    claims = {claim.registered_name: claim for claim in all_claims()}
    parts = ["# Claims of the lecture notes", generated_by(COMMAND), ABOUT, RULE]
    counts = [f"{sum(record.verdict == verdict for record in records)} {verdict}" for verdict in VERDICTS]
    parts.append(f"{len(records)} of {len(claims)} claims have a record: {', '.join(counts)}.")
    parts.append("## By note")
    for note in NOTES:
        members = [record for record in records if note in {entry.number for entry in claims[record.claim].notes}]
        if members:
            rows = [_index_row(claims[record.claim], record) for record in members]
            parts.append(f"### Note {note}\n\n" + _table(["", "claim", "verdict", "scale"], rows))
    parts.append("## By verdict")
    for verdict in VERDICTS:
        links = [_link(claims[record.claim]) for record in records if record.verdict == verdict]
        if links:
            parts.append(f"### {verdict.capitalize()}\n\n" + "\n".join(f"- {link}" for link in links))
    return "\n\n".join(parts) + "\n"


def claim_page(claim: type[Claim], records: Sequence[ClaimRecord]) -> str:
    """Return the page of a claim; the last of its records is the one whose figure is shown."""
    newest = records[-1]
    parts = [f"# {claim.number}. {plain(claim.title)}", generated_by(COMMAND), plain(claim.statement)]
    parts.append("Notes: " + "; ".join(f"{note.number} ({plain(note.section)})" for note in claim.notes) + ".")
    parts.append(f"```text\n{claim.equation}\n```")
    parts.append("Code: " + ", ".join(_source_link(reference) for reference in claim.source))
    parts.append(f"**Verdict: {newest.verdict}** ({newest.scale} scale)")
    parts.append(f"![{plain(claim.title)}](../{FIGURES}/{claim.registered_name}.png)")
    parts.append(f"Expected: {plain(claim.hypothesis)}")
    for record in reversed(records):
        parts += _record_section(record)
    if claim.amendments:
        parts += ["## Changes after a first measurement", plain(claim.amendments)]
    parts += ["## What would change the verdict", plain(claim.limits)]
    return "\n\n".join(parts) + "\n"


def _record_section(record: ClaimRecord) -> list[str]:
    values = record.measurements.values
    seeds = len(record.measurements.seeds)
    parts = [f"## {record.scale.capitalize()} scale: {record.verdict}", f"    {record.command}"]
    rows = [_result_row(result) for result in record.results]
    parts.append(_table(["criterion", "range", "estimate", "95 % interval", "outcome"], rows))
    if values:
        numbers = [(name, mean_and_interval(each)) for name, each in values.items()]
        means = [[plain(name), number(mean), f"{number(low)} to {number(high)}"] for name, (mean, low, high) in numbers]
        parts.append(_table(["", f"mean of {seeds} seed{'s' * (seeds > 1)}", "95 % interval"], means))
    for table in record.tables:
        parts += [f"{plain(table.title)}:", _table(table.headers, [list(map(plain, row)) for row in table.rows])]
    where = f"{record.device}, torch {record.torch}, commit {record.commit[:12] or 'unknown'}, {record.date[:10]}"
    parts.append(
        f"Measured in {record.seconds:g} s on {plain(where)}. All numbers: "
        f"[{record.file_name}](../{RECORDS}/{record.file_name})."
    )
    return parts


def _result_row(result: CriterionResult) -> list[str]:
    low, high = result.interval
    return [plain(result.quantity), range_text(result), number(result.estimate),
            f"{number(low)} to {number(high)}", result.outcome]  # fmt: skip


def range_text(result: CriterionResult) -> str:
    """Return the required range in words."""
    if result.low is None or result.high is None:
        return f"above {number(result.low)}" if result.low is not None else f"below {number(result.high or 0.0)}"
    return f"{number(result.low)} to {number(result.high)}"


def number(value: float) -> str:
    """Return a number with four significant digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.3g}"


def _index_row(claim: type[Claim], record: ClaimRecord) -> list[str]:
    return [str(claim.number), _link(claim), record.verdict, record.scale]


def _link(claim: type[Claim]) -> str:
    return f"[{plain(claim.title)}]({page_path(claim)})"


def _source_link(reference: str) -> str:
    path, symbol = find_symbol(reference)
    return f"[{code(symbol)}](../../../{path}#{symbol})"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
