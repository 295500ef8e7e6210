"""Options equal the parameters of the pipelines: names, defaults, and names in error messages."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qkv as library
from qkv.cli.commands import caption, encoders, evaluate, generate, parse, translate, view
from qkv.generation import GenerationConfig, Sampling
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.visualize.views import VIEWS, View, ViewOptions

from .command import Ended

PIPELINES = [
    (translate.translate, library.Translator.__call__),
    (translate.translate, GenerationConfig),
    (translate.translate, Sampling),
    (generate.generate, library.Generator.__call__),
    (caption.caption, library.Captioner.__call__),
    (encoders.classify, library.Classifier.__call__),
    (encoders.classify, ImageClassifier.__call__),
    (encoders.tag, library.Tagger.__call__),
    (parse.parse, library.Parser.__call__),
    (encoders.fill, library.MaskFiller.__call__),
    (encoders.embed, library.Embedder.__call__),
    (encoders.answer, library.QuestionAnswerer.__call__),
    (evaluate.evaluate, GenerationConfig),
    (view.view, library.Translator.__call__),
    (view.view, ViewOptions),
]
NOT_OPTIONS = {
    "self",
    "texts",
    "prompts",
    "images",
    "recordings",
    "sentences",
    "questions",
    "context",
    "sampling",
    "attention",
}
TRANSLATED = inspect.signature(library.Translator.__call__).parameters.keys()
NOT_IN_VIEW = {"max_lines", "command"} | TRANSLATED - {"num_beams"}
NOT_IN_EVALUATE = set(GenerationConfig.model_fields) - {"num_beams", "length_penalty"}


@pytest.mark.parametrize(
    ("command", "function"), PIPELINES, ids=lambda value: getattr(value, "__qualname__", type(value).__name__)
)
def test_options_have_the_names_and_defaults_of_the_python_parameters(
    command: Callable[..., None], function: Callable[..., Any]
) -> None:
    options, parameters = inspect.signature(command).parameters, inspect.signature(function).parameters
    left_out = {view.view: NOT_IN_VIEW, evaluate.evaluate: NOT_IN_EVALUATE}.get(command, set())
    names = parameters.keys() - NOT_OPTIONS - left_out
    assert names <= options.keys()
    assert {name: options[name].default for name in names} == {name: parameters[name].default for name in names}


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--num-beams", 0], "--num-beams"),
        (["--num-return-sequences", 2], "--num-return-sequences"),
        (["--max-new-tokens", 0], "--max-new-tokens"),
        (["--max-new-tokens", 2, "--min-new-tokens", 3], "--min-new-tokens"),
        (["--do-sample", "--temperature", -1], "--temperature"),
        (["--do-sample", "--seed", -1], "--seed"),
        (["--batch-size", 0], "--batch-size"),
        (["--exact"], "--exact"),
    ],
)
def test_errors_of_the_pipelines_name_the_option(
    qkv: Callable[..., Ended], run: Path, arguments: list[object], option: str
) -> None:
    assert qkv("translate", run, "5 May 2026", *arguments).error.startswith(option)


def test_output_has_the_results_and_is_not_written_after_an_error(
    qkv: Callable[..., Ended], run: Path, tmp_path: Path
) -> None:
    texts, file = ["5 May 2026", "6 May 2026"], tmp_path / "new" / "results.txt"
    for options in ([], ["--json"], ["--num-beams", 2, "--num-return-sequences", 2]):
        stdout = qkv("translate", run, *texts, *options)
        ended = qkv("translate", run, *texts, *options, "--output", file)
        assert (ended.code, ended.out) == (0, f"{file}\n")
        assert file.read_text(encoding="utf-8") == stdout.out
    file.unlink()
    assert qkv("translate", run, texts[0], "5" * 9999, "--output", file).error.startswith("input 2 ")
    assert not file.exists()


def test_every_option_of_a_view_is_an_option_of_the_command() -> None:
    options = inspect.signature(view.view).parameters.keys()
    assert all(shown.options <= options for shown in (View, *VIEWS))


def test_texts_from_several_sources_are_an_error(qkv: Callable[..., Ended], run: Path) -> None:
    assert "--input" in qkv("translate", run, "5 May 2026", "--input", "x.txt").error
