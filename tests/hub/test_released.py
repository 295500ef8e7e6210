"""Released models: loading by weight map, bit-exact saving, and errors."""

import json
import pickle
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub.families import FAMILIES
from qkv.hub.model_folder import load_as
from qkv.hub.released import load_released, released_dtype, write_released
from qkv.hub.tensors import INDEX, WEIGHTS
from qkv.hub.weight_map import Weight, WeightMap
from qkv.nn.interfaces import EncoderDecoder, LanguageModel
from qkv.tokenizers.pretrained import READERS
from tests.limits import cpu_limit

from .toy import TOY, Config, Toy, config_json, made, read_tokenizer, same, theirs


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    monkeypatch.setitem(READERS, "toy", ((("vocab.txt",), read_tokenizer),))


def released(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config_json(made()) | config))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return released(tmp_path, theirs(made()))


def refused(folder: Path, kind: type[Exception] = CheckpointError) -> str:
    """Return the error of loading, after checking that it is one line and names the path."""
    with cpu_limit(30), pytest.raises(kind) as caught:
        qkv.load(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder)).lstrip("/:").lstrip()


def test_load_by_weight_map(folder: Path) -> None:
    model = qkv.load(folder)
    assert type(model) is Toy
    assert model.config == Config(vocab_size=7, dim=4)
    assert same(model, made())
    assert not model.training
    assert model.head.weight is model.embed.weight
    assert model.tokenizer is None
    (folder / "vocab.txt").write_text("abc")
    assert qkv.load(folder).tokenizer.encode("cab") == [6, 4, 5]


def test_the_head_is_inferred_from_the_tensors(tmp_path: Path) -> None:
    model = made(head=False)
    assert same(qkv.load(released(tmp_path, theirs(model))), model)


