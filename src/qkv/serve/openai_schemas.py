"""Requests and responses of the endpoints that are compatible with the OpenAI API."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_INTEGER = 2**63 - 1
ModelName = Annotated[str, Field(min_length=1, max_length=500, description="Name of a loaded model: see /v1/models.")]
Truncate = Annotated[
    bool, Field(description="Truncate texts that are longer than the maximum of the model, instead of an error.")
]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class RequestBody(BaseModel):
    """Base of all requests; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(RequestBody):
    """Options of a stream."""

    include_usage: bool = Field(default=False, description="Send a last chunk with the number of tokens.")
    include_obfuscation: bool = Field(default=False, description="Accepted for compatibility; has no effect.")


class CompletionRequest(RequestBody):
    """A prompt, or several, to continue."""

    model: ModelName
    prompt: str | list[str] | TokenIds | list[TokenIds] = Field(
        description="A text, several texts, or token ids.", examples=["To be, or not"]
    )
    max_tokens: Annotated[int, Field(ge=0, le=2**20)] | None = Field(
        default=None, description="Maximum number of new tokens; by default 16, or fewer if the context is full."
    )
    temperature: float = Field(default=1.0, ge=0, le=100, description="Softmax temperature; 0 is greedy search.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample from the tokens of this total probability.")
    top_k: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None, description="Sample from the K most likely tokens."
    )
    n: int = Field(default=1, ge=1, le=128, description="Number of samples of each prompt.")
    best_of: Annotated[int, Field(ge=1, le=128)] | None = Field(default=None, description="Must be equal to n.")
    stream: bool = Field(default=False, description="Send the text as server-sent events while it is generated.")
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="Return log-probabilities, and those of this many most likely tokens."
    )
    echo: bool = Field(default=False, description="Return the prompt before its continuation.")
    stop: (
        Annotated[str, Field(max_length=1000)]
        | Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=16)]
        | None
    ) = Field(default=None, description="Texts before which the continuation ends.")
    seed: Annotated[int, Field(ge=-MAX_INTEGER - 1, le=MAX_INTEGER)] | None = Field(
        default=None, description="Random seed; the same request with the same seed has the same answer."
    )
    presence_penalty: float = Field(default=0.0, description="Not supported: must be 0.")
    frequency_penalty: float = Field(default=0.0, description="Not supported: must be 0.")
    logit_bias: dict[str, float] | None = Field(default=None, description="Not supported: must be empty.")
    suffix: str | None = Field(default=None, description="Not supported: must be empty.")
    user: str | None = Field(default=None, description="Accepted for compatibility; has no effect.")


class Logprobs(BaseModel):
    """Log-probabilities of the tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(BaseModel):
    """One continuation."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    unknown: list[str] = Field(description="Characters or words of the prompt that are not in the vocabulary.")


class Usage(BaseModel):
    """Number of tokens."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class Completion(BaseModel):
    """Continuations of prompts: `n` of the first prompt, then of the second, and so on."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class EmbeddingRequest(RequestBody):
    """A text, or several, to embed."""

    model: ModelName
    input: str | list[str] = Field(description="A text or several.", examples=[["A dog.", "A cat."]])
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="Numbers, or base64 of little-endian float32."
    )
    dimensions: int | None = Field(default=None, description="Not supported unless it is the size of the embeddings.")
    pooling: Literal["mean", "cls", "pooler"] = Field(default="mean", description="From hidden states to one vector.")
    truncate: Truncate = False
    user: str | None = Field(default=None, description="Accepted for compatibility; has no effect.")


class Embedding(BaseModel):
    """The vector of a text, of unit length."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """The vectors of all texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A loaded model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "qkv"
    kind: str = Field(description="Class of the model.")
    endpoints: list[str] = Field(description="Endpoints that the model has.")


class ModelList(BaseModel):
    """All loaded models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
