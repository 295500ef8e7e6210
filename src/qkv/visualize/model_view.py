"""`qkv.view`: what a model attends to on an input, in a notebook, as a page or as a figure."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from qkv.datasets.dataset import Dataset
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.hub.model_folder import ModelFolder, locate
from qkv.pipelines.pipeline import ModelSource
from qkv.registry import names_keywords
from qkv.runtime.notebook import quoted
from qkv.training.run import open_run
from qkv.visualize.image_overlay import data_url
from qkv.visualize.views import View, ViewOptions, find_view

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

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, or the figure of a model that has no page, and return its path."""
        return Path(next(iter(self.write(Path(path)).values())))

    def write(self, page: Path | None = None, png: Path | None = None) -> dict[str, str]:
        """Write the page of all answers, and the figure of the first if `png` is given; return their paths."""
        if "page" not in self.shown.options:
            page, png = None, png or page
        if isinstance(self.shown.run, nn.Module) and page is None and png is None:
            raise InputError(f"{self.name}: a network has no folder to write to: pass the path of a page")
        return self.shown.write(self.answers, page, png, self.options)

    def __repr__(self) -> str:
        heading = self.shown.heading(self.answers[0]) if self.answers else ""
        return f"ModelView({quoted(self.name)}: {len(self.answers)} answer(s), the first is {quoted(heading)})"

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(Path(folder) / ("view.html" if "page" in self.shown.options else "view.png"))
            if path.suffix == ".png":
                from PIL import Image

                with Image.open(path) as image:
                    return f'<img src="{data_url(image)}" alt="{escape(repr(self))}" style="max-width: 100%">'
            page = path.read_text(encoding="utf-8")
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
    page: str | os.PathLike[str] | None = None,
    png: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> ModelView:
    """Show what a model attends to: `qkv.view("runs/demo", "5 March 2026")` in a notebook, or `.save("page.html")`.

    `inputs` are texts, paths of images or WAV files, or numbers of test examples, as in `qkv view`; without any, a run
    shows `count` examples of its test set. A language model first continues each text by `max_new_tokens` tokens.
    `page` and `png` write files at once.
    """
    sources = [inputs] if isinstance(inputs, str | os.PathLike | Tagged) else list(inputs or ())
    texts = [os.fspath(source) if isinstance(source, os.PathLike) else source for source in sources]
    values = {"layer": layer, "head": head, "count": count, "num_beams": num_beams, "page": page, "png": png}
    values["max_new_tokens"] = max_new_tokens
    result = run_view(model, texts, values, device)
    if page is not None or png is not None:
        result.write(None if page is None else Path(page), None if png is None else Path(png))
    return result


def run_view(
    model: ModelSource,
    sources: Sequence[str | Tagged],
    values: dict[str, Any],
    device: str = "auto",
    *,
    max_lines: int | None = None,
    command: str = "",
) -> ModelView:
    """Run a model on inputs, after checking that its view supports the options that are not None."""
    if isinstance(model, nn.Module):
        name, network = type(model).__name__, type(model)
        shown = find_view(_LoadedModel(model))(model, device, lambda: _no_data(name))
    else:
        name, folder = os.fspath(model), ModelFolder(locate(model))
        network = folder.network
        shown = find_view(folder)(Path(name), device, lambda: open_run(Path(name))[1])
    what = name if isinstance(model, nn.Module) else f"{name} is a {network.__name__}"
    check_supported(what, shown, values)
    if not sources and not shown.default_inputs:
        raise InputError(f"{what}: pass {shown.inputs}")
    count, num_beams = values.get("count") or COUNT, values.get("num_beams") or 1
    new_tokens = values.get("max_new_tokens") or 0
    options = ViewOptions(values.get("layer"), values.get("head"), count, num_beams, new_tokens, max_lines, command)
    answers = shown.probe(sources, options)
    shown.figure(answers[0], options)  # raises if the layer or the head does not exist
    return ModelView(name, answers, shown, options)


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
    """A network in the place of its folder, as far as a view chooses itself by it."""

    def __init__(self, model: nn.Module) -> None:
        self.network = type(model)
        self.reads_speech = getattr(model, "log_mel", None) is not None
