"""Tokenizer files crafted to exhaust memory or time are rejected, and released tokenizers are accepted."""

import base64
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers import BPETokenizer, TrainedTokenizer
from qkv.tokenizers.library import PretrainedTokenizer
from qkv.tokenizers.limits import MAX_GROWTH, RELEASED_PATTERNS, check_tokenizer_json, encoding_growth
from qkv.tokenizers.pretrained import read_tokenizer

Json = dict[str, Any]

# Reads each tokenizer folder in a forked process with 3 GB of address space and 20 s of processor time.
WORKER = """
import json, os, resource, sys
from pathlib import Path
from qkv.tokenizers.pretrained import read_tokenizer
from qkv.errors import InputError
for folder in sorted(Path(sys.argv[1]).iterdir()):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9, 3 * 10**9))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            kind, *text = (folder / "kind").read_text().split(" ", 1)
            tokenizer = read_tokenizer(folder, kind)
            tokenizer = tokenizer.source
            ids = tokenizer.encode(text[0] if text else "the king of aaaa " * 8)
            tokenizer.decode(ids or [0])
            os._exit(0)
        except InputError as error:
            os._exit(2)
        except BaseException as error:
            os._exit(1)
    print(json.dumps([folder.name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)
"""


def model(**changes: Any) -> Json:
    return {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "the": 2}, "unk_token": "[UNK]"} | changes


def replace(pattern: str, content: str, kind: str = "String") -> Json:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def nested(steps: list[Json], key: str = "normalizers", depth: int = 1) -> Json:
    step: Json = {"type": "Sequence", key: steps}
    for _ in range(depth - 1):
        step = {"type": "Sequence", key: [step]}
    return step


def added(count: int, length: int, **changes: Any) -> list[Json]:
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return [token | {"id": 3 + n, "content": f"{n:08d}" + "a" * (length - 8), **changes} for n in range(count)]


def charsmap(key: str, replacement: str) -> Json:
    """Return a charsmap with one entry, as a Darts trie: root, node and leaf."""
    units = [0] * 512
    units[0] = 256 << 10  # the children of the root are at 256 ^ character
    node = 256 ^ ord(key)
    leaf = 1
    units[node] = (node ^ leaf) << 10 | 1 << 8 | ord(key)
    units[leaf] = 1 << 31
    data = struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + replacement.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def template(single: list[Json], tokens: Json | None = None) -> Json:
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens or {}}


TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}
TOKEN = {"SpecialToken": {"id": "a", "type_id": 0}}
LONG = "a" * 64
WORDPIECE = model(type="WordPiece", max_input_chars_per_word=100, continuing_subword_prefix="##")
DECODING = {"model": model(vocab={"[UNK]": 0, "a" * 60: 1, "the": 2})}

