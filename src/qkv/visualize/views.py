"""Views of attention: for each kind of model its inputs, its figures and the options of `qkv view` that it supports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from rich.console import RenderableType

from qkv.datasets.dataset import Dataset
from qkv.datasets.examples.stories import StoryQuestion
from qkv.datasets.examples.tagged import Tagged, text_of
from qkv.errors import InputError
from qkv.interpret.attention_probe import AttentionProbe
from qkv.interpret.beam_probe import BeamProbe
from qkv.interpret.document_probe import DocumentProbe
from qkv.interpret.episode_probe import EpisodeProbe
from qkv.interpret.game_probe import GameProbe
from qkv.interpret.image_probe import PictureProbe
from qkv.interpret.memory_probe import MemoryProbe, used_locations
from qkv.models.han import HAN
from qkv.models.memory.memory_network import MemoryNetwork
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.models.snail import SNAIL, SNAILPolicy
from qkv.models.vit import ViT
from qkv.nn.interfaces import EncoderDecoder, LanguageModel, SequenceModel
from qkv.pipelines.captioner import Captioner
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.parser import Parser, can_parse
from qkv.pipelines.recognizer import Recognizer
from qkv.pipelines.story_answerer import StoryAnswerer
from qkv.pipelines.translator import Translator
from qkv.runtime.text import printable
from qkv.tokenizers.sentences import split_sentences
from qkv.visualize.document_lines import document_lines
from qkv.visualize.episode_figure import save_episode_png
from qkv.visualize.explorer import document_answer, memory_answer, save_page
from qkv.visualize.figure import save_png
from qkv.visualize.image_overlay import over_patches, save_picture_png
from qkv.visualize.memory_figure import save_memory_png
from qkv.visualize.selection import pick_map
from qkv.visualize.speech_figure import save_speech_png
from qkv.visualize.story_figure import story_lines
from qkv.visualize.terminal import heat_map

MAX_HEADING = 200  # characters of the source printed above its heat map


@dataclass(frozen=True)
class ViewOptions:
    """Options of a view; one that a view does not support has its default."""

    layer: str | None = None  # layer to plot
    head: int | None = None  # head to plot; None: average
    count: int = 20  # number of test examples, if there are no inputs
    num_beams: int = 1
    max_new_tokens: int = 0
    max_lines: int | None = None  # of a figure in the terminal; None: no limit
    command: str = ""  # that the page names


class ModelKind(Protocol):
    """The attributes that select a view: of a `ModelFolder`, or of a network without one."""

    @property
    def network(self) -> type[Any]: ...

    @property
    def reads_speech(self) -> bool: ...


class View:
    """Runs a model on inputs and renders its attention; the base class is for text encoders and language models."""

    model_class: ClassVar[type[Any]] = object
    inputs: ClassVar[str] = "a text"
    reads_files: ClassVar[bool] = False  # whether the inputs are files, such as images
    default_inputs: ClassVar[bool] = False  # whether there are examples to show if no inputs are passed
    options: ClassVar[frozenset[str]] = frozenset({"document", "page", "png", "layer", "head", "compare"})
    save_png: ClassVar[Callable[..., Path]] = staticmethod(save_png)  # of one answer

    def __init__(self, run: Any, device: str, load_data: Callable[[], Dataset[Any]]) -> None:
        self.run = run  # the folder of a model, or a network
        self.device = device
        self.load_data = load_data
        self.reader: AttentionProbe | DocumentProbe | None = None  # truncates long texts
        self.layers = 0  # number of layers of the model, if a page may not hold all of them

    @property
    def model_name(self) -> str:
        """Name of the model in pages."""
        return str(self.run) if isinstance(self.run, str | Path) else type(self.run).__name__

    def default_output(self, name: str) -> Path:
        """Return the path of an output file: in the folder of the model, or here for a model with a name."""
        return self.run / name if self.run.is_dir() else Path(f"{self.run.name}-{name}")

    @classmethod
    def accepts(cls, folder: ModelKind) -> bool:
        """Return whether this is the view of a model."""
        return issubclass(folder.network, cls.model_class)

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Return the answers of the model with their attention."""
        self.reader = AttentionProbe(self.run, device=self.device)
        self.layers = len(self.reader.layers)
        return self.reader(sources, options.layer, max_new_tokens=options.max_new_tokens)

    def heading(self, answer: Any) -> str:
        """Return a line that describes an answer."""
        source = printable(" ".join(answer.source.split()), MAX_HEADING)
        return f"{source}  ->  {printable(answer.text)}" if answer.text else source

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType | None:
        """Return a figure for the terminal; raise if the layer or the head does not exist."""
        return heat_map(pick_map(answer, options.layer), head=options.head, max_lines=options.max_lines)

    def report(self, answer: Any) -> dict[str, Any]:
        """Return measurements of an answer for --json."""
        return {}

    def page_answers(self, answers: Sequence[Any]) -> Sequence[Answer]:
        """Return answers as the explorer takes them."""
        return answers

    def write(
        self,
        answers: Sequence[Any],
        page: Path | None,
        png: Path | None,
        options: ViewOptions,
        compared: "Compared | None" = None,
    ) -> dict[str, str]:
        """Write the page of all answers and the PNG of the first, and return their paths."""
        page = page or self.default_output("attention.html")
        written = {"page": str(self.write_page(answers, page, options, compared))}
        if png is not None:
            written["png"] = str(self.save_png(answers[0], png, layer=options.layer, head=options.head))
        return written

    def write_page(
        self, answers: Sequence[Any], path: Path, options: ViewOptions, compared: "Compared | None" = None
    ) -> Path:
        """Write the page of all answers; each is followed by that of a compared model to the same input."""
        name = self.model_name
        shown = [(name, answer) for answer in self.page_answers(answers)]
        if compared is not None:
            other = compared.view.model_name
            if other == name:  # two networks of one class
                shown, other = [(f"{name} (1)", answer) for _, answer in shown], f"{name} (2)"
            others = [(other, answer) for answer in compared.view.page_answers(compared.answers)]
            shown = [each for pair in zip_longest(shown, others) for each in pair if each is not None]
        models = [model for model, _ in shown]
        return save_page([answer for _, answer in shown], path, model=models, command=options.command)


