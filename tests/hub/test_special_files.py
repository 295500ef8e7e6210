"""Devices, FIFOs, sockets, folders and circular links in a model folder are immediate errors."""

import io
import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import ByteLevelBPETokenizer

from qkv.datasets.examples.captions import feature_names
from qkv.errors import InputError
from qkv.hub import checkpoint_manifest as manifest
from qkv.hub.conversion import convert
from qkv.hub.families import FAMILIES
from qkv.hub.families.elmo import write_elmo as write_elmo_files
from qkv.hub.model_folder import save_model
from qkv.hub.released import write_released
from qkv.models import bert, elmo, gpt2, transformer, vit
from qkv.pipelines.inputs.image_preprocessing import read_scale
from qkv.tokenizers import WordTokenizer

ELMO = {"character_dim": 4, "filters": ((1, 4), (2, 4)), "dim": 4, "hidden_dim": 6, "max_characters": 9}
SMALL = {"dim": 8, "heads": 2, "layers": 1, "max_length": 16}
TEXTS = ["the king of the hill", "a queen and a king"]


def write_gpt2(folder: Path) -> None:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXTS, vocab_size=270, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder))
    model = gpt2.GPT2(gpt2.GPT2Config(vocab_size=tokenizer.get_vocab_size(), **SMALL))
    write_released(model, FAMILIES["gpt2"], folder)


def write_bert(folder: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "king"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    write_released(bert.Bert(bert.BertConfig(vocab_size=len(tokens), **SMALL)), FAMILIES["bert"], folder)


def write_bert_json(folder: Path) -> None:
    write_bert(folder)
    tokens = (folder / "vocab.txt").read_text().split("\n")
    words = {"type": "WordLevel", "vocab": {token: n for n, token in enumerate(tokens)}, "unk_token": "[UNK]"}
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps({"model": words}))


def write_marian(folder: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=30, minloglevel=2, hard_vocab_limit=False
    )
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(written.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    names = ["</s>", "<unk>", *(pieces.id_to_piece(n) for n in range(3, len(pieces))), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    config = transformer.TransformerConfig(
        source_vocab_size=len(names),
        target_vocab_size=len(names),
        dim=8,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        ffn_dim=8,
        norm="post",
        max_length=16,
        position="sinusoidal_halves",
        pad_token=len(names) - 1,
        begin_token=len(names) - 1,
        end_token=0,
        output_bias=True,
    )
    write_released(transformer.Transformer(config), FAMILIES["marian"], folder)


def write_vit(folder: Path) -> None:
    config = vit.ViTConfig(classes=2, height=8, width=8, patch=4, dim=8, layers=1, heads=2, ffn_dim=8)
    write_released(vit.ViT(config), FAMILIES["vit"], folder)
    (folder / "preprocessor_config.json").write_text("{}")


def write_elmo(folder: Path) -> None:
    write_elmo_files(elmo.Elmo(elmo.ElmoConfig(**ELMO)), folder)


def write_own(folder: Path) -> None:
    tokenizer = WordTokenizer.train(TEXTS)
    save_model(gpt2.GPT2(gpt2.GPT2Config(vocab_size=len(tokenizer), **SMALL)), tokenizer, folder)
    manifest.write_manifest(folder, {})


EXTRA = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
FOLDERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "gpt2": (
        write_gpt2,
        ("config.json", "model.safetensors", "vocab.json", "merges.txt", "generation_config.json", *EXTRA),
    ),
    "bert": (write_bert, ("config.json", "model.safetensors", "vocab.txt", *EXTRA)),
    "bert-json": (write_bert_json, ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")),
    "marian": (
        write_marian,
        ("config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json", "tokenizer_config.json"),
    ),
    "vit": (write_vit, ("config.json", "model.safetensors", "preprocessor_config.json")),
    "elmo": (write_elmo, ("options.json", "weights.hdf5")),
    "own": (
        write_own,
        (
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "target_tokenizer.json",
            "checkpoint.json",
        ),
    ),
    "own-unsealed": (write_own, ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
}
CASES = [(kind, file) for kind, (_, files) in FOLDERS.items() for file in files]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        server.bind(path.name)
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], Any]] = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "fifo": os.mkfifo,
    "link to a fifo": lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to("fifo")),
    "socket": make_socket,
    "link to itself": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    made = {}
    for kind, (write, _) in FOLDERS.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        write(made[kind])
    (made["own-unsealed"] / manifest.MANIFEST_FILE).unlink()
    return made


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Interrupt blocked readers and limit memory."""

    def late(*_: object) -> None:
        pytest.fail("still reading")

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, limits[1]))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("kind", FOLDERS)
def test_unmodified_folders_load(folders, tmp_path, kind):
    to = "elmo" if kind == "elmo" else "qkv" if kind.startswith("own") else "hf"
    convert(folders[kind], tmp_path / "out", to)


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(("kind", "file"), CASES)
def test_a_special_file_is_an_input_error(folders, tmp_path, kind, file, special):
    folder = tmp_path / "model"
    shutil.copytree(folders[kind], folder)
    (folder / file).unlink(missing_ok=True)
    SPECIAL[special](folder / file)
    to = "elmo" if kind == "elmo" else "qkv" if kind.startswith("own") else "hf"
    with pytest.raises(InputError):
        convert(folder, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("special", SPECIAL)
def test_shards_and_index_must_be_regular_files(folders, tmp_path, special):
    for file in ("model-1.safetensors", "model.safetensors.index.json"):
        folder = tmp_path / file
        shutil.copytree(folders["bert"], folder)
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        index = {"weight_map": {"bert.embeddings.word_embeddings.weight": "model-1.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / file).unlink()
        SPECIAL[special](folder / file)
        with pytest.raises(InputError):
            convert(folder, tmp_path / "out")


@pytest.mark.parametrize("special", SPECIAL)
def test_image_files_must_be_regular_files(tmp_path, special):
    SPECIAL[special](tmp_path / "preprocessor_config.json")
    with pytest.raises(InputError):
        read_scale(tmp_path, 3)
    (tmp_path / "features").mkdir()
    save_file({"a": np.ones((1, 1, 1), dtype=np.float32)}, tmp_path / "features" / "good.safetensors")
    assert feature_names(tmp_path / "features" / "good.safetensors") == ["a"]
    SPECIAL[special](tmp_path / "features" / "a.safetensors")
    with pytest.raises(InputError):
        feature_names(tmp_path / "features" / "a.safetensors")