# What tokenizer.json has besides a model; each must be refused.
BOMBS: dict[str, Json] = {
    "replacements multiply": {"normalizer": nested([replace("a", LONG)] * 5)},
    "replacements multiply, deep": {"normalizer": nested([nested([replace("a", LONG)]) for _ in range(6)], depth=9)},
    "doubling": {"normalizer": nested([replace("a", "aa")] * 40)},
    "ping-pong": {"normalizer": nested([replace("a", "bb"), replace("b", "aa")] * 20)},
    "empty pattern": {"normalizer": nested([replace("", "aaaa")] * 12)},
    "expression matches everywhere": {"normalizer": nested([replace("x*", "aaaa", "Regex")] * 12)},
    "expression for any character": {"normalizer": nested([replace(".", "aaaa", "Regex")] * 16)},
    "prepend and replace": {"normalizer": nested([{"type": "Prepend", "prepend": LONG}, replace("a", LONG)] * 5)},
    "unicode between replacements": {"normalizer": nested([replace("\u0635", "\ufdfa"), {"type": "NFKD"}] * 30)},
    "bytes of bytes": {"normalizer": nested([{"type": "ByteLevel"}] * 40)},
    "table of characters": {"normalizer": nested([charsmap("a", "a" * 60)] * 6)},
    "table with a long entry": {"normalizer": charsmap("a", "a" * 10**6)},
    "bytes in the pre-tokenizer": {
        "pre_tokenizer": nested(
            [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 30,
            "pretokenizers",
        )
    },
    "metaspaces": {
        "pre_tokenizer": nested(
            [
                {"type": "Metaspace", "replacement": char, "prepend_scheme": "always", "split": True}
                for char in "abcdef" * 6
            ],
            "pretokenizers",
        )
    },
    "both": {
        "normalizer": nested([replace("a", LONG)] * 2),
        "pre_tokenizer": nested(
            [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}] * 8, "pretokenizers"
        ),
    },
    "many steps": {"normalizer": nested([{"type": "NFC"}] * 1000)},
    "step without a type": {"normalizer": {"pattern": {"String": "a"}, "content": "a" * 10**6}},
    "sequence without a type": {"normalizer": {"normalizers": [replace("a", LONG)] * 5}},
    "unknown step": {"normalizer": {"type": "Repeat", "times": 10**9}},
    "the text many times": {"post_processor": template([TEXT_A] * 10**5)},
    "the text twice, twice, ...": {"post_processor": nested([template([TEXT_A, TEXT_A])] * 30, "processors")},
    "many special tokens": {
        "post_processor": template([TEXT_A, *[TOKEN] * 10**5], {"a": {"id": "a", "ids": [1], "tokens": ["a"]}})
    },
    "special token of many ids": {
        "post_processor": template(
            [TEXT_A, *[TOKEN] * 50], {"a": {"id": "a", "ids": [1] * 10**4, "tokens": ["a"] * 10**4}}
        )
    },
    "decoder multiplies": {"decoder": nested([replace("a", LONG)] * 6, "decoders"), **DECODING},
    "decoder multiplies by expressions": {
        "decoder": nested([replace("x*", "aaaa", "Regex")] * 12, "decoders"),
        **DECODING,
    },
    "decoder with an empty suffix": {
        "decoder": nested([{"type": "BPEDecoder", "suffix": ""}] * 40, "decoders"),
        **DECODING,
    },
    "decoder with an empty delimiter": {
        "decoder": nested(
            [{"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "", "cleanup": False}] * 40, "decoders"
        ),
        **DECODING,
    },
    "added tokens that grow": {"normalizer": nested([replace("a", LONG)]), "added_tokens": added(3000, 900)},
    "added token of megabytes": {"added_tokens": added(1, 9 * 10**6)},
    "words of any length": {"model": WORDPIECE | {"max_input_chars_per_word": 2**62}},
    "long prefix of pieces": {"model": WORDPIECE | {"continuing_subword_prefix": "#" * 10**6}},
    "long suffix": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "a" * 10**6}},
    "long token": {"model": model(vocab={"[UNK]": 0, "a" * 10**6: 1})},
    "unigram trie": {
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [["<unk>", 0.0], *([f"{n:09d}" * 100, -1.0] for n in range(15_000))],
        }
    },
}
EXPRESSIONS = [  # of exponential, cubic or quadratic time, or of a large program
    r"(a*)*b",
    r"(a+)+$",
    r"(a|a)*b",
    r"(a|aa)+$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"\s*\s*\s*\s*x",
    r" +$",
    r"a*[bc]",
    r"(.*)\1",
    r"a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaaaaaaaaaaaaaaaab",
    r"(a|a)(a|a)(a|a)(a|a)b",
    r"a{1,99}a{1,99}a{1,99}b",
    r"((a{99}){99}){99}",
    r"a{100000}",
    r"(?=(a+))a*b",
    r"a+(?!\S)",
    r"(?<=a.*)b",
    r"\p{L}+\p{L}+x",
    "[a-z&&[^a]]+b",
]


def write(folder: Path, files: dict[str, str], kind: str = "bert") -> None:
    folder.mkdir()
    for name, text in (files | {"kind": kind}).items():
        (folder / name).write_text(text, encoding="utf-8")


def tokenizer_json(parts: Json) -> str:
    return json.dumps({"model": model()} | parts)