class Compared(NamedTuple):
    """Another model and its answers to the same inputs."""

    view: View
    answers: Sequence[Any]


class TranslationView(View):
    """Decoding of an encoder-decoder model, translator or parser; by default of test examples."""

    model_class = EncoderDecoder
    default_inputs = True
    options = View.options | {"count", "num_beams"}

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Translate or parse the sources."""
        translator = Translator(self.run, device=self.device)
        if can_parse(translator.tokenizer):
            translator = Parser(translator.model)
        if not sources:
            splits = self.load_data().splits
            name = next((name for name in splits if name.startswith("test")), "valid")
            sources = [pair.source_input for pair in splits[name][: options.count]]
        if options.num_beams > 1 and not isinstance(translator, Parser):
            return BeamProbe(translator.model, device=self.device)(sources, num_beams=options.num_beams)
        return translator(sources, num_beams=options.num_beams, attention=True)


class LanguageModelView(View):
    """Texts that a language model has continued, with the next tokens at each step."""

    model_class = LanguageModel
    options = View.options | {"max_new_tokens"}


class SpeechView(View):
    """Transcripts of recordings, one answer per window."""

    model_class = EncoderDecoder
    inputs = "a WAV file"
    reads_files = True
    options = View.options - {"document"} | {"num_beams"}
    save_png = staticmethod(save_speech_png)

    @classmethod
    def accepts(cls, folder: ModelKind) -> bool:
        return folder.reads_speech

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Transcribe the recordings; the source of a segment names its file and time."""
        transcripts = Recognizer(self.run, device=self.device)(map(text_of, sources), num_beams=options.num_beams)
        return [
            replace(segment, source=f"{transcript.source} {segment.source} s")
            for transcript in transcripts
            for segment in transcript.segments
        ]

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType | None:
        """Return the alignment; nothing for a segment without speech, whose page shows the spectrogram."""
        chosen = options.layer is not None or options.head is not None
        return super().figure(answer, options) if answer.attention or chosen else None


class CaptionView(View):
    """Captions of images."""

    model_class = ShowAttendTell
    inputs = "an image path"
    reads_files = True
    options = View.options - {"document"} | {"num_beams"}

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Caption the images."""
        return Captioner(self.run, device=self.device)(map(text_of, sources), num_beams=options.num_beams)


class PictureView(View):
    """Self-attention of a vision Transformer over the patches of images."""

    model_class = ViT
    inputs = "an image path"
    reads_files = True
    options = View.options - {"document"}
    save_png = staticmethod(save_picture_png)

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Classify the images."""
        probe = PictureProbe(self.run, device=self.device)
        self.layers = len(probe.layers)
        return probe([text_of(source) for source in sources], options.layer)

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType:
        """Return the attention to the patches as a grid."""
        return heat_map(over_patches(answer, options.layer), head=options.head, max_lines=options.max_lines)


