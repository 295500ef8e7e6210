"""`qkv.view`: what a model attends to on an input, in a notebook, as a page or as a figure."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv.datasets.dataset import YOURS, Dataset
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.hub.model_folder import ModelFolder, locate, model_name, named_folder
from qkv.nn.interfaces import Model
from qkv.pipelines.pipeline import ModelSource
from qkv.registry import names_keywords
from qkv.runtime.notebook import quoted
from qkv.runtime.text import with_article
from qkv.training.run import find_run, open_run
from qkv.visualize.views import Compared, View, ViewOptions, find_view

HEIGHT = 640  # pixels of the page in a notebook
COUNT = 20  # test examples, if no inputs are passed
Inputs = str | os.PathLike[str] | Tagged


@dataclass(frozen=True, repr=False)
class ModelView:
    """The answers of a model with their attention; a notebook shows them as a page inside a frame."""

    name: str  # of the model
    answers: Sequence[Any]
    shown: View = field(repr=False)
    options: ViewOptions
    compared: "ModelView | None" = None  # another model on the same inputs

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page and return its path."""
        return Path(self.write(Path(path))["page"])

    def write(self, page: Path | None = None, png: Path | None = None) -> dict[str, str]:
        """Write the page of all answers, and the figure of the first if `png` is given; return their paths."""
        if isinstance(self.shown.run, nn.Module) and page is None:
            raise InputError(f"{self.name}: a network has no folder to write to: pass the path of a page")
        compared = None if self.compared is None else Compared(self.compared.shown, self.compared.answers)
        return self.shown.write(self.answers, page, png, self.options, compared)

    def __repr__(self) -> str:
        heading = self.shown.heading(self.answers[0]) if self.answers else ""
        return f"ModelView({quoted(self.name)}: {len(self.answers)} answer(s), the first is {quoted(heading)})"

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            page = self.save(Path(folder) / "view.html").read_text(encoding="utf-8")
        # Scripts run, but in an origin of their own, without access to the notebook.
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(page)}" width="100%" height="{HEIGHT}" '
            f'style="border: 0" title="{escape(repr(self))}"></iframe>'
        )


