"""`qkv view`: what attends to what."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options, texts
from qkv.cli.evaluate import pairs_of, run_and_data
from qkv.cli.talk import note, result, result_drawn, result_json, say
from qkv.config import shown
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.tagged import Tagged
    from qkv.tasks.answer import Answer

LONGEST_HEADING = 200  # characters of a text that are said before its heat map


def view(
    run: options.Folder,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="What to look at; for a vision Transformer, pictures.")
    ] = None,
    document: texts.Documents = None,
    page: Annotated[
        Path | None,
        typer.Option("--out", callback=options.output_file, metavar="PAGE.html", help="The page [RUN/attention.html]."),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", callback=options.output_file, metavar="FILE.png", help="Also draw the first input as a picture."
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer", metavar="LAYER", help="The layer to draw [the last that reads the source, else the first]."
        ),
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=0, max=options.MOST, help="The head to draw [their average].")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count",
            min=1,
            max=options.MOST,
            help="Translators, SNAIL and players without inputs: how many of the test set.",
        ),
    ] = 20,
    beam: options.Beam = 1,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """See what attends to what: a heat map and a page.

    Translators are seen at work; text encoders (BERT) and language models (GPT-2) while they read; vision Transformers
    while they look at pictures. The heat map is of the first input; the page holds all of them, with every layer and
    head to explore. Of a hierarchical attention network, sentences and words are shaded by how much they counted; of a
    neural Turing machine a picture shows where it wrote and read, of SNAIL a page which examples it looked at, or which
    of its pulls. A model of dependency trees is given sentences with their heads: --document parsed.conllu.
    """
    from qkv.cli.view_memory import view_memory
    from qkv.data.tagged import text_of
    from qkv.interop.folder import locate, network_of
    from qkv.models.captioner import ShowAttendTell
    from qkv.models.han import HAN
    from qkv.models.snail import SNAIL, SNAILPolicy
    from qkv.models.vit import ViT
    from qkv.nn.encoder_decoder import EncoderDecoder
    from qkv.nn.transducer import Transducer
    from qkv.tasks.picture_probe import PictureAnswer
    from qkv.view import heat_map, over_patches, pick_map, save_page, save_picture_png, save_png
    from qkv.view.selection import pick_head

    network = network_of(locate(run))
    if issubclass(network, ShowAttendTell):
        raise InputError(f"{run}: holds a captioner: qkv caption {run} PICTURE --out PAGE.html shows what it looks at")
    if issubclass(network, Transducer):
        if page is not None or layer is not None or head is not None or beam > 1 or document:
            raise InputError(
                f"{run}: holds a {network.__name__}, of which a picture is drawn (--png): leave out --out, --layer, "
                "--head, --beam and --document"
            )
        view_memory(run, inputs, png, device, json=json)
        return
    if issubclass(network, SNAIL):
        if head is not None or beam > 1 or document:
            raise InputError(f"{run}: holds a {network.__name__}: leave out --head, --beam and --document")
        _episodes(run, inputs or [], count, page, png, layer, device, json)
        return
    if document and issubclass(network, ViT):
        raise InputError(f"--document is for models that read texts, and {run} holds a {network.__name__}")
    given = [*(inputs or []), *_from_files(document or [])]
    if issubclass(network, HAN) and given:
        if png is not None or layer is not None or head is not None or beam > 1:
            raise InputError(
                f"{run}: holds a {network.__name__}, whose page shows all there is: leave out --png, "
                "--layer, --head and --beam"
            )
        _documents(run, [text_of(one) for one in given], page, device, json)
        return
    if issubclass(network, EncoderDecoder):
        answers = _translated(run, given, count, beam, device)
    elif issubclass(network, SNAILPolicy):
        if beam > 1 or document:
            raise InputError(f"{run}: holds a {network.__name__}: leave out --beam and --document")
        answers = _games(run, inputs or [], count, layer, device)
    elif beam > 1:
        raise InputError(f"--beam is for translators, and {run} holds a {network.__name__}")
    elif not given:
        what = "a picture" if issubclass(network, ViT) else "a text"
        raise InputError(f"{run}: holds a {network.__name__}: say what it shall look at, {what}")
    else:
        answers = (
            _pictures(run, inputs or [], layer, device)
            if issubclass(network, ViT)
            else _read(run, given, layer, device)
        )

    first = answers[0]
    drawn = over_patches(first, layer) if isinstance(first, PictureAnswer) else pick_map(first, layer)
    pick_head(drawn, head)  # a wrong one should be told before anything is written
    written = {"page": str(save_page(answers, page or run / "attention.html"))}
    if png is not None and isinstance(first, PictureAnswer):
        written["png"] = str(save_picture_png(first, png, layer=layer, head=head))
    elif png is not None:
        written["png"] = str(save_png(first, png, layer=layer, head=head))
    if json:
        result_json(written)
        return
    source = shown(" ".join(first.source.split()), LONGEST_HEADING)
    say(f"{source}  ->  {shown(first.text)}" if first.text else source)
    result_drawn(heat_map(drawn, head=head))
    for path in written.values():
        result(path)


def _from_files(paths: Sequence[Path]) -> "list[str | Tagged]":
    """Each file is a text, but of a *.conllu each sentence, with the heads that models of trees ask for."""
    from qkv.data.files import is_parsed, read_parsed

    found: list[str | Tagged] = []
    for path in paths:
        found += read_parsed(path) if is_parsed(path) else texts.documents_given([path])
    return found


def _translated(run: Path, given: "Sequence[str | Tagged]", count: int, beam: int, device: str) -> "Sequence[Answer]":
    from qkv.tasks.translator import Search, Translator

    translator = Translator(run, device=device)
    chosen: Sequence[str | Tagged] = given or [pair.source_input for pair in pairs_of(run, None, None)[1][:count]]
    answers = [found[0] for found in translator.translate(chosen, Search(beam), attention=True)]
    texts.note_unknown({number: one.unknown for number, one in enumerate(answers, start=1) if one.unknown})
    return answers


def _read(run: Path, given: "Sequence[str | Tagged]", layer: str | None, device: str) -> "Sequence[Answer]":
    from qkv.data.tagged import text_of
    from qkv.tasks.attention_probe import AttentionProbe

    observer = AttentionProbe(run, device=device)
    texts.note_too_long(observer, [text_of(one) for one in given])
    answers = observer.probe(given, layer)
    _note_left_out(answers, len(observer.layers))
    return answers


def _documents(run: Path, given: list[str], page: Path | None, device: str, json: bool) -> None:
    from qkv.tasks.document_probe import DocumentProbe
    from qkv.view.document import document_lines, save_document_page

    observer = DocumentProbe(run, device=device)
    texts.note_too_long(observer, given)
    found = observer.probe(given)
    written = save_document_page(found, page or run / "attention.html")
    if json:
        result_json({"page": str(written)})
        return
    first = found[0]
    say(f"{shown(first.label)}  {first.probabilities[first.label]:.1%}")
    result_drawn(document_lines(first))
    result(str(written))


def _episodes(
    run: Path,
    given: list[str],
    count: int,
    page: Path | None,
    png: Path | None,
    layer: str | None,
    device: str,
    json: bool,
) -> None:
    """Episodes of the test set by their numbers, else the first so many."""
    from qkv.tasks.episode_probe import EpisodeProbe
    from qkv.view import heat_map
    from qkv.view.episode import save_episode_page, save_episode_png

    observer = EpisodeProbe(run, run_and_data(run)[1].episodes["test"], device=device)
    found = observer.probe(_numbers(run, given, count, "episodes"), layer)
    written = {"page": str(save_episode_page(found, page or run / "attention.html"))}
    if png is not None:
        written["png"] = str(save_episode_png(found[0], png))
    if json:
        result_json(written)
        return
    first = found[0]
    say(f"{first.source}: taken for {first.text}, {'right' if first.right else f'not {first.labels[-1] + 1}'}")
    result_drawn(heat_map(first.by_layer))
    for path in written.values():
        result(path)


def _games(run: Path, given: list[str], count: int, layer: str | None, device: str) -> "Sequence[Answer]":
    """Games of the test set by their numbers, else the first so many."""
    from qkv.tasks.game_probe import GameProbe

    numbers = _numbers(run, given, count, "games")
    return GameProbe(run, run_and_data(run)[1].bandits["test"], device=device).probe(numbers, layer)


def _numbers(run: Path, given: list[str], count: int, what: str) -> Sequence[int]:
    if not all(number.isdecimal() and len(number) < 10 for number in given):
        raise InputError(
            f"{run}: looks at {what} of its test set, by their numbers from 0 on, not at {shown(str(given))}"
        )
    return [int(number) for number in given] or range(count)


def _pictures(run: Path, given: list[str], layer: str | None, device: str) -> "Sequence[Answer]":
    from qkv.tasks.picture_probe import PictureProbe

    observer = PictureProbe(run, device=device)
    answers = observer.probe(given, layer)
    _note_left_out(answers, len(observer.layers))
    return answers


def _note_left_out(answers: "Sequence[Answer]", layers: int) -> None:
    """Say where a page cannot hold all layers."""
    fewest = min(len(answer.maps) for answer in answers)
    if fewest < layers:
        note(f"{layers} layers would make too large a page: it holds {fewest}, and --layer names one that it must have")
