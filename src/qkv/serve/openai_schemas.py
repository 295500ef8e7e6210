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
    stream_options: StreamOptions | None = Field(default=None, description="Options of a stream.")
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

    tokens: list[str] = Field(description="The tokens as text.", examples=[[" ", "w"]])
    token_logprobs: list[float | None] = Field(
        description="Log-probability of each token; null for the first one of a prompt.", examples=[[-0.301, -2.588]]
    )
    top_logprobs: list[dict[str, float] | None] | None = Field(
        description="The `logprobs` most likely tokens for each one.", examples=[[{" ": -0.301}, {"t": -1.574}]]
    )
    text_offset: list[int] = Field(description="Index of the first character of each token.", examples=[[0, 1]])


class Choice(BaseModel):
    """One continuation."""

    index: int = Field(description="Number of the choice, from 0.", examples=[0])
    text: str = Field(description="The continuation, after the prompt with `echo`.", examples=[" w"])
    logprobs: Logprobs | None = Field(default=None, description="With `logprobs` in the request.")
    finish_reason: Literal["stop", "length"] | None = Field(
        default=None,
        description="stop: a stop sequence or the end token; length: `max_tokens`; null: a stream goes on.",
        examples=["length"],
    )
    unknown: list[str] = Field(
        description="Characters or words of the prompt that are not in the vocabulary (not in the OpenAI API).",
        examples=[[]],
    )


class Usage(BaseModel):
    """Number of tokens."""

    prompt_tokens: int = Field(description="Of all prompts or texts.", examples=[13])
    completion_tokens: int = Field(default=0, description="New tokens of all choices.", examples=[2])
    total_tokens: int = Field(description="The sum.", examples=[15])


class Completion(BaseModel):
    """Continuations of prompts: `n` of the first prompt, then of the second, and so on."""

    id: str = Field(description="A random name of the completion.", examples=["cmpl-107de14e48fe23135de25a8f"])
    object: Literal["text_completion"] = Field(default="text_completion", description="Kind of the object.")
    created: int = Field(description="Seconds since 1970.", examples=[1767225600])
    model: str = Field(description="Name of the model.", examples=["shakespeare"])
    choices: list[Choice] = Field(description="The continuations.")
    usage: Usage | None = Field(
        default=None, description="Number of tokens; of a stream in the last chunk, with `include_usage`."
    )


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

    object: Literal["embedding"] = Field(default="embedding", description="Kind of the object.")
    index: int = Field(description="Number of the text, from 0.", examples=[0])
    embedding: list[float] | str = Field(
        description="Numbers, or base64, as `encoding_format` selects.", examples=[[0.6, -0.8]]
    )


class EmbeddingList(BaseModel):
    """The vectors of all texts."""

    object: Literal["list"] = Field(default="list", description="Kind of the object.")
    data: list[Embedding] = Field(description="One for each text.")
    model: str = Field(description="Name of the model.", examples=["minilm"])
    usage: Usage = Field(description="Number of tokens of all texts.")


class ModelCard(BaseModel):
    """A loaded model."""

    id: str = Field(description="Name of the model.", examples=["shakespeare"])
    object: Literal["model"] = Field(default="model", description="Kind of the object.")
    created: int = Field(description="When it was loaded, in seconds since 1970.", examples=[1767225600])
    owned_by: str = Field(default="qkv", description="Always qkv.", examples=["qkv"])
    kind: str = Field(description="Class of the model.", examples=["GPT2"])
    endpoints: list[str] = Field(
        description="Endpoints that the model has.", examples=[["/attention", "/v1/completions"]]
    )


class ModelList(BaseModel):
    """All loaded models."""

    object: Literal["list"] = Field(default="list", description="Kind of the object.")
    data: list[ModelCard] = Field(description="One for each model.")