class DocumentView(View):
    """Sentences and words of documents, shaded by the weights of a hierarchical attention network."""

    model_class = HAN
    options = frozenset({"document", "page"})

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Classify the documents."""
        self.reader = DocumentProbe(self.run, device=self.device)
        return self.reader([text_of(source) for source in sources])

    def heading(self, answer: Any) -> str:
        """Return the label of a document."""
        return f"{printable(answer.label)}  {answer.probabilities[answer.label]:.1%}"

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType:
        """Return the sentences with their weights."""
        return document_lines(answer)

    def page_answers(self, answers: Sequence[Any]) -> Sequence[Answer]:
        """Return the documents as answers."""
        return [document_answer(document) for document in answers]


class StoryView(View):
    """Sentences of stories, with the weights of the hops of a memory network; by default of test questions."""

    model_class = MemoryNetwork
    inputs = "a story that ends with a question"
    default_inputs = True
    options = frozenset({"document", "page", "png", "count", "compare"})

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Answer the questions, by default evenly spaced ones of the test split."""
        questions = [self._question(text_of(source)) for source in sources]
        if not questions:
            test = self.load_data().splits["test"]
            questions = test[:: max(1, len(test) // options.count)][: options.count]
        answerer = StoryAnswerer(self.run, device=self.device)
        return [answerer.answer(question) for question in questions]

    def _question(self, text: str) -> StoryQuestion:
        """Return a story and its question, the last sentence of the text."""
        *story, question = split_sentences(text) or [""]
        if not story or not question.endswith("?"):
            raise InputError(f"{self.run}: expected {self.inputs}, not {printable(repr(text), MAX_HEADING)}")
        return StoryQuestion(tuple(story), question)

    def heading(self, answer: Any) -> str:
        """Return the question and the answer."""
        return f"{printable(answer.question, MAX_HEADING)}  ->  {printable(answer.text)}"

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType:
        """Return the sentences with the weights of the hops."""
        return story_lines(answer)


class NumberedView(View):
    """Test examples, by number; by default the first ones."""

    default_inputs = True

    def numbers(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[int]:
        """Parse the numbers of examples."""
        numbers = [text_of(source) for source in sources]
        if not all(number.isdecimal() and len(number) < 10 for number in numbers):
            raise InputError(f"{self.run}: expected {self.inputs} (from 0), not {printable(str(numbers))}")
        return [int(number) for number in numbers] or range(options.count)


class EpisodeView(NumberedView):
    """Test episodes of a few-shot classifier."""

    model_class = SNAIL
    inputs = "numbers of test episodes"
    options = frozenset({"page", "png", "layer", "count"})
    save_png = staticmethod(lambda episode, path, **selection: save_episode_png(episode, path))  # of all its layers

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Classify the queries of the episodes."""
        numbers = self.numbers(sources, options)
        return EpisodeProbe(self.run, self.load_data().splits["test"], self.device)(numbers, options.layer)

    def heading(self, answer: Any) -> str:
        """Return the predicted label."""
        outcome = "correct" if answer.right else f"expected {answer.labels[-1] + 1}"
        return f"{answer.source}: predicted {answer.text}, {outcome}"

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType:
        """Return the attention of the query in all layers."""
        return heat_map(answer.by_layer)


class GameView(NumberedView):
    """Test games of a bandit policy."""

    model_class = SNAILPolicy
    inputs = "numbers of test games"
    options = frozenset({"page", "png", "layer", "head", "count"})

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Play the games."""
        numbers = self.numbers(sources, options)
        return GameProbe(self.run, self.load_data().splits["test"], self.device)(numbers, options.layer)


class MemoryView(View):
    """Read and write weights of a neural Turing machine on sequences; by default of the largest training size."""

    model_class = SequenceModel
    inputs = "a sequence size"
    default_inputs = True
    options = frozenset({"page", "png", "layer", "head", "compare"})
    save_png = staticmethod(lambda trace, path, **selection: save_memory_png(trace, path))  # of all heads

    def probe(self, sources: Sequence[str | Tagged], options: ViewOptions) -> Sequence[Any]:
        """Run the model on a sequence of each size."""
        puzzle = self.load_data().splits["test"].puzzle
        sizes = [puzzle.parse_size(text_of(source)) for source in sources] or [puzzle.train_sizes[-1]]
        probe = MemoryProbe(self.run, puzzle, self.device)
        return [probe(size) for size in sizes]

    def page_answers(self, answers: Sequence[Any]) -> Sequence[Answer]:
        """Return the sequences as answers."""
        return [memory_answer(trace) for trace in answers]

    def heading(self, answer: Any) -> str:
        """Return the number of wrong bits."""
        return f"sequence of size {answer.size}: {answer.wrong} of {answer.bits} bits wrong"

    def report(self, answer: Any) -> dict[str, Any]:
        """Return the size of the sequence and the number of wrong bits."""
        return {"size": answer.size, "wrong_bits": answer.wrong, "bits": answer.bits}

    def figure(self, answer: Any, options: ViewOptions) -> RenderableType | None:
        """Return the weights of the write heads, or of another layer, over the locations in use."""
        layer, used = (
            pick_map(memory_answer(answer), options.layer),
            used_locations(answer.write_weights, answer.read_weights),
        )
        in_use = AttentionMap(layer.layer, layer.rows, tuple(map(str, used)), layer.weights[:, :, used])
        return heat_map(in_use, head=options.head, max_lines=options.max_lines)


VIEWS = (
    SpeechView,
    TranslationView,
    LanguageModelView,
    CaptionView,
    PictureView,
    DocumentView,
    StoryView,
    EpisodeView,
    GameView,
    MemoryView,
)


def find_view(folder: ModelKind) -> type[View]:
    """Return the view of a model."""
    return next((view for view in VIEWS if view.accepts(folder)), View)
