"""Whisper as transformers and CTranslate2 store it: what they compute, qkv computes."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub.conversion import convert
from qkv.hub.families.ctranslate2 import weights
from qkv.models.whisper import Whisper, sinusoids

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 30, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_source_positions": 15,
         "max_target_positions": 16, "num_mel_bins": 8, "decoder_start_token_id": 28, "pad_token_id": 27,
         "eos_token_id": 27, "bos_token_id": 27, "suppress_tokens": [3, 4], "begin_suppress_tokens": [5, 27],
         "attn_implementation": "eager"}  # fmt: skip
NAMES = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]  # 27 to 29


def theirs(**changes: Any) -> Any:
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SMALL | changes)).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:  # which the table of sines and cosines does not
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 8, 30, generator=generator), torch.randint(0, 27, (2, 7), generator=generator)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"activation_function": "relu", "encoder_layers": 1}], ids=["gelu", "relu"])
def test_logits_and_attention_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = theirs(**changes)
    model.save_pretrained(tmp_path)
    features, target = batch()
    expected = model(input_features=features, decoder_input_ids=target, output_attentions=True, use_cache=False)
    ours = qkv.load(tmp_path)
    with qkv.watch(ours) as seen:
        close(ours(features.transpose(1, 2), target), expected.logits)
    shown = {f"encoder.{number}": weights for number, weights in enumerate(expected.encoder_attentions)}
    shown |= {f"decoder.{number}.self": weights for number, weights in enumerate(expected.decoder_attentions)}
    shown |= {f"decoder.{number}.cross": weights for number, weights in enumerate(expected.cross_attentions)}
    assert set(seen) == set(shown)
    for layer, weight in shown.items():
        close(seen[layer].weights, weight)


def test_the_config_and_the_positions_are_those_of_transformers(tmp_path: Path) -> None:
    model = theirs()
    model.config.forced_decoder_ids = [[1, None], [2, 25]]
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"forced_decoder_ids": [[1, None], [2, 25]]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = qkv.load(tmp_path)
    assert (ours.config.begin_token, ours.config.end_token, ours.config.prompt_tokens) == (28, 27, (29, 25))
    assert (ours.config.suppress_tokens, ours.config.begin_suppress_tokens) == ((3, 4), (5, 27))
    close(sinusoids(15, 24), model.model.encoder.embed_positions.weight)


@torch.no_grad()
def test_transformers_reads_what_qkv_writes(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "back", "hf")
    features, target = batch()
    read = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    expected = qkv.load(tmp_path / "theirs")(features.transpose(1, 2), target)
    close(read(input_features=features, decoder_input_ids=target).logits, expected)
    assert qkv.load(tmp_path / "back").config == qkv.load(tmp_path / "theirs").config


@pytest.mark.parametrize("changes", [{"scale_embedding": True}, {"decoder_ffn_dim": 24}], ids=str)
def test_configs_that_qkv_cannot_represent_raise(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="whisper"):
        qkv.load(tmp_path)


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, value: torch.Tensor, size: int | None = None) -> bytes:
    kinds = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.float16: 4}
    data = value.contiguous().numpy().tobytes()
    shape = struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
    return text(name) + shape + struct.pack("<BI", kinds[value.dtype], len(data) if size is None else size) + data


def ctranslate2(folder: Path, model: Whisper, change: Any = lambda variables: None, version: int = 6) -> None:
    """Write the files of a model as CTranslate2 does."""
    variables: dict[str, Any] = {}
    for ours, parts in weights(model.config).items():
        weight = model.state_dict()[ours]
        rows = weight.shape[0] // 3 if len(parts) == 2 else weight.shape[0]
        for part, value in zip(parts, weight.split([rows, weight.shape[0] - rows][: len(parts)]), strict=True):
            variables[part] = value.half()
    variables["encoder/position_encodings/encodings"] = model.encoder_positions.half()
    for name, number in {"decoder/num_heads": 2, "encoder/num_heads": 2, "decoder/alignment_layer": -1}.items():
        variables[name] = torch.tensor(number, dtype=torch.int16)
    for name, number in {"decoder/activation": 3, "decoder/pre_norm": 1, "decoder/scale_embeddings": 0}.items():
        variables[name] = torch.tensor(number, dtype=torch.int8)
    change(variables)
    body = b"".join(value if isinstance(value, bytes) else variable(name, value) for name, value in variables.items())
    head = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    alias = struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")
    (folder / "model.bin").write_bytes(head + body + alias)
    settings = {"suppress_ids": [3, 4], "suppress_ids_begin": [5, 27], "alignment_heads": [[1, 0], [2, 1]]}
    (folder / "config.json").write_text(json.dumps(settings))
    letters = {chr(ord("a") + number) if number < 26 else "A": number for number in range(27)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens(NAMES)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def ours(tmp_path: Path) -> Whisper:
    theirs().half().float().save_pretrained(tmp_path / "hf")
    return qkv.load(tmp_path / "hf")


@torch.no_grad()
def test_a_model_of_ctranslate2_computes_the_same(tmp_path: Path, ours: Whisper) -> None:
    ctranslate2(tmp_path, ours)
    read = qkv.load(tmp_path)
    features, target = batch()
    close(read(features.transpose(1, 2), target), ours(features.transpose(1, 2), target))
    assert read.config.begin_token == 28
    assert read.config.prompt_tokens == (29,)
    assert read.config.alignment_heads == ((1, 0), (2, 1))
    assert read.config.suppress_tokens == (3, 4)
    assert read.tokenizer.decode([7, 8]) == "hi"
    convert(tmp_path, tmp_path / "out", "hf")
    close(qkv.load(tmp_path / "out")(features.transpose(1, 2), target), ours(features.transpose(1, 2), target))


def drop(name: str) -> Any:
    return lambda variables: variables.pop(name)


def put(name: str, value: Any) -> Any:
    return lambda variables: variables.update({name: value})


EMBED, NORM = "decoder/embeddings/weight", "encoder/layer_norm/gamma"
BROKEN = {
    "missing": drop(NORM),
    "no embedding": drop(EMBED),
    "unknown": put("encoder/else", torch.zeros(3)),
    "shape": put(NORM, torch.zeros(23)),
    "not finite": put(NORM, torch.full((24,), math.nan)),
    "quantized": put(NORM, torch.zeros(24, dtype=torch.int8)),
    "size": put(NORM, variable(NORM, torch.zeros(24), size=95)),
    "past the end": put(NORM, variable(NORM, torch.zeros(24), size=2**32 - 1)),
    "type": put(NORM, text(NORM) + struct.pack("<BIBI", 1, 24, 9, 96) + b"\0" * 96),
    "rank": put(NORM, text(NORM) + struct.pack("<B200IBI", 200, *[1] * 200, 0, 4) + b"\0" * 4),
    "huge": put(NORM, text(NORM) + struct.pack("<B4IBI", 4, *[2**32 - 1] * 4, 0, 0)),
    "activation": put("decoder/activation", torch.tensor(77, dtype=torch.int8)),
    "post-norm": put("decoder/pre_norm", torch.tensor(0, dtype=torch.int8)),
    "heads": put("decoder/num_heads", torch.tensor(7, dtype=torch.int16)),
    "text": put(NORM, struct.pack("<H", 5) + b"\xff\xff\xff\xff\0"),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_damaged_files_of_ctranslate2_are_one_line_errors(tmp_path: Path, ours: Whisper, change: Any) -> None:
    ctranslate2(tmp_path, ours, change)
    with pytest.raises(InputError) as caught:
        qkv.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_truncated_files_and_other_versions_of_ctranslate2_are_errors(tmp_path: Path, ours: Whisper) -> None:
    ctranslate2(tmp_path, ours)
    whole = (tmp_path / "model.bin").read_bytes()
    for length in (0, 3, 10, 30, 100, len(whole) // 2):
        (tmp_path / "model.bin").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            qkv.load(tmp_path)
    ctranslate2(tmp_path, ours, version=5)
    with pytest.raises(CheckpointError, match="version 5"):
        qkv.load(tmp_path)
