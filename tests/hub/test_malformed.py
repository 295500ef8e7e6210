"""Fuzzing: corrupted model folders give a one-line error with little memory, or load unchanged."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.hub.families import FAMILIES
from qkv.hub.released import write_released
from qkv.models import bert, gpt2, rnn_lm, transformer, vit
from qkv.tokenizers import CharTokenizer
from tests.limits import cpu_limit, memory_limit

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MUTATIONS = 400  # of each kind of folder, of which there are five
CPU_SECONDS = 30  # far more than a load takes, far less than a hang
MEMORY = 2**30  # bytes, beyond what the process has, that none may ask for

Files = dict[str, bytes]
Header = dict[str, Any]

SMALL: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: bert.Bert(
        bert.BertConfig(vocab_size=9, head="pretraining", dim=8, heads=2, layers=1, ffn_dim=8, max_length=6)
    ),
    "gpt2": lambda: gpt2.GPT2(gpt2.GPT2Config(vocab_size=9, dim=8, heads=2, layers=1, max_length=6)),
    "vit": lambda: vit.ViT(vit.ViTConfig(classes=3, height=8, width=8, patch=4, dim=8, heads=2, layers=1, ffn_dim=8)),
    "marian": lambda: transformer.Transformer(
        transformer.TransformerConfig(
            source_vocab_size=9, target_vocab_size=9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, ffn_dim=8,
            max_length=6, norm="post", position="sinusoidal_halves", begin_token=8, end_token=0, pad_token=8,
        )
    ),
    "own": lambda: rnn_lm.RNNLM(rnn_lm.RNNLMConfig(vocab_size=7, embedding_dim=4, hidden_dim=6)),
}  # fmt: skip


def whole(kind: str, folder: Path) -> Files:
    """A valid model folder."""
    torch.manual_seed(1)
    model, tokenizer = SMALL[kind](), CharTokenizer.train(["abc"])
    if kind == "own":
        save_model(model, tokenizer, folder)
    else:
        write_released(model, FAMILIES[kind], folder)
        (folder / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def _little_memory() -> Iterator[None]:
    with memory_limit(MEMORY):
        yield


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("kind", sorted(SMALL))
def test_a_corrupted_folder_is_an_error_or_loads_unchanged(kind: str, tmp_path: Path) -> None:
    files = whole(kind, tmp_path)
    weights = dict(load(tmp_path).named_parameters())
    random = Random(f"altered {kind}")
    refused = 0
    for number in range(MUTATIONS):
        mutate = MUTATORS[number % len(MUTATORS)]
        for name, data in mutate(files, random).items():
            (tmp_path / name).write_bytes(data)
        with cpu_limit(CPU_SECONDS):
            found, error = attempt(tmp_path)
        which = f"mutation {number}, {mutate.__name__}: {error}"
        if found is not None:
            assert found.keys() == weights.keys(), which
            assert all(torch.equal(found[name], weights[name]) for name in weights), which
        else:
            refused += 1
            assert error.startswith(str(tmp_path)), which
            assert error.isprintable(), which
            assert len(error) < 1000, which
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
    assert MUTATIONS // 2 < refused < MUTATIONS


def attempt(folder: Path) -> tuple[dict[str, torch.Tensor] | None, str]:
    """Return the loaded weights or the error message; any other exception is a bug."""
    try:
        return dict(load(folder).named_parameters()), ""
    except InputError as error:
        return None, str(error)


def parted(files: Files) -> tuple[Header, bytes]:
    """Split the weights file into header and data."""
    data = files[WEIGHTS]
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def joined(header: Header | str, data: bytes) -> Files:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return {WEIGHTS: len(text).to_bytes(8, "little") + text + data}


def tensor(header: Header, random: Random) -> str:
    return random.choice([name for name in header if name != "__metadata__"])


def cut_short(files: Files, random: Random) -> Files:
    name = random.choice(sorted(files))
    return {name: files[name][: random.randrange(len(files[name]))]}


def made_longer(files: Files, random: Random) -> Files:
    name = random.choice(sorted(files))
    return {name: files[name] + random.randbytes(random.randint(1, 40))}


def header_flipped(files: Files, random: Random) -> Files:
    """Flip bits in the header or its length."""
    data = bytearray(files[WEIGHTS])
    end = 8 + int.from_bytes(data[:8], "little")
    for _ in range(random.choice((1, 1, 1, 2, 5, 50))):
        data[random.choice((random.randrange(8), random.randrange(end)))] ^= 1 << random.randrange(8)
    return {WEIGHTS: bytes(data)}


def text_flipped(files: Files, random: Random) -> Files:
    """Flip bits in a JSON file."""
    name = random.choice([name for name in sorted(files) if name != WEIGHTS])
    data = bytearray(files[name])
    for _ in range(random.choice((1, 1, 2, 5))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return {name: bytes(data)}


def tensor_lost(files: Files, random: Random) -> Files:
    """Remove a tensor with its data, keeping the file consistent."""
    header, data = parted(files)
    start, end = header.pop(tensor(header, random))["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - start) for offset in entry["data_offsets"]]
    return joined(header, data[:start] + data[end:])


def tensor_added(files: Files, random: Random) -> Files:
    header, data = parted(files)
    name = random.choice(["x", "", "a\nb", "__class__", "../x", "\ud800", "é" * 500, tensor(header, random) + "2"])
    entry = {"dtype": random.choice(["F32", "I32", "F4"]), "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    return joined({**header, name: entry}, data + bytes(4))


def tensor_renamed(files: Files, random: Random) -> Files:
    header, data = parted(files)
    name = tensor(header, random)
    other = random.choice([name[1:], name + "\x00", name.upper(), f"module.{name}", name.replace(".", "/")])
    return joined({other if key == name else key: entry for key, entry in header.items()}, data)


def reshaped(files: Files, random: Random) -> Files:
    """Change a shape, keeping or breaking the number of elements."""
    header, data = parted(files)
    entry = header[tensor(header, random)]
    shape = entry["shape"]
    wrong: list[Any] = [[*shape, 1], [1, *shape], shape[:-1], [*shape, 0], [10**12], [-1, -1], [2**62, 4], [1e3], "ab"]
    wrong += [[*shape[1:], shape[0], 1], [[1]], [True], None, {}, [1] * 10_000, [int("9" * 4000)], [str(shape[0])]]
    entry["shape"] = random.choice(wrong)
    return joined(header, data)


def other_numbers(files: Files, random: Random) -> Files:
    header, data = parted(files)
    entry = header[tensor(header, random)]
    entry["dtype"] = random.choice(
        ["F16", "BF16", "F64", "I32", "U8", "BOOL", "C64", "F8_E4M3", "f32", "", None, 3, []]
    )
    return joined(header, data)


def moved(files: Files, random: Random) -> Files:
    """Make tensors overlap, leave gaps, or exceed the file."""
    header, data = parted(files)
    entry = header[tensor(header, random)]
    start, end = entry["data_offsets"]
    by = random.choice([-4, 4, -1, 1, 10**12, -(10**12), 2**63, len(data)])
    wrong: list[Any] = [[start + by, end + by], [start, end + by], [end, start], [0, end - start], [start], None, {}]
    wrong += [[str(start), end], [start, float(end)], [start, end, end], [None, None], [start, 10**400]]
    entry["data_offsets"] = random.choice(wrong)
    return joined(header, data)


def said_twice(files: Files, random: Random) -> Files:
    """Duplicate a key with the same or another value."""
    if random.random() < 0.5:
        config = json.loads(files[CONFIG])
        key = random.choice(sorted(config))
        again = json.dumps(random.choice([config[key], 3]))
        return {CONFIG: files[CONFIG].rstrip()[:-1] + f", {json.dumps(key)}: {again}}}".encode()}
    header, data = parted(files)
    name = tensor(header, random)
    return joined(f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(header[name])}}}", data)


def no_number(files: Files, random: Random) -> Files:
    header, data = parted(files)
    start, end = header[tensor(header, random)]["data_offsets"]
    offset = random.randrange(start, end, 4)
    value = torch.tensor([random.choice([torch.nan, torch.inf, -torch.inf])]).view(torch.uint8)
    return joined(header, data[:offset] + bytes(value.tolist()) + data[offset + 4 :])


def config_changed(files: Files, random: Random) -> Files:
    """Replace a value by one of unexpected size or type."""
    config = json.loads(files[CONFIG])
    odd: list[Any] = [10**12, 2**24, 2**63, 10**400, -1, 0, 1, 3, 1.5, 1e300, float("nan"), float("inf")]
    odd += [
        "8",
        "",
        "x\ny",
        "os.system",
        "../../x",
        None,
        True,
        False,
        [],
        [8],
        [8, 8, 8],
        {},
        {"a": 1},
        [[[]]],
        "é" * 9,
    ]
    for key in random.sample(sorted(config), random.choice((1, 1, 1, 2))):
        config[key] = random.choice(odd)
    return {CONFIG: json.dumps(config).encode()}


def config_huge(files: Files, random: Random) -> Files:
    """Change all sizes at once."""
    size = random.choice([10**12, 2**24, 2**20, 2**31, 1024])
    config = json.loads(files[CONFIG])
    sizes = [key for key, value in config.items() if type(value) is int]
    return {
        CONFIG: json.dumps(config | dict.fromkeys(random.sample(sizes, random.randint(1, len(sizes))), size)).encode()
    }


def config_shorter_or_longer(files: Files, random: Random) -> Files:
    config = json.loads(files[CONFIG])
    if random.random() < 0.5:
        del config[random.choice(sorted(config))]
    else:
        config[random.choice(["auto_map", "x" * 5000, "__class__", "quantization_config", "is_decoder"])] = True
    return {CONFIG: json.dumps(config).encode()}


def config_deep(files: Files, random: Random) -> Files:
    depth = random.choice([10, 500, 5_000, 100_000])
    opened, closed = random.choice([("[", "]"), ('{"a":', "}")])
    deep = opened * depth + ("1" + closed * depth if random.random() < 0.5 else "")
    return {random.choice([CONFIG, TOKENIZER]): b'{"model_type": ' + deep.encode() + b"}"}


def tokenizer_crafted(files: Files, random: Random) -> Files:
    """Replace tokenizer.json."""
    model: dict[str, Any] = {"type": "WordLevel", "vocab": {"<pad>": 0, "<unk>": 1}, "unk_token": "<unk>"}
    crafted: list[Any] = [
        {}, [], None, 7, "x", {"model": {}}, {"version": "9.0", "model": model},
        {"model": model | {"vocab": {"a": -1}}}, {"model": model | {"vocab": {"a": 2**31}}},
        {"model": model | {"vocab": {"a": 10**12}}}, {"model": model | {"type": "Pickle"}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"], "dropout": 7}},
        {"model": {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 9}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "max_input_chars_per_word": -1}},
        {"model": model, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}},
        {"model": model, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Removed"}},
        {"model": model, "normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}},
        {"model": model, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": model, "added_tokens": [{"id": 10**9, "content": "a", "special": True}]},
        {"model": model, "truncation": {"max_length": 0, "stride": 5}},
        {"model": model, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}},
    ]  # fmt: skip
    data = random.choice([random.randbytes(50), json.dumps(random.choice(crafted)).encode()])
    return {TOKENIZER: data}


MUTATORS = [
    cut_short, made_longer, header_flipped, text_flipped, tensor_lost, tensor_added, tensor_renamed, reshaped,
    other_numbers, moved, said_twice, no_number, config_changed, config_huge, config_shorter_or_longer, config_deep,
    tokenizer_crafted, header_flipped, config_changed,
]  # fmt: skip