def bombs(folder: Path) -> list[str]:
    """Write one folder for each bomb and return their names."""
    for number, parts in enumerate(BOMBS.values()):
        write(folder / f"{number:03d}", {"tokenizer.json": tokenizer_json(parts)})
    spm = "▁the \x01" * 10**6
    texts: dict[str, tuple[dict[str, str], str]] = {
        "vocab.txt of many lines": ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]\n" + "\n".join(map(str, range(2**20)))}, "bert"),
        "vocab.txt of a long line": ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]\n" + "a" * 10**7}, "bert"),
        "vocab.json of many values": ({"vocab.json": "[" + "[]," * 2**22 + "[]]", "merges.txt": ""}, "gpt2"),
        "tokenizer.json of many values": ({"tokenizer.json": '{"model": [' + "{}," * 2**22 + "{}]}"}, "bert"),
        "key twice": ({"tokenizer.json": '{"normalizer": null, "normalizer": null, "model": null}'}, "bert"),
        "deep": ({"tokenizer.json": '{"normalizer":' * 10**5}, "bert"),
        "no protocol buffer": (
            {"source.spm": spm, "target.spm": spm, "vocab.json": '{"</s>": 0, "<unk>": 1}'},
            "marian",
        ),
    }
    for number, (files, kind) in enumerate(texts.values(), len(BOMBS)):
        write(folder / f"{number:03d}", files, kind)
    return [*BOMBS, *texts]


