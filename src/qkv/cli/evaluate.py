"""`qkv evaluate`: how good a trained model is."""

import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.talk import counting, note, result, result_json, say
from qkv.config import shown
from qkv.errors import InputError
from qkv.runtime.files import write_atomically

if TYPE_CHECKING:
    from qkv.data.pair import Pair
    from qkv.data.registry import LoadedData
    from qkv.evaluation import pronunciation, translation
    from qkv.tasks.answer import Answer
    from qkv.tasks.translator import Search, Translator
    from qkv.training.run import Run

ALL_TESTS = "all-tests"
SHOWN = 40  # characters of an unknown token in a note
TITLES = {
    "exact": "exact match",
    "cer": "character error rate",
    "bleu": "BLEU",
    "bleu_lowercased": "BLEU, lowercased",
    "bleu_tokenised": "BLEU, lowercased, tokenised",
    "chrf": "chrF",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "alignment": "alignment accuracy",
    "per": "phoneme error rate",
    "wer": "word error rate",
}
OUT_OF_A_HUNDRED = ("bleu", "bleu_lowercased", "bleu_tokenised", "chrf")  # as sacrebleu gives them


def evaluate(
    run: options.Folder,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="SPLIT", help="A split of the run's data, or all-tests; repeatable [test]."),
    ] = None,
    data: options.Data = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=options.MOST, help="Only the first so many pairs.")
    ] = None,
    beam: options.Beam = 1,
    length_penalty: Annotated[float, typer.Option("--length-penalty", help="Score is log p / length^this.")] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", callback=options.output_file, metavar="FILE", help="Also write the answers, one a line, in order."
        ),
    ] = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="Do not add the result to RUN/results.jsonl.")] = False,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Score a model on its test set, or on files of yours in the format of its training data.

    Gives exact match, character error rate, BLEU and chrF (sacrebleu), and alignment accuracy where gold is known; for
    pairs of your own also ROUGE, as for summaries; for a dictionary, phoneme and word error rate; for language models,
    taggers and classifiers what their training shows.
    What was found for a whole split is added to RUN/results.jsonl, which `qkv compare` reads.
    """
    from qkv.cli.evaluate_scored import evaluate_scored, files_to_score
    from qkv.cli.recording import keep_record
    from qkv.evaluation.record import measures
    from qkv.tasks.task import ScoredTask
    from qkv.tasks.translator import Search, Translator
    from qkv.training.recipe import TASKS

    if data and split is not None:
        raise InputError("--split names a part of the run's own data: leave it away with --data")
    own, loaded = (_run_of(run), None) if data else run_and_data(run)
    # A part of a split, or one checkpoint among others, would pass for the whole run.
    whole = not data and own is not None and run == own.folder and limit is None
    task = None if own is None else TASKS[own.recipe.task]
    if own is not None and task is not None and issubclass(task, ScoredTask):
        if (beam, length_penalty, limit, out) != (1, 1.0, None, None):
            raise InputError(
                f"{run}: --beam, --length-penalty, --limit and --out are for translators, and this is a run of "
                f"{task.title}: leave them away"
            )
        if data:
            names = [_named(data)]
            loaded = files_to_score(own, data, names[0], strict=strict)
        else:
            assert loaded is not None
            names = _chosen(run, split, task.splits(loaded))
        evaluate_scored(run, own, loaded, names, device, json=json, record=whole and not no_record)
        return
    if loaded is not None:
        chosen = {name: loaded.splits[name] for name in _chosen(run, split, list(loaded.splits))}
    else:
        chosen = dict([pairs_of(run, split[0] if split else None, data, strict=strict)])
    if out is not None and len(chosen) > 1:
        raise InputError(f"--out takes the answers to one split, but there are {len(chosen)}: {', '.join(chosen)}")
    translator, search = Translator(run, device=device), Search(beam, length_penalty=length_penalty)
    for name, pairs in chosen.items():
        fitting = _fitting(translator, pairs[:limit])
        _tell_unknown(translator, fitting)
        report, answers = _score(translator, fitting, search, None if data else own)
        if json:
            result_json({"run": str(run), "split": name, **asdict(report)})
        else:
            say(f"{run}: {len(fitting):,} pairs of {name}, {'greedy' if beam == 1 else f'beam {beam}'}")
            result(table(report))
        if out is not None:
            write_atomically(out, "".join(f"{_one_line(answer.text)}\n" for answer in answers).encode())
        if own is not None and loaded is not None and whole and not no_record:
            keep_record(
                own,
                translator.model,
                data_hash=loaded.fingerprint,
                split=name,
                size=len(fitting),
                left_out=len(pairs) - len(fitting),
                beam=beam,
                length_penalty=length_penalty,
                metrics=measures(report.scores()),
                by_length=report.by_length,
                seconds=report.seconds,
            )


def pairs_of(
    run: Path, split: str | None, data: list[Path] | None, *, strict: bool = False
) -> tuple[str, list["Pair"]]:
    """The pairs to look at, with a name for them: the user's own, or a split of the data the run was trained on."""
    if data:
        from qkv.data.files import read_pairs

        read = read_pairs(data, strict=strict)
        for passed_over in read.notes:
            note(passed_over)
        return _named(data), read.pairs
    splits = run_and_data(run)[1].splits
    (name,) = _chosen(run, None if split is None else [split], list(splits))
    return name, splits[name]


