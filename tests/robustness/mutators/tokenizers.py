"""Small tokenizer files that take a lot of time or memory to load or to use."""

import json
from typing import Any

from tests.robustness.mutators.registry import Target, mutator

TOKENIZER = ("tokenizer.json", "target_tokenizer.json")
LONG_WORD = "q" * 50_000


def _edit(target: Target, changed: dict[str, Any], done: str) -> str:
    document = json.loads(target.path.read_bytes())
    target.path.write_text(json.dumps(document | changed))
    return done


def _multiply(times: int, steps: int) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times} for _ in range(steps)]


def _sizes(target: Target) -> tuple[int, int]:
    return target.random.choice([(64, 5), (10, 9), (2, 30), (1000, 3), (10**6, 2), (4, 200)])


@mutator("tokenizer", *TOKENIZER)
def normalizers_that_multiply(target: Target) -> str:
    times, steps = _sizes(target)
    steps_of_it = [{"type": "Prepend", "prepend": "a"}, *_multiply(times, steps)]
    return _edit(
        target, {"normalizer": {"type": "Sequence", "normalizers": steps_of_it}}, f"{steps} times a -> {times} a"
    )


@mutator("tokenizer", *TOKENIZER)
def decoders_that_multiply(target: Target) -> str:
    times, steps = _sizes(target)
    return _edit(
        target,
        {"decoder": {"type": "Sequence", "decoders": [*_multiply(times, steps)]}},
        f"decoder: {steps} times a -> {times} a",
    )


@mutator("tokenizer", *TOKENIZER)
def slow_regular_expression(target: Target) -> str:
    pattern = target.random.choice(["(a*)*b", "(x+x+)+y", "(", "[", "\\p{Nope}", "(?<=a*)b", "a{1,100000}", "(?R)"])
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _edit(target, {"pre_tokenizer": step}, f"split at {pattern}")


@mutator("tokenizer", *TOKENIZER)
def odd_normalizer(target: Target) -> str:
    step = target.random.choice(
        [
            {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="},
            {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAA=="},
            {"type": "Replace", "pattern": {"Regex": ""}, "content": "xx"},
            {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 60},
            {"type": "Prepend", "prepend": "a" * 1_000_000},
            {"type": "Strip", "strip_left": True},
            {"type": "Nope"},
            {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 5000},
        ]
    )
    return _edit(target, {"normalizer": step}, f"normalizer {json.dumps(step)[:60]}")


@mutator("tokenizer", *TOKENIZER)
def odd_added_tokens(target: Target) -> str:
    def token(number: Any, content: Any) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": number, "content": content, "special": True, **flags}

    added = target.random.choice(
        [
            [token(10**9, "zz")], [token(-1, "zz")], [token(2**32 - 1, "zz")], [token(0, "")],
            [token(5, "a"), token(5, "b")],
            [token(1000 + number, f"t{number}") for number in range(20_000)], [token(3, "\x1b[31m")], [token("1", "a")],
        ]
    )  # fmt: skip
    return _edit(target, {"added_tokens": added}, f"{len(added)} added tokens, the first {json.dumps(added[0])[:60]}")


@mutator("tokenizer", *TOKENIZER)
def odd_token_numbers(target: Target) -> str:
    document = json.loads(target.path.read_bytes())
    vocabulary = document.get("model", {}).get("vocab")
    number = target.random.choice([-1, 2**31, 2**32, 10**12, 1.5, "1", None, 0, 10**400])
    if isinstance(vocabulary, dict) and vocabulary:
        vocabulary[target.random.choice(sorted(vocabulary))] = number
    target.path.write_text(json.dumps(document))
    return f"a token with the number {number!r}"[:80]


@mutator("tokenizer", "*.txt", *TOKENIZER)
def long_words(target: Target) -> str:
    """A word of 50,000 letters to read, for a tokenizer that does not stop at the usual length."""
    if target.path.name in TOKENIZER:
        document = json.loads(target.path.read_bytes())
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        vocabulary = document["model"].get("vocab", {})
        if isinstance(vocabulary, dict):
            changed = model | {"vocab": vocabulary, "max_input_chars_per_word": 2**62}
            target.path.write_text(json.dumps(document | {"model": changed, "pre_tokenizer": {"type": "Whitespace"}}))
    elif target.path.name == "vocab.txt":
        settings = target.path.with_name("tokenizer_config.json")
        document = json.loads(settings.read_bytes()) if settings.exists() else {}
        settings.write_text(json.dumps(document | {"max_input_chars_per_word": 2**62}))
        target.path.write_text(target.path.read_text() + "".join(f"##{'q' * n}\n" for n in (1, 2, 40_000)))
    for lines in target.sandbox.input.glob("lines.txt"):
        lines.write_text(f"{lines.read_text()}the {LONG_WORD} king\n")
    return "max_input_chars_per_word 2^62, and a word of 50,000 letters to read"


@mutator("tokenizer", "vocab.txt", "merges.txt")
def large_vocabulary_file(target: Target) -> str:
    line = "x{} y{}\n" if target.path.name == "merges.txt" else "w{}{}\n"
    count = target.random.choice([1000, 300_000, 3_000_000])
    with target.path.open("a") as file:
        file.writelines(line.format(number, number) for number in range(count))
    return f"{count:,} more lines"


@mutator("tokenizer", "*.spm", "*.model")
def sentencepiece_field(target: Target) -> str:
    """Extend the protocol buffer: later fields replace or add to what is there."""
    added = target.random.choice(
        [
            b"\x0a\x09\x0a\x02qq\x15\xff\xff\x7f\x7f", b"\x0a\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x02\x18\x09",
            b"\x1a\x06\x12\x04\xff\xff\xff\x7f", b"\x0a\x07\x0a\x05\xff\xfe\xfd\xfc\xfb",
            b"\x0a\x04\x0a\x02aa" * 50_000,
        ]
    )  # fmt: skip
    target.path.write_bytes(target.path.read_bytes() + added)
    return f"append {len(added)} bytes {added[:10]!r}"
