"""`qkv evaluate`: score a trained model."""

import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.console import info, note, progress_bar, result, result_json
from qkv.errors import InputError
from qkv.runtime.files import write_atomically
from qkv.runtime.text import printable

if TYPE_CHECKING:
    from qkv.datasets.pair import Pair
    from qkv.datasets.registry import LoadedData
    from qkv.experiments import pronunciation, translation
    from qkv.generation import GenerationConfig
    from qkv.pipelines.output import Answer
    from qkv.pipelines.translator import Translator
    from qkv.training.run import Run

ALL_TESTS = "all-tests"
MAX_TOKEN_SHOWN = 40  # characters of an unknown token in a note
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
PERCENTAGES = ("bleu", "bleu_lowercased", "bleu_tokenised", "chrf")  # on sacrebleu's scale of 0 to 100


def evaluate(
    run: options.Folder,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="SPLIT", help="Split to evaluate, or all-tests; repeatable [test]."),
    ] = None,
    data: options.Data = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=options.MAX_COUNT, help="Evaluate only the first N pairs.")
    ] = None,
    beam: options.Beam = 1,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", help="Length penalty ALPHA: score = log p / length^ALPHA.")
    ] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", callback=options.check_output, metavar="FILE", help="Write the outputs, one per line."),
    ] = None,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not append the result to RUN/results.jsonl.")
    ] = False,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Evaluate a model on its test set or on your files.

    Reports exact match, character error rate, BLEU and chrF (sacrebleu), and alignment accuracy if gold alignments
    exist; ROUGE for your own pairs; phoneme and word error rate for pronunciation; the validation metrics for language
    models, taggers and classifiers. Results on a whole split are appended to RUN/results.jsonl for `qkv compare`.
    """
    from qkv.cli.evaluate_scored import evaluate_scored, files_to_score
    from qkv.cli.recording import record_result
    from qkv.experiments.results import measures
    from qkv.generation import GenerationConfig
    from qkv.pipelines.translator import Translator
    from qkv.tasks.task import ScoredTask
    from qkv.training.recipe import TASKS

    if data and split is not None:
        raise InputError("--split cannot be combined with --data")
    own, loaded = (_find_run(run), None) if data else open_run(run)
    # Results on part of a split or for a single checkpoint must not be recorded as results of the run.
    complete = not data and own is not None and run == own.folder and limit is None
    task = None if own is None else TASKS[own.recipe.task]
    if own is not None and task is not None and issubclass(task, ScoredTask):
        if (beam, length_penalty, limit, out) != (1, 1.0, None, None):
            raise InputError(
                f"{run}: --beam, --length-penalty, --limit and --out require a translation model, but this is a run of "
                f"{task.title}"
            )
        if data:
            names = [_display_name(data)]
            loaded = files_to_score(own, data, names[0], strict=strict)
        else:
            assert loaded is not None
            names = _select_splits(run, split, task.splits(loaded))
        evaluate_scored(run, own, loaded, names, device, json=json, record=complete and not no_record)
        return
    if loaded is not None:
        chosen = {name: loaded.splits[name] for name in _select_splits(run, split, list(loaded.splits))}
    else:
        chosen = dict([load_pairs(run, split[0] if split else None, data, strict=strict)])
    if out is not None and len(chosen) > 1:
        raise InputError(f"--out requires a single split, not {len(chosen)}: {', '.join(chosen)}")
    config = GenerationConfig(num_beams=beam, length_penalty=length_penalty)
    translator = Translator(run, device=device)
    for name, pairs in chosen.items():
        scored = _drop_too_long(translator, pairs[:limit])
        _note_unknown_tokens(translator, scored)
        report, answers = _score(translator, scored, config, None if data else own)
        if json:
            result_json({"run": str(run), "split": name, **asdict(report)})
        else:
            info(f"{run}: {len(scored):,} pairs of {name}, {'greedy' if beam == 1 else f'beam {beam}'}")
            result(table(report))
        if out is not None:
            write_atomically(out, "".join(f"{_one_line(answer.text)}\n" for answer in answers).encode())
        if own is not None and loaded is not None and complete and not no_record:
            record_result(
                own,
                translator.model,
                data_hash=loaded.fingerprint,
                split=name,
                size=len(scored),
                left_out=len(pairs) - len(scored),
                beam=beam,
                length_penalty=length_penalty,
                metrics=measures(report.scores()),
                by_length=report.by_length,
                seconds=report.seconds,
            )


def load_pairs(
    run: Path, split: str | None, data: list[Path] | None, *, strict: bool = False
) -> tuple[str, list["Pair"]]:
    """Return a display name and pairs: the user's files, or a split of the run's dataset."""
    if data:
        from qkv.datasets.text_files import read_pairs

        read = read_pairs(data, strict=strict)
        for message in read.notes:
            note(message)
        return _display_name(data), read.pairs
    splits = open_run(run)[1].splits
    (name,) = _select_splits(run, None if split is None else [split], list(splits))
    return name, splits[name]


def open_run(run: Path) -> tuple["Run", "LoadedData"]:
    """Return the training run of a run or checkpoint directory, and its data."""
    training_run = _find_run(run)
    if training_run is None:
        runs = sorted(path.parent.name for path in run.glob("*/manifest.json"))
        hint = f"pass one of the runs in it, e.g. {run / runs[0]}" if runs else "pass --data"
        raise InputError(f"{run}: not a training run, so it has no dataset: {hint}")
    return training_run, training_run.data()


def _find_run(run: Path) -> "Run | None":
    from qkv.training.run import Run
    from qkv.training.run_manifest import MANIFEST

    if not run.exists():
        raise InputError(f"{run}: no such folder")
    folder = next((folder for folder in (run, run.parent) if (folder / MANIFEST).exists()), None)
    return None if folder is None else Run.open(folder)


def _display_name(data: list[Path]) -> str:
    return " and ".join(str(path) for path in data)


def _select_splits(run: Path, requested: list[str] | None, splits: list[str]) -> list[str]:
    """Return the requested splits without duplicates; default: the first test set, else the validation set."""
    tests = [name for name in splits if name.startswith("test")]
    if requested is None:
        return tests[:1] or ["valid"]
    if ALL_TESTS in requested and not tests:
        raise InputError(f"{run}: no test set (available: {', '.join(splits)})")
    names = list(chain.from_iterable(tests if name == ALL_TESTS else [name] for name in requested))
    for name in names:
        if name not in splits:
            raise InputError(f"{run}: no {name} split (available: {', '.join(splits)})")
    return list(dict.fromkeys(names))


def _score(
    translator: "Translator", pairs: list["Pair"], config: "GenerationConfig", run: "Run | None"
) -> tuple["translation.Report | pronunciation.Report", list["Answer"]]:
    """Run the model and compute the metrics of the dataset."""
    from qkv.cli.recording import languages
    from qkv.experiments import pronunciation, translation

    began = time.monotonic()
    if run is not None and run.recipe.data.name == "cmudict":
        words = list(pronunciation.group_by_word(pairs))
        with progress_bar("evaluating", len(words)) as progress:
            answers = translation.answer(translator, words, config, progress=progress)
        seconds = time.monotonic() - began
        return pronunciation.score_answers(answers, pairs, beam=config.num_beams, seconds=seconds), answers
    aligned = all(pair.gold is not None for pair in pairs)
    with progress_bar("evaluating", len(pairs)) as progress:
        sources = [pair.source_input for pair in pairs]
        answers = translation.answer(translator, sources, config, attention=aligned, progress=progress)
    language = "" if run is None else languages(run)[1]
    own = run is None or run.recipe.data.name == "pairs"  # possibly summaries
    seconds = time.monotonic() - began
    report = translation.score_answers(
        answers, pairs, beam=config.num_beams, language=language, rouge=own, seconds=seconds
    )
    return report, answers


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _drop_too_long(translator: "Translator", pairs: list["Pair"]) -> list["Pair"]:
    """Return the pairs that fit the model's maximum length; note how many do not."""
    fitting = [pair for pair in pairs if translator.fits(pair.source)]
    if len(fitting) < len(pairs):
        limit = translator.model.config.max_length
        note(f"skipped {len(pairs) - len(fitting)} pair(s) longer than the model's maximum of {limit} tokens")
    return fitting


