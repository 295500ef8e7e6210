"""Requests and responses of the endpoints of single tasks."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from qkv.serve.openai_schemas import ModelName, RequestBody, Truncate

Inputs = str | list[str]
MAX_CHOICES = 1000
OptionalModel = ModelName | None


class TaskRequest(RequestBody):
    """Base of the requests of single tasks."""

    model: OptionalModel = Field(default=None, description="May be omitted if only one model has this endpoint.")


class TextRequest(TaskRequest):
    """A text, or several."""

    input: Inputs = Field(description="A text or several.", examples=["A fine film."])


class TranslationRequest(TextRequest):
    """Texts to translate."""

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

    text: str
    score: float = Field(description="log p / length ** length_penalty")


class TranslatedInput(BaseModel):
    """A text with its translations, best first."""

    input: str
    translations: list[Translation]
    unknown: list[str] = Field(description="Characters or words that are not in the vocabulary.")


class TranslationResponse(BaseModel):
    """Translations of all texts."""

    model: str
    results: list[TranslatedInput]


class ClassificationRequest(TaskRequest):
    """Texts, or images, to classify."""

    input: Inputs | None = Field(default=None, description="A text or several.", examples=["A fine film."])
    image: Inputs | None = Field(
        default=None, description="For image classifiers: base64 of an image file, or of several."
    )
    truncate: Truncate = False


class ClassifiedInput(BaseModel):
    """The label of an input, and the probabilities of all labels, most probable first."""

    label: str
    probability: float
    probabilities: dict[str, float]


class ClassificationResponse(BaseModel):
    """Labels of all inputs."""

    model: str
    results: list[ClassifiedInput]


class EntityItem(BaseModel):
    """A named entity."""

    kind: str
    text: str
    start: int
    end: int


class TaggedInput(BaseModel):
    """The words of a text with their tags and offsets."""

    words: list[str]
    tags: list[str]
    offsets: list[tuple[int, int]]
    entities: list[EntityItem]


class TaggingResponse(BaseModel):
    """Tags of all texts."""

    model: str
    results: list[TaggedInput]


class AnswerRequest(TaskRequest):
    """A question about a text."""

    question: str = Field(examples=["Who sat?"])
    context: str = Field(description="The text, or the story.", examples=["The cat sat on the mat."])
    top_k: int = Field(default=1, ge=1, le=MAX_CHOICES, description="Number of candidates.")


class AnswerCandidate(BaseModel):
    """A candidate answer; one that is a span of the context has offsets."""

    text: str
    probability: float
    start: int | None = None
    end: int | None = None


class AnswerResponse(BaseModel):
    """The answer, empty if there is none, and candidates, most probable first."""

    model: str
    answer: str
    probability: float
    candidates: list[AnswerCandidate]


class CaptionRequest(TaskRequest):
    """An image to describe."""

    image: str = Field(description="Base64 of an image file (PNG, JPEG, GIF, BMP, WEBP, TIFF).")
    num_beams: int = Field(default=1, ge=1, le=16)
    num_return_sequences: int = Field(default=1, ge=1, le=16)


class CaptionResponse(BaseModel):
    """Captions, best first."""

    model: str
    captions: list[Translation]


class FillRequest(TextRequest):
    """Texts with masks."""

    input: Inputs = Field(description="A text with [MASK], or several.", examples=["The [MASK] sat on the mat."])
    top_k: int = Field(default=5, ge=1, le=MAX_CHOICES, description="Number of words for each mask.")


class GuessItem(BaseModel):
    """A word for a mask."""

    word: str
    probability: float


class FilledInput(BaseModel):
    """A text with the best words, and the words for each mask."""

    filled: str
    masks: list[list[GuessItem]]


class FillResponse(BaseModel):
    """Filled texts."""

    model: str
    results: list[FilledInput]


class AblatedHead(RequestBody):
    """A head whose output is set to zero."""

    layer: str = Field(max_length=200)
    head: int = Field(ge=0, lt=2**16)


class AttentionChanges(RequestBody):
    """What to change before attention is computed."""

    layer: str | None = Field(default=None, max_length=200, description="Layer to keep if not all fit.")
    ablate: list[AblatedHead] = Field(default=[], max_length=4096, description="Heads whose output is set to zero.")
    mask: list[Annotated[int, Field(ge=0, lt=2**20)]] = Field(
        default=[], max_length=4096, description="Indices of input tokens that are hidden from all queries."
    )


class AttentionRequestBody(TaskRequest):
    """An input whose attention is shown."""

    input: str = Field(examples=["The cat sat on the mat."])
    options: AttentionChanges = AttentionChanges()


AttentionPayload = dict[str, Any]  # see qkv.visualize.explorer
