"""Requests and responses of the endpoints of single tasks."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from qkv.serve.openai_schemas import ModelName, RequestBody, Truncate

Inputs = str | list[str]
MAX_CHOICES = 1000
OptionalModel = ModelName | None
NAME = "Name of the model."
PROBABILITY = "From 0 to 1."
START, END = "Index of its first character.", "Index after its last character."


class TaskRequest(RequestBody):
    """Base of the requests of single tasks."""

    model: OptionalModel = Field(default=None, description="May be omitted if only one model has this endpoint.")


class TextRequest(TaskRequest):
    """A text, or several."""

    input: Inputs = Field(description="A text or several.", examples=["Ada sleeps."])


class TranslationRequest(TextRequest):
    """Texts to translate."""

    input: Inputs = Field(description="A text or several.", examples=["A dog."])
    num_beams: int = Field(default=1, ge=1, le=16, description="Beam size; 1 is greedy search.")
    num_return_sequences: int = Field(default=1, ge=1, le=16, description="Translations of each text, best first.")
    length_penalty: float = Field(default=1.0, ge=0, le=10, description="Scores are log p / length ** length_penalty.")
    max_new_tokens: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None, description="By default twice the length of the text plus 50, up to the model's maximum."
    )
    prefix: str = Field(default="", max_length=10_000, description="Beginning of every translation.")
    target: str | None = Field(
        default=None, max_length=100, description="Language, for models with several target languages."
    )


class Translation(BaseModel):
    """One translation of a text."""

    text: str = Field(description="The generated text.", examples=["Ein Hund."])
    score: float = Field(description="log p / length ** length_penalty", examples=[-0.195])


class TranslatedInput(BaseModel):
    """A text with its translations, best first."""

    input: str = Field(description="The text of the request.", examples=["A dog."])
    translations: list[Translation] = Field(description="Best first.")
    unknown: list[str] = Field(description="Characters or words that are not in the vocabulary.", examples=[[]])


class TranslationResponse(BaseModel):
    """Translations of all texts."""

    model: str = Field(description=NAME, examples=["tatoeba-en-de"])
    results: list[TranslatedInput] = Field(description="One for each text.")


class ClassificationRequest(TaskRequest):
    """Texts, or images, to classify."""

    input: Inputs | None = Field(default=None, description="A text or several.", examples=["A fine film."])
    image: Inputs | None = Field(
        default=None, description="For image classifiers: base64 of an image file, or of several."
    )
    truncate: Truncate = False


class ClassifiedInput(BaseModel):
    """The label of an input, and the probabilities of all labels, most probable first."""

    label: str = Field(description="The most probable label.", examples=["positive"])
    probability: float = Field(description=PROBABILITY, examples=[0.858])
    probabilities: dict[str, float] = Field(
        description="The probability of each label, most probable first.",
        examples=[{"positive": 0.858, "negative": 0.142}],
    )


class ClassificationResponse(BaseModel):
    """Labels of all inputs."""

    model: str = Field(description=NAME, examples=["sentiment"])
    results: list[ClassifiedInput] = Field(description="One for each text or image.")


class EntityItem(BaseModel):
    """A named entity."""

    kind: str = Field(description="Its tag without the prefix B- or I-.", examples=["person"])
    text: str = Field(description="Its words.", examples=["Ada"])
    start: int = Field(description=START, examples=[0])
    end: int = Field(description=END, examples=[3])


class TaggedInput(BaseModel):
    """The words of a text with their tags and offsets."""

    words: list[str] = Field(description="The words of the text.", examples=[["Ada", "sleeps", "."]])
    tags: list[str] = Field(description="The tag of each word.", examples=[["B-person", "O", "O"]])
    offsets: list[tuple[int, int]] = Field(
        description="Indices of the first character of each word, and after its last one.",
        examples=[[[0, 3], [4, 10], [10, 11]]],
    )
    entities: list[EntityItem] = Field(description="Named entities, if the tags mark them.")


class TaggingResponse(BaseModel):
    """Tags of all texts."""

    model: str = Field(description=NAME, examples=["tagger"])
    results: list[TaggedInput] = Field(description="One for each text.")


class AnswerRequest(TaskRequest):
    """A question about a text."""

    question: str = Field(description="The question.", examples=["Who sat?"])
    context: str = Field(description="The text, or the story.", examples=["The cat sat on the mat."])
    top_k: int = Field(default=1, ge=1, le=MAX_CHOICES, description="Number of candidates.")


class AnswerCandidate(BaseModel):
    """A candidate answer; one that is a span of the context has offsets."""

    text: str = Field(description="The candidate.", examples=["The cat"])
    probability: float = Field(description=PROBABILITY, examples=[0.91])
    start: int | None = Field(default=None, description=f"Of a span: {START[0].lower()}{START[1:]}", examples=[0])
    end: int | None = Field(default=None, description=f"Of a span: {END[0].lower()}{END[1:]}", examples=[7])


class AnswerResponse(BaseModel):
    """The answer, empty if there is none, and candidates, most probable first."""

    model: str = Field(description=NAME, examples=["squad"])
    answer: str = Field(description="Empty if the text has no answer.", examples=["The cat"])
    probability: float = Field(description=PROBABILITY, examples=[0.91])
    candidates: list[AnswerCandidate] = Field(description="`top_k` candidates, most probable first.")


class CaptionRequest(TaskRequest):
    """An image to describe."""

    image: str = Field(description="Base64 of an image file (PNG, JPEG, GIF, BMP, WEBP, TIFF).")
    num_beams: int = Field(default=1, ge=1, le=16, description="Beam size; 1 is greedy search.")
    num_return_sequences: int = Field(default=1, ge=1, le=16, description="Captions, best first.")


class Caption(BaseModel):
    """One description of an image."""

    text: str = Field(description="The generated text.", examples=["a dog runs on the grass"])
    score: float = Field(description="log p / length", examples=[-0.412])


class CaptionResponse(BaseModel):
    """Captions, best first."""

    model: str = Field(description=NAME, examples=["captions"])
    captions: list[Caption] = Field(description="Best first.")


class FillRequest(TextRequest):
    """Texts with masks."""

    input: Inputs = Field(description="A text with [MASK], or several.", examples=["The [MASK] sat on the mat."])
    top_k: int = Field(default=5, ge=1, le=MAX_CHOICES, description="Number of words for each mask.")


class GuessItem(BaseModel):
    """A word for a mask."""

    word: str = Field(description="A word of the vocabulary.", examples=["cat"])
    probability: float = Field(description=PROBABILITY, examples=[0.327])


class FilledInput(BaseModel):
    """A text with the best words, and the words for each mask."""

    filled: str = Field(description="The text with the best word for each mask.", examples=["The cat sat on the mat."])
    masks: list[list[GuessItem]] = Field(description="For each mask, `top_k` words, most probable first.")


class FillResponse(BaseModel):
    """Filled texts."""

    model: str = Field(description=NAME, examples=["bert"])
    results: list[FilledInput] = Field(description="One for each text.")


class AblatedHead(RequestBody):
    """A head whose output is set to zero."""

    layer: str = Field(max_length=200, description="Name of the layer.")
    head: int = Field(ge=0, lt=2**16, description="Number of the head, from 0.")


class AttentionChanges(RequestBody):
    """What to change before attention is computed."""

    layer: str | None = Field(default=None, max_length=200, description="Layer to keep if not all fit.")
    ablate: list[AblatedHead] = Field(default=[], max_length=4096, description="Heads whose output is set to zero.")
    mask: list[Annotated[int, Field(ge=0, lt=2**20)]] = Field(
        default=[], max_length=4096, description="Indices of input tokens that are hidden from all queries."
    )


class AttentionRequestBody(TaskRequest):
    """An input whose attention is shown."""

    input: str = Field(description="The text.", examples=["The cat sat on the mat."])
    options: AttentionChanges = Field(default=AttentionChanges(), description="What to change.")


AttentionPayload = dict[str, Any]  # see qkv.visualize.explorer


class PackedWeights(BaseModel):
    """The weights of a layer, in steps of 1/65535."""

    encoding: Literal["dense", "sparse"] = Field(description="Sparse: the k largest weights of each query.")
    steps: str = Field(
        description="Base64 of little-endian uint16: heads x queries x keys; sparse: (heads and their average) x "
        "queries x k.",
        examples=["cFjVkLsWkAn1uXo8..."],
    )
    k: int = Field(default=0, description="Sparse: number of weights of each query.")
    columns: str = Field(default="", description="Sparse: the keys of the steps, base64 of little-endian uint16.")


class AttentionLayer(BaseModel):
    """The attention of a layer."""

    layer: str = Field(description="Name of the layer.", examples=["decoder.5.cross"])
    rows: int = Field(description="Index in `texts` of the tokens of the queries.", examples=[0])
    columns: int = Field(description="Index in `texts` of the tokens of the keys.", examples=[1])
    mask: int | None = Field(description="Index in `masks` of the keys that each query cannot see.", examples=[None])
    heads: int = Field(description="Number of heads.", examples=[4])
    weights: PackedWeights = Field(description="The attention weights.")
    statistics: dict[str, list[float | None]] = Field(
        description="Entropy, distance and diagonality of each head, then of the average of the heads.",
        examples=[{"entropy": [0.61, 0.58, 0.72, 0.4, 0.77]}],
    )


class AttentionExample(BaseModel):
    """An input with its attention; fields of other views of the explorer are left out here."""

    source: str = Field(description="The input.", examples=["A dog."])
    text: str = Field(description="The output, such as the translation.", examples=["Ein Hund."])
    score: float | None = Field(description="Log-probability of a generated text.", examples=[-0.195])
    unknown: list[str] = Field(description="Characters or words that are not in the vocabulary.", examples=[[]])
    texts: list[list[str]] = Field(
        description="Sequences of tokens.", examples=[[[" Ein", " Hund", "."], ["A", " dog", "."]]]
    )
    maps: list[AttentionLayer] = Field(description="The attention of each layer.")


class AttentionResponse(BaseModel):
    """What the explorer shows; only the fields for programs are described here."""

    model: str = Field(description=NAME, examples=["tatoeba-en-de"])
    notes: list[str] = Field(description="What the explorer states about the stored weights.", examples=[[]])
    examples: list[AttentionExample] = Field(description="One: the input.")