def run(folder: Path) -> list[int]:
    """Return the exit codes: 0 for a tokenizer that was used, 2 for a rejected one."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line)[1] for line in ran.stdout.splitlines()]


def test_bombs_are_rejected_within_little_memory_and_time(tmp_path):
    names = bombs(tmp_path)
    assert {name: code for name, code in zip(names, run(tmp_path), strict=True) if code != 2} == {}


def test_the_largest_accepted_growth_is_affordable(tmp_path):
    pieces = model(vocab={"[UNK]": 0, "a": 1}, type="BPE", merges=[])
    ones = nested([split("[\\s\\S]")], "pretokenizers")
    within: dict[str, Json] = {
        "one long word": {"normalizer": nested([replace("a", "a" * 45)] * 2), "model": pieces},
        "many short ones": {"normalizer": nested([replace("a", "a" * 45)] * 2), "pre_tokenizer": ones},
        "spaces": {
            "normalizer": nested([replace("a", " " * 45)]),
            "pre_tokenizer": split(sorted(RELEASED_PATTERNS)[0]),
        },
        "added tokens": {"added_tokens": added(3000, 900)},
        "pieces of long words": {
            "model": WORDPIECE | {"max_input_chars_per_word": 1000, "vocab": {"[UNK]": 0, "a": 1, "##a": 2}}
        },
    }
    for number, parts in enumerate(within.values()):
        text = "a" * 300 if number < 2 else "a" * 990 + " the king"
        write(tmp_path / str(number), {"tokenizer.json": tokenizer_json(parts)}, f"bert {text}")
    assert dict(zip(within, run(tmp_path), strict=True)) == dict.fromkeys(within, 0)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("step", ["normalizer", "pre_tokenizer", "decoder"])
def test_superlinear_regular_expressions_are_rejected(expression, step):
    part = split(expression) if step == "pre_tokenizer" else replace(expression, "a", "Regex")
    with pytest.raises(ValueError, match="expression"):
        check_tokenizer_json({"model": model(), step: part})


@pytest.mark.parametrize(
    "expression",
    [
        *sorted(RELEASED_PATTERNS),
        r"[\s\S]",
        r"▁?\w+|▁?[^\w▁]|▁",
        " {2,}",
        r"\s+",
        r"\d{3}",
        r"[0-9]{1,3}",
        r"\p{N}{1,3}",
        r"[A-Za-z]+|[^A-Za-z\s]+",
        r"[一-龥ぁ-ゟ゠-ヿ]+",
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    ],
)
def test_expressions_of_released_tokenizers_are_accepted_and_linear(tmp_path, expression):
    tokenizer = PretrainedTokenizer.from_json(tokenizer_json({"pre_tokenizer": split(expression)}), "here")
    for text in ("a", " ", "A", "1", "!", "\n", "字", "a ", " \n", "Aa"):
        tokenizer.encode(text * (30_000 // len(text)) + "x")


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "growth"),
    [
        ([{"type": "BertNormalizer"}], {"type": "BertPreTokenizer"}, 7.5),
        ([], {"type": "ByteLevel", "add_prefix_space": False}, 2),
        ([{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")], None, 12),  # Llama
        ([charsmap("a", "b" * 33), replace(" {2,}", " ", "Regex")], {"type": "Metaspace", "replacement": "▁"}, 132),
        ([replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}], None, 16.5),
    ],
)
def test_the_growth_of_released_tokenizers_is_within_the_bound(normalizer, pre_tokenizer, growth):
    assert encoding_growth(nested(normalizer), pre_tokenizer) == pytest.approx(growth)
    assert growth < MAX_GROWTH


@pytest.mark.parametrize("text", ["a", "a" * 50, "a b c", "ﷺ" * 9, "İȺ" * 9, "字" * 9, "ΐ" * 9, "\U0001d160" * 9])
@pytest.mark.parametrize(
    "name", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "ByteLevel", "Nmt"]
)
def test_no_step_grows_more_than_is_assumed(name, text):
    from tokenizers import normalizers

    step = getattr(normalizers, name)()
    assert len(step.normalize_str(text).encode()) <= encoding_growth({"type": name}, None) * len(text.encode())


@pytest.mark.parametrize(
    "step",
    [
        replace("a", "bcd"),
        replace("", "bc"),
        replace("x*", "bc", "Regex"),
        charsmap("a", "bcdef"),
        {"type": "Prepend", "prepend": "▁▁"},
    ],
)
def test_replacements_grow_as_computed(step):
    tokenizer = PretrainedTokenizer.from_json(tokenizer_json({"normalizer": step}), "here").backend
    for text in ("a", "aaaa", "bab"):
        grown = len(tokenizer.normalizer.normalize_str(text).encode())
        assert grown <= encoding_growth(step, None) * len(text)
    assert len(tokenizer.normalizer.normalize_str("a").encode()) == encoding_growth(step, None)


def test_long_texts_are_rejected_for_tokenizers_with_large_growth():
    tokenizer = PretrainedTokenizer.from_json(tokenizer_json({"normalizer": replace("a", LONG)}), "here")
    assert tokenizer.max_bytes is not None
    assert len(tokenizer.encode("b" * tokenizer.max_bytes)) == 1
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_with_offsets(["a", text])):
        with pytest.raises(InputError, match="bytes"):
            encode("b" * (tokenizer.max_bytes + 1))


def test_trained_vocabularies_take_any_length_and_crafted_ones_are_rejected():
    tokenizer = BPETokenizer.train(["a b c"], vocab_size=20, lowercase=True)
    read = TrainedTokenizer.from_json(tokenizer.to_json(), "here")
    assert read.encode("a b") == tokenizer.encode("a b")
    crafted = json.loads(tokenizer.to_json()) | {"normalizer": replace("a", LONG)}
    with pytest.raises(CheckpointError, match="times"):
        TrainedTokenizer.from_json(json.dumps(crafted), "here")


def test_a_run_of_spaces_takes_a_sentencepiece_tokenizer_linear_time(tmp_path):
    pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    from qkv.tokenizers.sentencepiece import sentencepiece_tokenizer

    model = pb2.ModelProto()
    for text, score, kind in (("<unk>", 0.0, 2), ("▁a", -1.0, 1), ("▁", -2.0, 1)):
        model.pieces.add(piece=text, score=score, type=kind)
    tokenizer = PretrainedTokenizer(sentencepiece_tokenizer(model.SerializeToString(), "here"))
    assert tokenizer.encode("  a" + " " * 100_000 + "a  ") == [1, 1]


@pytest.mark.slow
def test_a_vocabulary_of_many_tokens_is_read(tmp_path):
    """As large as LaBSE, the largest vocabulary of a released BERT."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", *map(str, range(501_150))]))
    tokenizer = read_tokenizer(tmp_path, "bert")
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert len(tokenizer) == 501_153
