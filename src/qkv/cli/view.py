"""`qkv view`: attention visualization."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options, texts
from qkv.cli.console import info, note, result, result_json, result_rich
from qkv.cli.evaluate import open_run, select_splits
from qkv.errors import InputError
from qkv.runtime.text import printable

if TYPE_CHECKING:
    from qkv.datasets.tagged import Tagged
    from qkv.pipelines.output import Answer

MAX_HEADING = 200  # characters of the source printed above its heat map


def view(
    run: options.Folder,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Input text, or image path for a vision Transformer.")
    ] = None,
    document: texts.Documents = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out", callback=options.check_output, metavar="PAGE.html", help="Output page [RUN/attention.html]."
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", callback=options.check_output, metavar="FILE.png", help="Also plot the first input as a PNG."
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", metavar="LAYER", help="Layer to plot [last cross-attention layer, else the first]."),
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=0, max=options.MAX_COUNT, help="Head to plot [average over heads].")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count",
            min=1,
            max=options.MAX_COUNT,
            help="Number of test examples to show if no inputs are given (translation, SNAIL).",
        ),
    ] = 20,
    beam: options.Beam = 1,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Visualize the attention weights of a model.

    Prints a heat map of the first input and writes an HTML page with all inputs, layers and heads. Translation models
    show decoding; text encoders (BERT), language models (GPT-2) and vision Transformers show self-attention. A
    hierarchical attention network shades sentences and words by weight; a neural Turing machine plots its read and
    write weights; SNAIL shows the attended examples or bandit pulls. Models with tree positions take parsed sentences:
    --document parsed.conllu.
    """
    from qkv.cli.view_memory import view_memory
    from qkv.datasets.tagged import text_of
    from qkv.hub.model_folder import ModelFolder, locate
    from qkv.interpret.image_probe import PictureAnswer
    from qkv.models.han import HAN
    from qkv.models.show_attend_tell import ShowAttendTell
    from qkv.models.snail import SNAIL, SNAILPolicy
    from qkv.models.vit import ViT
    from qkv.nn.interfaces import EncoderDecoder, SequenceModel
    from qkv.visualize import heat_map, over_patches, pick_map, save_page, save_picture_png, save_png
    from qkv.visualize.selection import pick_head

    network = ModelFolder(locate(run)).network
    if issubclass(network, ShowAttendTell):
        raise InputError(f"{run} is a captioning model: use qkv caption {run} PICTURE --out PAGE.html")
    if issubclass(network, SequenceModel):
        if page is not None or layer is not None or head is not None or beam > 1 or document:
            raise InputError(
                f"{run} is a {network.__name__}, which supports only --png: --out, --layer, --head, --beam and "
                "--document do not apply"
            )
        view_memory(run, inputs, png, device, json=json)
        return
    if issubclass(network, SNAIL):
        if head is not None or beam > 1 or document:
            raise InputError(f"{run} is a {network.__name__}: --head, --beam and --document do not apply")
        _episodes(run, inputs or [], count, page, png, layer, device, json)
        return
    if document and issubclass(network, ViT):
        raise InputError(f"--document requires a text model, but {run} is a {network.__name__}")
    sources = [*(inputs or []), *_read_documents(document or [])]
    if issubclass(network, HAN) and sources:
        if png is not None or layer is not None or head is not None or beam > 1:
            raise InputError(
                f"{run} is a {network.__name__}, which supports only --out: --png, --layer, --head and --beam do not "
                "apply"
            )
        _documents(run, [text_of(source) for source in sources], page, device, json)
        return
    if issubclass(network, EncoderDecoder):
        answers = _translate(run, sources, count, beam, device)
    elif issubclass(network, SNAILPolicy):
        if beam > 1 or document:
            raise InputError(f"{run} is a {network.__name__}: --beam and --document do not apply")
        answers = _games(run, inputs or [], count, layer, device)
    elif beam > 1:
        raise InputError(f"--beam requires a translation model, but {run} is a {network.__name__}")
    elif not sources:
        what = "an image path" if issubclass(network, ViT) else "a text"
        raise InputError(f"{run} is a {network.__name__}: pass {what}")
    else:
        answers = (
            _pictures(run, inputs or [], layer, device)
            if issubclass(network, ViT)
            else _self_attention(run, sources, layer, device)
        )

    first = answers[0]
    attention = over_patches(first, layer) if isinstance(first, PictureAnswer) else pick_map(first, layer)
    pick_head(attention, head)  # fail before writing any file
    written = {"page": str(save_page(answers, page or run / "attention.html"))}
    if png is not None and isinstance(first, PictureAnswer):
        written["png"] = str(save_picture_png(first, png, layer=layer, head=head))
    elif png is not None:
        written["png"] = str(save_png(first, png, layer=layer, head=head))
    if json:
        result_json(written)
        return
    source = printable(" ".join(first.source.split()), MAX_HEADING)
    info(f"{source}  ->  {printable(first.text)}" if first.text else source)
    result_rich(heat_map(attention, head=head))
    for path in written.values():
        result(path)


