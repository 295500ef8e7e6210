"""Sample outputs of language models, shown while training."""

from collections.abc import Sequence
from typing import Any

from qkv.nn.interfaces import LanguageModel
from qkv.pipelines.generator import Generator
from qkv.tasks.base.task import Sample
from qkv.tokenizers import Tokenizer

PROMPT, NEW_TOKENS = 16, 32  # tokens
TEMPERATURE = 0.8


def continuations(model: LanguageModel[Any], tokenizer: Tokenizer, texts: Sequence[Any]) -> list[Sample]:
    """Sample a continuation of the first tokens of each text (token ids); the reference is the text itself."""
    limit = PROMPT + NEW_TOKENS if model.max_length is None else min(PROMPT + NEW_TOKENS, model.max_length)
    prompt_length = min(PROMPT, limit // 2)
    decode = tokenizer.target.decode
    pairs = [
        (decode([*map(int, text[:prompt_length])]), decode([*map(int, text[prompt_length:limit])])) for text in texts
    ]
    pairs = [(prompt, reference) for prompt, reference in pairs if prompt]
    generator = Generator(model, tokenizer, use_engine=False)
    new_tokens = limit - prompt_length - 1  # the tokenizer may add a special token to the prompt
    answers = generator([prompt for prompt, _ in pairs], max_new_tokens=new_tokens, temperature=TEMPERATURE)
    return [Sample(prompt, answer.continuation, text) for (prompt, text), answer in zip(pairs, answers, strict=True)]