def run_and_data(run: Path) -> tuple["Run", "LoadedData"]:
    """The training run that a folder is, or is a checkpoint of, with its data."""
    found = _run_of(run)
    if found is None:
        inside = sorted(path.parent.name for path in run.glob("*/manifest.json"))
        hint = f"name one of the runs in it, such as {run / inside[0]}" if inside else "give --data"
        raise InputError(f"{run}: not a training run, so it has no data of its own: {hint}")
    return found, found.data()


def _run_of(run: Path) -> "Run | None":
    from qkv.training.manifest import MANIFEST
    from qkv.training.run import Run

    if not run.exists():
        raise InputError(f"{run}: no such folder")
    folder = next((folder for folder in (run, run.parent) if (folder / MANIFEST).exists()), None)
    return None if folder is None else Run.open(folder)


def _named(data: list[Path]) -> str:
    return " and ".join(str(path) for path in data)


def _chosen(run: Path, asked: list[str] | None, splits: list[str]) -> list[str]:
    """The splits that were asked for, each once; else the first test set, or the validation set where there is none."""
    tests = [name for name in splits if name.startswith("test")]
    if asked is None:
        return tests[:1] or ["valid"]
    if ALL_TESTS in asked and not tests:
        raise InputError(f"{run}: no test set (there are: {', '.join(splits)})")
    names = list(chain.from_iterable(tests if name == ALL_TESTS else [name] for name in asked))
    for name in names:
        if name not in splits:
            raise InputError(f"{run}: no {name} split (there are: {', '.join(splits)})")
    return list(dict.fromkeys(names))


def _score(
    translator: "Translator", pairs: list["Pair"], search: "Search", run: "Run | None"
) -> tuple["translation.Report | pronunciation.Report", list["Answer"]]:
    """Answer and judge, by the measures that the data ask for."""
    from qkv.cli.recording import languages
    from qkv.evaluation import pronunciation, translation

    began = time.monotonic()
    if run is not None and run.recipe.data.name == "cmudict":
        words = list(pronunciation.group_by_word(pairs))
        with counting("evaluating", len(words)) as progress:
            answers = translation.answer(translator, words, search, progress=progress)
        seconds = time.monotonic() - began
        return pronunciation.score_answers(answers, pairs, beam=search.beam, seconds=seconds), answers
    aligned = all(pair.gold is not None for pair in pairs)
    with counting("evaluating", len(pairs)) as progress:
        sources = [pair.source_input for pair in pairs]
        answers = translation.answer(translator, sources, search, attention=aligned, progress=progress)
    language = "" if run is None else languages(run)[1]
    own = run is None or run.recipe.data.name == "pairs"  # which may be summaries
    seconds = time.monotonic() - began
    report = translation.score_answers(answers, pairs, beam=search.beam, language=language, rouge=own, seconds=seconds)
    return report, answers


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _fitting(translator: "Translator", pairs: list["Pair"]) -> list["Pair"]:
    """The pairs that are short enough for the model; how many are not is said."""
    fitting = [pair for pair in pairs if translator.fits(pair.source)]
    if len(fitting) < len(pairs):
        limit = translator.model.config.max_length
        note(f"left out {len(pairs) - len(fitting)} pair(s) longer than the {limit} tokens that the model takes")
    return fitting


def _tell_unknown(translator: "Translator", pairs: list["Pair"]) -> None:
    vocabulary = translator.vocabulary.source
    unknown = [pieces for pair in pairs if (pieces := vocabulary.unknown_pieces(vocabulary.encode(pair.source)))]
    if unknown:
        names = ", ".join(shown(repr(piece), SHOWN) for piece in list(dict.fromkeys(chain.from_iterable(unknown)))[:10])
        note(f"{len(unknown):,} source(s) hold what was never seen in training, read as unknown: {names}")


def table(report: "translation.Report | pronunciation.Report") -> str:
    """A report for people."""
    rows = [
        f"{TITLES[name]:28}  {_shown(name, score.value)}   {score.signature}".rstrip()
        for name, score in report.scores().items()
    ]
    rows.append(f"{'speed':28}  {report.answers / report.seconds:8.0f}   texts/s")
    if report.mistakes:
        rows += ["", f"the first {len(report.mistakes)} mistake(s):"]
        mistakes = ([shown(repr(text)) for text in mistake] for mistake in report.mistakes)
        rows += [f"  {source}: {text} should be {reference}" for source, text, reference in mistakes]
    return "\n".join(rows)


def _shown(name: str, value: float) -> str:
    return f"{value:8.2f}" if name in OUT_OF_A_HUNDRED else f"{value:8.2%}"