@names_keywords
def view(
    model: ModelSource,
    inputs: Inputs | Sequence[Inputs] | None = None,
    *,
    layer: str | None = None,
    head: int | None = None,
    count: int | None = None,
    num_beams: int | None = None,
    max_new_tokens: int | None = None,
    compare: ModelSource | None = None,
    page: str | os.PathLike[str] | None = None,
    png: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> ModelView:
    """Show what a model attends to, in a notebook or as an interactive page.

        qkv.view("runs/demo", "5 March 2026").save("page.html")

    Args:
        model: A run, a saved model, the name of a model, or a network of `qkv.models`.
        inputs: One or several texts, paths of images or WAV files, or numbers of test examples, as in `qkv view`; by
            default, examples of the test set of a run.
        layer: Name of the layer to plot, such as "decoder.1.cross"; by default the last cross-attention layer, else the
            first layer.
        head: Number of the head to plot, from 0; by default the average over heads.
        count: Number of test examples, if there are no `inputs`.
        num_beams: Number of beams, for models that generate text.
        max_new_tokens: Number of tokens by which a language model first continues each text.
        compare: Another model to show next to it on the same inputs.
        page: Path of an HTML page to write at once.
        png: Path of a figure of the first answer to write at once.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Returns:
        A `ModelView`, which a notebook shows; `.save(path)` writes the page.
    """
    sources = [inputs] if isinstance(inputs, str | os.PathLike | Tagged) else list(inputs or ())
    texts = [os.fspath(source) if isinstance(source, os.PathLike) else source for source in sources]
    values = {"layer": layer, "head": head, "count": count, "num_beams": num_beams, "page": page, "png": png}
    values["max_new_tokens"] = max_new_tokens
    result = run_view(model, texts, values, device, compare=compare)
    if page is not None or png is not None:
        result.write(None if page is None else Path(page), None if png is None else Path(png))
    return result


def run_view(
    model: ModelSource,
    sources: Sequence[str | Tagged],
    values: dict[str, Any],
    device: str = "auto",
    *,
    compare: ModelSource | None = None,
    max_lines: int | None = None,
    command: str = "",
) -> ModelView:
    """Run a model on inputs, after checking that its view supports the options that are not None."""
    name, what, shown = _find(model, device)
    check_supported(what, shown, {**values, "compare": compare})
    if not sources and not shown.default_inputs:
        raise InputError(f"{what}: pass {shown.inputs}{_examples_of(shown)}")
    other = None
    if compare is not None:
        other = _find(compare, device)
        check_comparable(shown, other, sources, values)
    count, num_beams = values.get("count") or COUNT, values.get("num_beams") or 1
    new_tokens = values.get("max_new_tokens") or 0
    options = ViewOptions(values.get("layer"), values.get("head"), count, num_beams, new_tokens, max_lines, command)
    answers = shown.probe(sources, options)
    shown.figure(answers[0], options)  # raises if the layer or the head does not exist
    compared = None
    if other is not None:
        options_of_other = replace(options, layer=None, head=None)  # they are those of the first model
        compared = ModelView(other.name, other.view.probe(sources, options_of_other), other.view, options_of_other)
    return ModelView(name, answers, shown, options, compared)


class _FoundView(NamedTuple):
    """The view of a model."""

    name: str
    what: str  # the name with the class of the network, for messages
    view: View


def _find(model: ModelSource, device: str) -> _FoundView:
    """Return the view of a model."""
    if isinstance(model, nn.Module):
        name = type(model).__name__
        if not isinstance(model, Model):
            raise InputError(
                f"{name} is not a model of qkv: pass a run, a folder, the name of a model of the Hugging Face Hub, or "
                "a network of qkv.models; qkv.watch records the attention weights of other networks"
            )
        return _FoundView(name, name, find_view(_LoadedModel(model))(model, device, lambda: _no_data(name)))
    name, folder = model_name(model), ModelFolder(locate(model_name(model)))
    view_class = find_view(folder)
    view = view_class(Path(name), device, lambda: _test_data(name, view_class.inputs))
    return _FoundView(name, f"{name} is {with_article(folder.network.__name__)}", view)


def _examples_of(shown: View) -> str:
    """Return how to get files such as those that a run was trained on, or ""."""
    saved = shown.reads_files and isinstance(shown.run, Path) and named_folder(shown.run).exists()
    run = find_run(shown.run) if saved else None
    if run is None or run.recipe.data.license == YOURS:
        return ""
    return f"; qkv data show {run.recipe.data.registered_name} --output FOLDER writes examples of its data"


def _test_data(name: str, inputs: str) -> Dataset[Any]:
    """Return the dataset of a run, whose test examples are shown if no inputs are passed."""
    try:
        return open_run(Path(name))[1]
    except InputError as error:
        raise InputError(f"{name}: pass {inputs}; its test examples cannot be shown: {error}") from error


def check_comparable(shown: View, other: _FoundView, sources: Sequence[str | Tagged], values: dict[str, Any]) -> None:
    """Raise if another model cannot be shown next to a model on these inputs, with these options."""
    if not sources:
        raise InputError(f"--compare: pass {shown.inputs} that both models take")
    if other.view.inputs != shown.inputs:
        raise InputError(f"--compare: {other.what}, which takes {other.view.inputs}, not {shown.inputs}")
    if shown.run is other.view.run or (shown.run == other.view.run and not isinstance(shown.run, nn.Module)):
        raise InputError(f"--compare: {other.name} is the same model: name another one, or pass two inputs")
    shared = {name: value for name, value in values.items() if name not in ("page", "png", "layer", "head")}
    check_supported(f"--compare: {other.what}", other.view, {**shared, "compare": other.name})


def check_supported(model: str, shown: View, values: dict[str, Any]) -> None:
    """Raise for options that the view of a model does not support."""
    names = [name for name, value in values.items() if value is not None and name not in shown.options]
    if names:
        unsupported, supported = (
            ", ".join(f"--{name.replace('_', '-')}" for name in options) for options in (names, sorted(shown.options))
        )
        raise InputError(f"{model}, which does not support {unsupported} (supported: {supported})")


def _no_data(name: str) -> Dataset[Any]:
    raise InputError(f"{name}: a network has no dataset: pass inputs, or the folder of its run")


class _LoadedModel:
    """The attributes of a network that select its view, like those of a `ModelFolder`."""

    def __init__(self, model: nn.Module) -> None:
        self.network = type(model)
        self.reads_speech = getattr(model, "log_mel", None) is not None
