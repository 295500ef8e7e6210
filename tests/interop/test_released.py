"""Released folders: read by a map of weights, written back bit for bit, and refused in words where they do not fit."""

import json
import pickle
import re
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.interop.families import FAMILIES
from qkv.interop.folder import load_as
from qkv.interop.released import load_released, released_dtype, write_released
from qkv.interop.tensors import INDEX, WEIGHTS
from qkv.interop.weight_map import Weight, WeightMap
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.language_model import LanguageModel

from .toy import TOY, Config, Toy, config_json, made, same, theirs


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def released(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config_json(made()) | config))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return released(tmp_path, theirs(made()))


def refused(folder: Path, kind: type[Exception] = CheckpointError) -> str:
    """What is said of a folder: soon, on one line, with the place in front."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        qkv.load(folder)
    assert time.monotonic() - began < 2.0
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder)).lstrip("/:").lstrip()


def test_a_released_folder_is_loaded_by_its_map(folder: Path) -> None:
    model = qkv.load(folder)
    assert type(model) is Toy
    assert model.config == Config(vocabulary_size=7, dim=4)
    assert same(model, made())
    assert not model.training
    assert model.head.weight is model.embed.weight
    assert model.tokenizer is None
    (folder / "vocab.txt").write_text("abc")
    assert qkv.load(folder).tokenizer.encode("cab").ids == [6, 4, 5]


def test_which_head_there_is_can_be_told_by_the_tensors(tmp_path: Path) -> None:
    model = made(head=False)
    assert same(qkv.load(released(tmp_path, theirs(model))), model)


@pytest.mark.parametrize("head", [True, False])
def test_reading_and_writing_gives_the_file_back_bit_for_bit(tmp_path: Path, head: bool) -> None:
    model = made(head=head)
    write_released(model, TOY, tmp_path)
    before, after = theirs(model), load_file(tmp_path / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert same(qkv.load(tmp_path), model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_numbers_of_a_file_may_be_of_any_width(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in theirs(made()).items()}
    released(tmp_path, tensors)
    model = qkv.load(tmp_path)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert torch.equal(model.embed.weight, tensors["toy.words.weight"].float())
    assert released_dtype(tmp_path) == dtype
    (tmp_path / "again").mkdir()
    write_released(qkv.load(tmp_path, dtype=dtype), TOY, tmp_path / "again")
    again = load_file(tmp_path / "again" / WEIGHTS)
    assert all(again[name].dtype == dtype and torch.equal(again[name], tensors[name]) for name in tensors)


def test_where_widths_are_mixed_the_narrowest_that_holds_all_is_taken(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["toy.gain"] = tensors["toy.gain"].half()
    tensors["toy.norm.bias"] = tensors["toy.norm.bias"].bfloat16()
    tensors["toy.position_ids"] = torch.arange(4)
    assert released_dtype(released(tmp_path, tensors)) == torch.float32
    halves = {"a": torch.ones(1).half(), "b": torch.ones(1).bfloat16()}
    assert released_dtype(released(tmp_path, halves)) == torch.float32


def test_a_precision_that_cannot_hold_a_weight_is_refused(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["toy.norm.bias"][0] = 1e5
    released(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"toy.norm.bias holds values that are too large for float16"):
        qkv.load(tmp_path, dtype=torch.float16)
    with pytest.raises(InputError, match=r"dtype torch.int64: weights are floating-point numbers"):
        qkv.load(tmp_path, dtype=torch.int64)


def test_a_file_may_hold_the_body_alone_without_its_prefix(tmp_path: Path) -> None:
    model = made(head=False)
    tensors = {name.removeprefix("toy."): tensor for name, tensor in theirs(model).items()}
    tensors["position_ids"] = torch.arange(4)
    assert same(qkv.load(released(tmp_path, tensors)), model)


def test_a_prefix_is_there_or_not_but_not_for_some(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["gain"] = tensors.pop("toy.gain")
    save_file(tensors, folder / WEIGHTS)
    assert refused(folder) == "toy.gain is missing, and gain is not part of the model"


def test_old_spellings_are_read_and_new_ones_written(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["toy.norm.gamma"] = tensors.pop("toy.norm.weight")
    tensors["toy.norm.beta"] = tensors.pop("toy.norm.bias")
    assert same(qkv.load(released(tmp_path, tensors)), made())
    tensors["toy.norm.bias"] = tensors["toy.norm.beta"].clone()
    released(tmp_path, tensors)
    assert refused(tmp_path) in {
        f"{WEIGHTS}: toy.norm.bias is the same weight as toy.norm.beta",
        f"{WEIGHTS}: toy.norm.beta is the same weight as toy.norm.bias",
    }


def test_a_tied_weight_may_be_stored_twice_or_under_its_other_name_but_must_be_the_same(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["head.weight"] = tensors["toy.words.weight"].clone()
    assert same(qkv.load(released(tmp_path, tensors)), made())
    words = tensors.pop("toy.words.weight")
    assert same(qkv.load(released(tmp_path, tensors)), made())
    tensors["toy.words.weight"] = words
    tensors["head.weight"][6, 3] += 1e-3
    released(tmp_path, tensors)
    assert refused(tmp_path) == f"{WEIGHTS}: head.weight differs from toy.words.weight, but must be a copy of it"
    tensors["head.weight"] = tensors["head.weight"][:6].clone()
    released(tmp_path, tensors)
    assert refused(tmp_path) == f"{WEIGHTS}: head.weight has shape [6, 4], the config asks for [7, 4]"


def test_what_is_no_weight_is_ignored_by_its_whole_name(tmp_path: Path) -> None:
    tensors = theirs(made()) | {"toy.position_ids": torch.arange(4)}
    assert same(qkv.load(released(tmp_path, tensors)), made())
    released(tmp_path, tensors | {"toy.position_ids2": torch.arange(4)})
    assert refused(tmp_path) == "toy.position_ids2 is not part of the model"


def test_several_files_with_an_index_are_one_model(tmp_path: Path) -> None:
    tensors = theirs(made())
    released(tmp_path, tensors)
    (tmp_path / WEIGHTS).unlink()
    names = sorted(tensors)
    places = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / file)
        places |= dict.fromkeys(part, file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    assert same(qkv.load(tmp_path), made())


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> str:
    tensors = load_file(folder / WEIGHTS)
    how(tensors)
    save_file(tensors, folder / WEIGHTS)
    return refused(folder)


def test_what_is_missing_or_too_much_is_named(folder: Path) -> None:
    assert change(folder, lambda tensors: tensors.pop("toy.gain")) == "toy.gain is missing"
    extra = {"x": torch.ones(1), "toy\n.y": torch.ones(1)}
    found = change(folder, lambda tensors: tensors.update(extra))
    assert found == r"toy.gain is missing, and toy\n.y, x are not part of the model"
    for number in range(5):
        extra[f"z{number}"] = torch.ones(1)
    found = change(folder, lambda tensors: tensors.update(extra))
    assert found == r"toy.gain is missing, and toy\n.y, x, z0 and 4 more are not part of the model"


def test_a_wrong_shape_is_named_with_the_right_one_as_the_file_has_it(folder: Path) -> None:
    found = change(folder, lambda tensors: tensors.update({"toy.key.weight": torch.ones(4, 12)}))
    assert found == f"{WEIGHTS}: toy.key.weight has shape [4, 12], the config asks for [4, 4]"
    found = change(folder, lambda tensors: tensors.update({"toy.key.weight": torch.ones(4, 4).long()}))
    assert found == f"{WEIGHTS}: toy.key.weight is stored as I64, not as F16, BF16, F32, F64"


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_values_that_are_not_finite_are_named(folder: Path, value: float) -> None:
    found = change(folder, lambda tensors: tensors["toy.value.bias"][1].fill_(value))
    assert found == f"{WEIGHTS}: toy.value.bias holds values that are not finite"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 10**12}, "config.json: toy: dim must lie between 1 and 2^24"),
        ({"hidden_size": "4"}, "config.json: toy: dim must be a whole number, not '4'"),
        ({"hidden_size": 2**24, "vocab_size": 2**24}, f"{WEIGHTS}: toy.words.weight has shape [7, 4], the config asks"),
        ({"hidden_size": 8}, f"{WEIGHTS}: toy.words.weight has shape [7, 4], the config asks for [7, 8]"),
        ({"model_type": "tyo"}, "config.json: model_type 'tyo' is not known (did you mean toy?)"),
        ({"model_type": "llama-guard"}, "config.json: model_type 'llama-guard' is not known (known: "),
        ({"model_type": ["toy"]}, "config.json: model_type ['toy'] is not known"),
        ({"model_type": None}, "config.json: model_type None is not known"),
        ({"library": "qkv"}, "config.json: model_type 'toy' is not known"),
    ],
)
def test_a_config_that_cannot_be_is_refused_before_a_model_is_made(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    (folder / "config.json").write_text(json.dumps(config_json(made()) | changes))
    assert refused(folder).startswith(words)


def test_tables_that_are_not_in_the_file_are_bounded_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.interop.skeleton.LARGEST_TABLES", 2**20)
    (folder / "config.json").write_text(json.dumps(config_json(made()) | {"max_position_embeddings": 2**20}))
    assert refused(folder) == "config.json: asks for tables of 8,388,608 bytes besides the weights"


def test_more_numbers_than_can_be_counted_are_refused(folder: Path) -> None:
    def huge(config: Config) -> Any:
        return torch.nn.Linear(2**40, 2**40)

    with pytest.raises(CheckpointError, match=r"config.json: asks for a model larger than any memory"):
        load_released(folder, replace(TOY, network=huge))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda weights: weights[1:], "the map is wrong about ['embed.weight']"),
        (lambda weights: (*weights, weights[0]), "the map of weights has ['embed.weight', 'toy.words.weight'] twice"),
        (lambda weights: (*weights, Weight("none", ("none",))), "the map is wrong about ['none']"),
        (lambda weights: (*weights[1:], Weight("embed.weight", ("toy.gain",))), "has ['toy.gain'] twice"),
        (lambda weights: (*weights[1:], Weight("embed.weight", ("head.weight",))), "has ['head.weight'] twice"),
    ],
)
def test_a_map_that_would_lose_a_weight_writes_nothing(tmp_path: Path, wrong: Callable[..., Any], words: str) -> None:
    def weights(config: Config) -> WeightMap:
        table = TOY.weights(config)
        return replace(table, weights=wrong(table.weights))

    with pytest.raises(AssertionError, match=re.escape(words)):
        write_released(made(), replace(TOY, weights=weights), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_not_read_and_its_owner_is_told_what_to_do(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    assert re.match(
        rf"{WEIGHTS}: no such file; pytorch_model.bin is a pickle, .* never read: convert it to safetensors first, "
        r".* save_pretrained",
        refused(folder),
    )


def test_a_tokenizer_that_cannot_be_read_is_an_error_of_the_folder(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"\xff")
    assert refused(folder) == "vocab.txt: not UTF-8 at byte 0"
    (folder / "vocab.txt").write_text("abcdefgh")
    assert refused(folder) == "has 12 tokens, but the model has room for 7"


def test_a_model_of_another_kind_is_told_apart_before_its_weights_are_read(folder: Path) -> None:
    assert same(load_as(Toy, folder), made())
    (folder / WEIGHTS).unlink()
    for kind in (EncoderDecoder, LanguageModel):
        with pytest.raises(InputError, match=r"holds a Toy, and an? .* is needed here"):
            load_as(kind, folder)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    """A hub that gives a folder, or raises."""
    import sys
    from types import ModuleType, SimpleNamespace

    from qkv.interop import hub

    asked: list[dict[str, Any]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def model_info(name: str, revision: str | None = None, timeout: float | None = None) -> Any:
        assert timeout
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(sha=COMMIT)

    session = SimpleNamespace(timeout=None)
    module: Any = ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download
    module.HfApi = lambda: SimpleNamespace(model_info=model_info)
    module.constants = SimpleNamespace(HF_HUB_ETAG_TIMEOUT=10)
    module.get_session = lambda: session
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    hub._download.cache_clear()
    return asked


@pytest.mark.parametrize("name", ["owner/name", "owner/name@main", "owner/name@refs/pr/1"])
def test_all_files_are_downloaded_at_the_commit_of_a_branch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    asked = fake_hub(monkeypatch, folder)
    qkv.load(name)
    qkv.load(name)
    assert [(call["name"], call["revision"]) for call in asked] == [("owner/name", COMMIT)]
    assert COMMIT in caplog.text


def test_a_commit_that_is_given_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, folder)
    qkv.load(f"owner/name@{COMMIT[::-1]}")
    assert [call["revision"] for call in asked] == [COMMIT[::-1]]


def test_a_hub_that_accepts_and_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import close_session

    def late(*_: object) -> None:
        pytest.fail("still waiting")

    before = signal.signal(signal.SIGALRM, late)
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setattr(hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
        monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        close_session()  # a new one reads the environment
        signal.alarm(20)
        try:
            with pytest.raises(InputError, match="could not be fetched"):
                qkv.load("owner/silent-name")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            close_session()


def test_a_name_with_an_owner_is_fetched_from_the_hub_without_pickles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fnmatch import fnmatch

    asked = fake_hub(monkeypatch, folder)
    assert same(qkv.load("owner/name-1.0"), made())
    (call,) = asked
    assert call["name"] == "owner/name-1.0"

    def comes(file: str) -> bool:
        wanted, unwanted = call["allow_patterns"], call["ignore_patterns"]
        return any(fnmatch(file, p) for p in wanted) and not any(fnmatch(file, p) for p in unwanted)

    wanted = (WEIGHTS, INDEX, "config.json", "vocab.txt", "merges.txt", "source.spm", "spiece.model", "tokenizer.json")
    assert all(map(comes, wanted))
    unwanted = ("pytorch_model.bin", "tf_model.h5", "modeling.py", "onnx/config.json", "onnx/model.safetensors", "x.pt")
    assert not any(map(comes, unwanted))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("no route to host\nand more"), "no route to host (with no network, download its files elsewhere"),
        (ValueError(""), "ValueError (with no network"),
    ],
)
def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    fake_hub(monkeypatch, error)
    with pytest.raises(InputError, match=re.escape(f"owner/name: no such folder, and it could not be fetched from the "
                                                   f"Hugging Face hub: {words}")) as caught:  # fmt: skip
        qkv.load("owner/name")
    assert "\n" not in str(caught.value)


def test_without_the_hubs_package_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"owner/name: no such folder; to fetch .* pip install 'qkv\[hub\]'"):
        qkv.load("owner/name")


def test_a_model_on_the_hub_without_safetensors_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"owner/name: has no safetensors on the Hugging Face hub; a pickle"):
        qkv.load("owner/name")


@pytest.mark.parametrize("name", ["none", "runs/none", "./owner/name", "owner/name/more", "../owner", "/owner/name"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    asked = fake_hub(monkeypatch, tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        qkv.load(name)
    assert asked == []