def _note_unknown_tokens(translator: "Translator", pairs: list["Pair"]) -> None:
    tokenizer = translator.tokenizer.source
    encodings = tokenizer.encode_with_offsets([pair.source for pair in pairs])
    unknown = [pieces for encoding in encodings if (pieces := tokenizer.unknown_pieces(encoding))]
    if unknown:
        tokens = list(dict.fromkeys(chain.from_iterable(unknown)))[:10]
        names = ", ".join(printable(repr(token), MAX_TOKEN_SHOWN) for token in tokens)
        note(f"{len(unknown):,} source(s) contain out-of-vocabulary tokens: {names}")


def table(report: "translation.Report | pronunciation.Report") -> str:
    """Format a report as a table."""
    rows = [
        f"{TITLES[name]:28}  {_format(name, score.value)}   {score.signature}".rstrip()
        for name, score in report.scores().items()
    ]
    rows.append(f"{'speed':28}  {report.answers / report.seconds:8.0f}   texts/s")
    if report.mistakes:
        rows += ["", f"first {len(report.mistakes)} mistake(s):"]
        mistakes = ([printable(repr(text)) for text in mistake] for mistake in report.mistakes)
        rows += [f"  {source}: {text} should be {reference}" for source, text, reference in mistakes]
    return "\n".join(rows)


def _format(name: str, value: float) -> str:
    return f"{value:8.2f}" if name in PERCENTAGES else f"{value:8.2%}"