@pytest.mark.parametrize("head", [True, False])
def test_round_trip_is_bit_exact(tmp_path: Path, head: bool) -> None:
    model = made(head=head)
    write_released(model, TOY, tmp_path)
    before, after = theirs(model), load_file(tmp_path / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert same(qkv.load(tmp_path), model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_load_any_floating_point_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
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


def test_mixed_dtypes_are_promoted(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["toy.gain"] = tensors["toy.gain"].half()
    tensors["toy.norm.bias"] = tensors["toy.norm.bias"].bfloat16()
    tensors["toy.position_ids"] = torch.arange(4)
    assert released_dtype(released(tmp_path, tensors)) == torch.float32
    halves = {"a": torch.ones(1).half(), "b": torch.ones(1).bfloat16()}
    assert released_dtype(released(tmp_path, halves)) == torch.float32


def test_overflow_in_the_target_dtype_is_an_error(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["toy.norm.bias"][0] = 1e5
    released(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"toy.norm.bias .* float16"):
        qkv.load(tmp_path, dtype=torch.float16)
    with pytest.raises(InputError, match=r"dtype torch.int64"):
        qkv.load(tmp_path, dtype=torch.int64)


def test_a_base_model_without_prefix(tmp_path: Path) -> None:
    model = made(head=False)
    tensors = {name.removeprefix("toy."): tensor for name, tensor in theirs(model).items()}
    tensors["position_ids"] = torch.arange(4)
    assert same(qkv.load(released(tmp_path, tensors)), model)


def test_a_prefix_on_some_tensors_only_is_an_error(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["gain"] = tensors.pop("toy.gain")
    save_file(tensors, folder / WEIGHTS)
    assert refused(folder) == "toy.gain is missing, and gain is not part of the model"


def test_old_names_are_read_and_new_names_written(tmp_path: Path) -> None:
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


def test_duplicates_of_a_tied_weight_must_be_equal(tmp_path: Path) -> None:
    tensors = theirs(made())
    tensors["head.weight"] = tensors["toy.words.weight"].clone()
    assert same(qkv.load(released(tmp_path, tensors)), made())
    words = tensors.pop("toy.words.weight")
    assert same(qkv.load(released(tmp_path, tensors)), made())
    tensors["toy.words.weight"] = words
    tensors["head.weight"][6, 3] += 1e-3
    released(tmp_path, tensors)
    assert refused(tmp_path).startswith(f"{WEIGHTS}: head.weight must equal toy.words.weight")
    tensors["head.weight"] = tensors["head.weight"][:6].clone()
    released(tmp_path, tensors)
    assert refused(tmp_path) == f"{WEIGHTS}: head.weight has shape [6, 4], expected [7, 4]"


def test_ignored_tensors_are_matched_by_full_name(tmp_path: Path) -> None:
    tensors = theirs(made()) | {"toy.position_ids": torch.arange(4)}
    assert same(qkv.load(released(tmp_path, tensors)), made())
    released(tmp_path, tensors | {"toy.position_ids2": torch.arange(4)})
    assert refused(tmp_path) == "toy.position_ids2 is not part of the model"


def test_a_sharded_model(tmp_path: Path) -> None:
    tensors = theirs(made())
    released(tmp_path, tensors)
    (tmp_path / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert same(qkv.load(tmp_path), made())


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> str:
    tensors = load_file(folder / WEIGHTS)
    how(tensors)
    save_file(tensors, folder / WEIGHTS)
    return refused(folder)


def test_missing_and_unexpected_tensors_are_named(folder: Path) -> None:
    assert change(folder, lambda tensors: tensors.pop("toy.gain")) == "toy.gain is missing"
    extra = {"x": torch.ones(1), "toy\n.y": torch.ones(1)}
    found = change(folder, lambda tensors: tensors.update(extra))
    assert found == r"toy.gain is missing, and toy\n.y, x are not part of the model"
    for number in range(5):
        extra[f"z{number}"] = torch.ones(1)
    found = change(folder, lambda tensors: tensors.update(extra))
    assert found == r"toy.gain is missing, and toy\n.y, x, z0 and 4 more are not part of the model"


def test_a_wrong_shape_is_named_with_the_expected_one(folder: Path) -> None:
    found = change(folder, lambda tensors: tensors.update({"toy.key.weight": torch.ones(4, 12)}))
    assert found == f"{WEIGHTS}: toy.key.weight has shape [4, 12], expected [4, 4]"
    found = change(folder, lambda tensors: tensors.update({"toy.key.weight": torch.ones(4, 4).long()}))
    assert found.startswith(f"{WEIGHTS}: toy.key.weight has dtype I64")


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_non_finite_values_are_named(folder: Path, value: float) -> None:
    found = change(folder, lambda tensors: tensors["toy.value.bias"][1].fill_(value))
    assert found == f"{WEIGHTS}: toy.value.bias contains non-finite values"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 10**12}, "config.json: toy: dim must"),
        ({"hidden_size": "4"}, "config.json: toy: dim must be an integer"),
        ({"hidden_size": 2**24, "vocab_size": 2**24}, f"{WEIGHTS}: toy.words.weight has shape [7, 4], expected"),
        ({"hidden_size": 8}, f"{WEIGHTS}: toy.words.weight has shape [7, 4], expected [7, 8]"),
        ({"model_type": "tyo"}, "config.json: unknown model_type 'tyo' (did you mean toy?)"),
        ({"model_type": "t5"}, "config.json: unknown model_type 't5' (known: "),
        ({"model_type": ["toy"]}, "config.json: unknown model_type ['toy']"),
        ({"model_type": None}, "config.json: unknown model_type None"),
        ({"library": "qkv"}, "config.json: unknown model_type 'toy'"),
    ],
)
def test_an_invalid_config_is_an_error_before_allocation(folder: Path, changes: dict[str, Any], words: str) -> None:
    (folder / "config.json").write_text(json.dumps(config_json(made()) | changes))
    assert refused(folder).startswith(words)


def test_buffers_are_limited_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.hub.meta_model.MAX_BUFFER_BYTES", 2**20)
    (folder / "config.json").write_text(json.dumps(config_json(made()) | {"max_position_embeddings": 2**20}))
    assert refused(folder) == "config.json: the model's buffers need 8,388,608 bytes"


def test_sizes_that_overflow_are_an_error(folder: Path) -> None:
    def huge(config: Config) -> Any:
        return torch.nn.Linear(2**40, 2**40)

    with pytest.raises(CheckpointError, match=r"config.json: .*overflow"):
        load_released(folder, replace(TOY, network=huge), config_json(made()), torch.device("cpu"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda weights: weights[1:], "['embed.weight']"),
        (lambda weights: (*weights, weights[0]), "['embed.weight', 'toy.words.weight']"),
        (lambda weights: (*weights, Weight("none", ("none",))), "['none']"),
        (lambda weights: (*weights[1:], Weight("embed.weight", ("toy.gain",))), "['toy.gain']"),
        (lambda weights: (*weights[1:], Weight("embed.weight", ("head.weight",))), "['head.weight']"),
    ],
)
def test_an_incomplete_weight_map_writes_nothing(tmp_path: Path, wrong: Callable[..., Any], words: str) -> None:
    def weights(config: Config) -> WeightMap:
        table = TOY.weights(config)
        return replace(table, weights=wrong(table.weights))

    with pytest.raises(AssertionError, match=re.escape(words)):
        write_released(made(), replace(TOY, weights=weights), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_not_loaded(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    assert "pytorch_model.bin is a pickle" in refused(folder)


def test_an_invalid_tokenizer_is_an_error(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"\xff")
    assert refused(folder).startswith("vocab.txt: not UTF-8")
    (folder / "vocab.txt").write_text("abcdefgh")
    assert "12 tokens" in refused(folder)


def test_the_model_kind_is_checked_before_the_weights_are_read(folder: Path) -> None:
    assert same(load_as(Toy, folder), made())
    (folder / WEIGHTS).unlink()
    for kind in (EncoderDecoder, LanguageModel):
        with pytest.raises(InputError, match=r"is a Toy, but an? .* is required"):
            load_as(kind, folder)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    """Replace the Hub by one that returns a folder or raises."""
    import sys
    from types import ModuleType, SimpleNamespace

    from qkv.hub import huggingface as hub

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


def test_a_pinned_commit_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, folder)
    qkv.load(f"owner/name@{COMMIT[::-1]}")
    assert [call["revision"] for call in asked] == [COMMIT[::-1]]


def test_an_unresponsive_hub_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
        signal.alarm(120)
        try:
            with pytest.raises(InputError, match=r"download .* failed"):
                qkv.load("owner/silent-name")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            close_session()


def test_hub_models_are_downloaded_without_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (OSError("no route to host\nand more"), "no route to host (offline"),
        (ValueError(""), "ValueError (offline"),
    ],
)
def test_hub_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    fake_hub(monkeypatch, error)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        qkv.load("owner/name")
    assert "\n" not in str(caught.value)


def test_without_huggingface_hub_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'qkv\[hub\]'"):
        qkv.load("owner/name")


def test_a_hub_model_without_safetensors_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"owner/name: no safetensors"):
        qkv.load("owner/name")


@pytest.mark.parametrize("name", ["none", "runs/none", "./owner/name", "owner/name/more", "../owner", "/owner/name"])
def test_a_missing_path_is_not_searched_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    requests = fake_hub(monkeypatch, tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        qkv.load(name)
    assert requests == []