def _read_documents(paths: Sequence[Path]) -> "list[str | Tagged]":
    """Return the text of each file, or the parsed sentences of *.conllu files."""
    from qkv.datasets.text_files import is_parsed, read_parsed

    documents: list[str | Tagged] = []
    for path in paths:
        documents += read_parsed(path) if is_parsed(path) else texts.read_documents([path])
    return documents


def _translate(run: Path, sources: "Sequence[str | Tagged]", count: int, beam: int, device: str) -> "Sequence[Answer]":
    from qkv.pipelines.translator import Translator

    translator = Translator(run, device=device)
    if not sources:
        splits = open_run(run)[1].splits
        (name,) = select_splits(run, None, list(splits))
        sources = [pair.source_input for pair in splits[name][:count]]
    answers = translator(sources, num_beams=beam, attention=True)
    texts.note_unknown_tokens(
        {number: answer.unknown for number, answer in enumerate(answers, start=1) if answer.unknown}
    )
    return answers


def _self_attention(run: Path, sources: "Sequence[str | Tagged]", layer: str | None, device: str) -> "Sequence[Answer]":
    from qkv.datasets.tagged import text_of
    from qkv.interpret.attention_probe import AttentionProbe

    observer = AttentionProbe(run, device=device)
    texts.note_too_long(observer, [text_of(source) for source in sources])
    answers = observer.probe(sources, layer)
    _note_left_out(answers, len(observer.layers))
    return answers


def _documents(run: Path, sources: list[str], page: Path | None, device: str, json: bool) -> None:
    from qkv.interpret.document_probe import DocumentProbe
    from qkv.visualize.document_page import document_lines, save_document_page

    observer = DocumentProbe(run, device=device)
    texts.note_too_long(observer, sources)
    documents = observer(sources)
    written = save_document_page(documents, page or run / "attention.html")
    if json:
        result_json({"page": str(written)})
        return
    first = documents[0]
    info(f"{printable(first.label)}  {first.probabilities[first.label]:.1%}")
    result_rich(document_lines(first))
    result(str(written))


def _episodes(
    run: Path,
    numbers: list[str],
    count: int,
    page: Path | None,
    png: Path | None,
    layer: str | None,
    device: str,
    json: bool,
) -> None:
    """Show test episodes by number, else the first `count`."""
    from qkv.interpret.episode_probe import EpisodeProbe
    from qkv.visualize import heat_map
    from qkv.visualize.episode_page import save_episode_page, save_episode_png

    observer = EpisodeProbe(run, open_run(run)[1].splits["test"], device=device)
    episodes = observer.probe(_parse_numbers(run, numbers, count, "episodes"), layer)
    written = {"page": str(save_episode_page(episodes, page or run / "attention.html"))}
    if png is not None:
        written["png"] = str(save_episode_png(episodes[0], png))
    if json:
        result_json(written)
        return
    first = episodes[0]
    info(f"{first.source}: predicted {first.text}, {'correct' if first.right else f'expected {first.labels[-1] + 1}'}")
    result_rich(heat_map(first.by_layer))
    for path in written.values():
        result(path)


def _games(run: Path, numbers: list[str], count: int, layer: str | None, device: str) -> "Sequence[Answer]":
    """Return the attention in test games by number, else in the first `count`."""
    from qkv.interpret.game_probe import GameProbe

    games = _parse_numbers(run, numbers, count, "games")
    return GameProbe(run, open_run(run)[1].splits["test"], device=device).probe(games, layer)


def _parse_numbers(run: Path, numbers: list[str], count: int, what: str) -> Sequence[int]:
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise InputError(f"{run}: expected numbers of test {what} (from 0), not {printable(str(numbers))}")
    return [int(number) for number in numbers] or range(count)


def _pictures(run: Path, paths: list[str], layer: str | None, device: str) -> "Sequence[Answer]":
    from qkv.interpret.image_probe import PictureProbe

    observer = PictureProbe(run, device=device)
    answers = observer.probe(paths, layer)
    _note_left_out(answers, len(observer.layers))
    return answers


def _note_left_out(answers: "Sequence[Answer]", layers: int) -> None:
    """Note if the page cannot hold all layers."""
    fewest = min(len(answer.attention) for answer in answers)
    if fewest < layers:
        note(f"the page holds {fewest} of {layers} layers to limit its size; use --layer to select one")
