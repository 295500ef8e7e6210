"""`qkv evaluate`: how good a trained model is."""

from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.talk import counting, note, result, result_json, say
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.pair import Pair
    from qkv.evaluation.translation import Report
    from qkv.tasks.translator import Translator


def evaluate(
    run: options.Folder,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="train, valid or test [test if there is one].")
    ] = None,
    data: options.Data = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many pairs.")] = None,
    beam: options.Beam = 1,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Score a model on its test set, or on pairs of yours.

    Gives exact match, character error rate, BLEU and chrF (sacrebleu), and alignment accuracy where gold is known.
    """
    from qkv.evaluation.translation import evaluate as score
    from qkv.tasks.translator import Translator

    name, pairs = pairs_of(run, split, data, strict=strict)
    translator = Translator(run, device=device)
    pairs = _fitting(translator, pairs[:limit])
    _tell_unknown(translator, pairs)
    with counting("evaluating", len(pairs)) as progress:
        report = score(translator, pairs, beam=beam, progress=progress)
    if json:
        result_json({"run": str(run), "split": name, **asdict(report)})
    else:
        say(f"{run}: {len(pairs):,} pairs of {name}, {'greedy' if beam == 1 else f'beam {beam}'}")
        result(table(report))


def pairs_of(
    run: Path, split: str | None, data: list[Path] | None, *, strict: bool = False
) -> tuple[str, list["Pair"]]:
    """The pairs to look at, with a name for them: the user's own, or a split of the data the run was trained on."""
    if data:
        from qkv.data.files import read_pairs

        if split is not None:
            raise InputError("--split names a part of the run's own data: leave it away with --data")
        read = read_pairs(data, strict=strict)
        for passed_over in read.notes:
            note(passed_over)
        return " and ".join(str(path) for path in data), read.pairs
    from qkv.training.run import Run

    folder = next((folder for folder in (run, run.parent) if (folder / "recipe.toml").exists()), None)
    if folder is None:
        raise InputError(f"{run}: not a training run, so it has no data of its own: give --data")
    splits = Run.open(folder).data().splits
    name = split or ("test" if "test" in splits else "valid")
    if name not in splits:
        raise InputError(f"{run}: no {name} split (there are: {', '.join(splits)})")
    return name, splits[name]


def _fitting(translator: "Translator", pairs: list["Pair"]) -> list["Pair"]:
    """The pairs that are short enough for the model; how many are not is said."""
    fitting = [pair for pair in pairs if translator.fits(pair.source)]
    if len(fitting) < len(pairs):
        limit = translator.model.config.max_length
        note(f"left out {len(pairs) - len(fitting)} pair(s) longer than the {limit} tokens that the model takes")
    return fitting


def _tell_unknown(translator: "Translator", pairs: list["Pair"]) -> None:
    vocabulary = translator.vocabulary
    unknown = [pieces for pair in pairs if (pieces := vocabulary.unknown(vocabulary.encode(pair.source)))]
    if unknown:
        names = ", ".join(repr(piece) for piece in list(dict.fromkeys(chain.from_iterable(unknown)))[:10])
        note(f"{len(unknown):,} source(s) hold what was never seen in training, read as unknown: {names}")


def table(report: "Report") -> str:
    """A report for people."""
    rows = [
        f"exact match           {report.exact:8.2%}",
        f"character error rate  {report.cer:8.2%}",
        f"BLEU                  {report.bleu:8.2f}   {report.bleu_signature}",
        f"chrF                  {report.chrf:8.2f}   {report.chrf_signature}",
    ]
    if report.alignment is not None:
        rows.append(f"alignment accuracy    {report.alignment:8.2%}   (strongest weight inside the gold field)")
    rows.append(f"speed                 {report.pairs / report.seconds:8.0f}   texts/s")
    if report.mistakes:
        rows += ["", f"the first {len(report.mistakes)} mistake(s):"]
        rows += [f"  {source!r}: {text!r} should be {reference!r}" for source, text, reference in report.mistakes]
    return "\n".join(rows)
