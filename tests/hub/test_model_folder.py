"""Saved models: bit-exact round trips, and errors that name any corruption."""

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub import Network, convert, load, load_as, model_folder, save_model
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest, verify_manifest, write_manifest
from qkv.hub.families.elmo import write_elmo
from qkv.hub.model_folder import resolve
from qkv.hub.released import CONFIG
from qkv.hub.tensors import WEIGHTS
from qkv.models.bert import Bert
from qkv.models.elmo import Elmo
from qkv.models.han import HAN
from qkv.models.linformer import Linformer
from qkv.models.memory.memory_network import MemoryNetwork
from qkv.models.rnn_text import RNNText
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.models.snail import SNAIL, SNAILPolicy
from qkv.models.vit import ViT
from qkv.models.whisper import Whisper
from qkv.nn.interfaces import EncoderDecoder, LanguageModel, SequenceModel, TextEncoder
from qkv.registry import lookup, registered
from qkv.runtime.documents import read_object
from qkv.tokenizers import CharTokenizer, PairTokenizer, SpecialTokens, WordTokenizer
from qkv.tokenizers.characters import CharacterIds
from qkv.tokenizers.library import PretrainedTokenizer
from qkv.tokenizers.tokenizer import CONFIG as TOKENIZER_CONFIG
from qkv.tokenizers.tokenizer import TOKENIZER
from tests.limits import cpu_limit, memory_limit

CHARACTERS = CharTokenizer.train(["abc def"])
SMALL = {
    "show_attend_tell": {"height": 8, "width": 8, "encoder": {"name": "cnn", "filters": (4,)}, "feature_dim": 4,
                         "embedding_dim": 4, "hidden_dim": 6},
    "linformer": {"dim": 8, "heads": 2, "layers": 1, "ffn_dim": 8, "max_length": 6, "rank": 2},
    "lstm_baseline": {"input_dim": 3, "output_dim": 2, "hidden_dim": 4},
    "memory_network": {"dim": 4, "max_memories": 3},
    "ntm": {"input_dim": 3, "output_dim": 2, "hidden_dim": 4, "locations": 5, "location_dim": 3},
    "snail": {
        "ways": 2, "shots": 1, "height": 8, "width": 8, "conv_channels": 4, "conv_layers": 2, "image_dim": 4,
        "key_dims": (4, 4, 4), "value_dims": (4, 4, 4), "filters": 4,
    },
    "snail_policy": {"actions": 3, "length": 4, "key_dims": (4, 4), "value_dims": (4, 4), "filters": 4},
    "bert": {"dim": 8, "heads": 2, "layers": 1, "ffn_dim": 8, "max_length": 6},
    "conv_seq2seq": {"dim": 8, "hidden_dim": 8, "layers": 2},
    "elmo": {"character_dim": 2, "filters": ((1, 4), (2, 4)), "dim": 4, "hidden_dim": 6},
    "gpt2": {"dim": 8, "heads": 2, "layers": 1, "max_length": 6},
    "han": {"embedding_dim": 4, "hidden_dim": 3},
    "llama": {"dim": 8, "heads": 2, "kv_heads": 1, "layers": 1, "ffn_dim": 8, "max_length": 6},
    "lstmn": {"embedding_dim": 4, "hidden_dim": 6},
    "rnn_lm": {"embedding_dim": 4, "hidden_dim": 6},
    "rnn_seq2seq": {"embedding_dim": 4, "hidden_dim": 6},
    "rnn_text": {"embedding_dim": 4, "hidden_dim": 3},
    "single_rnn": {"embedding_dim": 4, "hidden_dim": 6},
    "transformer": {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 8},
    "vit": {"classes": 3, "height": 8, "width": 8, "patch": 4, "dim": 8, "heads": 2, "layers": 1, "ffn_dim": 8},
    "whisper": {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 8, "mels": 3,
                "positions": 4},
}  # fmt: skip


def build_model(name: str, **options: Any) -> Network:
    torch.manual_seed(3)
    network = lookup("model", name)
    config = network.config_class
    names = getattr(config, "model_fields", None) or [field.name for field in fields(config)]
    sizes = {name: len(CHARACTERS) for name in names if name.endswith("_size")}
    return network(config(**sizes | options, **SMALL[name])).eval()


def logits(model: Network) -> torch.Tensor:
    tokens, lengths = torch.tensor([[4, 5, 6], [7, 4, 0]]), torch.tensor([3, 2])
    match model:
        case LanguageModel():
            return model(tokens)
        case Bert() | RNNText() | Linformer():
            return model(tokens, lengths=lengths)
        case ShowAttendTell():
            return model(torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8), tokens)
        case SequenceModel():
            return model(torch.linspace(0, 1, 2 * 4 * 3).view(2, 4, 3))
        case SNAIL():
            return model(torch.linspace(-1, 1, 3 * 8 * 8).view(1, 3, 1, 8, 8), torch.tensor([[0, 1]]))
        case SNAILPolicy():
            return model(torch.tensor([[0, 1]]), torch.ones(1, 2))[0]
        case HAN():
            return model(tokens[None], lengths=torch.tensor([2]))
        case MemoryNetwork():
            return model(tokens[None], tokens[:1])
        case ViT():
            return model(torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8))
        case Whisper():
            return model(torch.linspace(-1, 1, 2 * 8 * 3).view(2, 8, 3), tokens)
        case Elmo():
            return model(CharacterIds(50)([["abc", "d"]]))
        case _:
            return model(tokens, tokens, lengths)


@pytest.fixture(params=sorted(registered("model")))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_model(build_model(request.param), CHARACTERS, tmp_path)
    return tmp_path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(build_model("rnn_seq2seq"), CHARACTERS, tmp_path)
    return tmp_path


def refused(folder: Path, kind: type[Exception] = CheckpointError) -> str:
    """Return the error of loading, after checking that it is one line and names a path in the folder."""
    with cpu_limit(30), pytest.raises(kind) as caught:
        load(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder)).lstrip("/")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", sorted(registered("model")))
def test_round_trip_is_bit_exact(name: str, tmp_path: Path) -> None:
    model = build_model(name)
    save_model(model, CHARACTERS, tmp_path)
    again = qkv.load(tmp_path)
    assert type(again) is type(model)
    assert again.config == model.config
    assert not again.training
    assert again.tokenizer.to_json() == CHARACTERS.to_json()
    before, after = dict(model.named_parameters()), dict(again.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(logits(model), logits(again))


@pytest.mark.parametrize("name", sorted(registered("model")))
def test_outputs_depend_only_on_the_saved_weights(name: str, tmp_path: Path) -> None:
    options = {"align": {"name": "hard", "estimator": "reinforce"}} if name == "rnn_seq2seq" else {}
    model = build_model(name, **options)
    weights = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    training_state = [value for key, value in model.state_dict().items() if key not in weights]
    assert len(training_state) == (2 if options else 0)
    for value in training_state:
        value.fill_(7.0)
    save_model(model, CHARACTERS, tmp_path)
    assert torch.equal(logits(model), logits(load(tmp_path)))


@pytest.mark.parametrize("name", sorted(registered("model")))
def test_a_model_saved_without_a_tokenizer_has_none(name: str, tmp_path: Path) -> None:
    save_model(build_model(name), None, tmp_path)
    assert load(tmp_path).tokenizer is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]


def test_load_with_a_dtype(folder: Path) -> None:
    assert {parameter.dtype for parameter in load(folder, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    save_file({name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    assert {parameter.dtype for parameter in load(folder).parameters()} == {torch.float32}


def test_a_network_is_a_model_only_where_it_is_accepted() -> None:
    for source in (5, torch.nn.Linear(2, 2)):
        with pytest.raises(InputError) as raised:
            load(source)
        assert "network" not in str(raised.value)
    with pytest.raises(InputError, match="network"):
        qkv.Generator(5)


def test_an_unavailable_device_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError, match="cuda:99"):
        load(folder, device="cuda:99")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> str:
    """Modify the weights and return the name of the first tensor."""
    tensors = load_file(folder / WEIGHTS)
    name = sorted(tensors)[0]
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    return name


def test_a_missing_tensor_is_named(folder: Path) -> None:
    name = change_weights(folder, lambda tensors: tensors.pop(sorted(tensors)[0]))
    assert refused(folder) == f"{WEIGHTS}: {name} is missing"


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.update(extra=torch.ones(2)))
    assert refused(folder) == f"{WEIGHTS}: extra is not part of the model"


def test_a_wrong_shape_is_named_with_the_expected_one(folder: Path) -> None:
    def widen(tensors: dict[str, torch.Tensor]) -> None:
        tensors[sorted(tensors)[0]] = torch.ones(2, 3, 5)

    name = change_weights(folder, widen)
    assert refused(folder).startswith(f"{WEIGHTS}: {name} has shape [2, 3, 5], expected [")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_values_are_named(folder: Path, value: float) -> None:
    name = change_weights(folder, lambda tensors: tensors[sorted(tensors)[0]].view(-1)[-1].fill_(value))
    assert refused(folder) == f"{WEIGHTS}: {name} contains non-finite values"


def test_integer_weights_are_named(folder: Path) -> None:
    def to_integers(tensors: dict[str, torch.Tensor]) -> None:
        tensors[sorted(tensors)[0]] = tensors[sorted(tensors)[0]].long()

    name = change_weights(folder, to_integers)
    assert refused(folder).startswith(f"{WEIGHTS}: {name} has dtype I64")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.9999])
def test_truncated_weights_are_detected(folder: Path, share: float) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: int(share * len(data))])
    assert refused(folder).startswith(f"{WEIGHTS}: truncated or corrupt")


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(saved: Path, file: str) -> None:
    (saved / file).unlink()
    assert file in refused(saved, InputError)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_dim": 10**12}, "hidden_dim must"),
        ({"hidden_dim": -2}, "hidden_dim must"),
        ({"hidden_dim": "16"}, "hidden_dim must be an integer"),
        ({"hidden_dim": 7}, "encoder.dim 7 must be even"),
        ({"dropout": float("nan")}, "dropout must"),
        ({"scroe": "dot"}, "unknown key scroe (did you mean score?)"),
        ({"score": "os.system"}, "score: unknown score 'os.system'"),
        ({"model_type": "transfromer"}, "unknown model_type 'transfromer' (did you mean transformer?)"),
        ({"model_type": "os.system"}, "unknown model_type 'os.system'"),
        ({"model_type": None}, "unknown model_type None"),
        ({"model_type": ["transformer"]}, "unknown model_type ['transformer']"),
        ({"model_type": "transformer"}, "unknown key cell"),
    ],
)
def test_an_invalid_config_is_an_error(saved: Path, changes: dict[str, Any], words: str) -> None:
    edit_config(saved, **changes)
    assert refused(saved).startswith(f"{CONFIG}: {words}")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "rnn_seq2seq",
            {"hidden_dim": 2**24, "embedding_dim": 2**24, "source_vocab_size": 2**24, "target_vocab_size": 2**24},
        ),
        ("transformer", {"dim": 2**24, "ffn_dim": 2**24, "source_vocab_size": 2**24, "target_vocab_size": 2**24}),
        ("rnn_lm", {"hidden_dim": 2**24, "embedding_dim": 2**24, "vocab_size": 2**24}),
    ],
)
def test_a_model_larger_than_memory_is_an_error_before_allocation(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    save_model(build_model(name), None, tmp_path)
    edit_config(tmp_path, **changes)
    shape, matrix = rf"{WEIGHTS}: \S+ has shape .* expected .*16777216", rf"{CONFIG}: .* (more than 2\^36|too large)"
    with memory_limit(2**25):  # half of one vector of 2^24 float32
        assert re.match(f"{shape}|{matrix}", refused(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "must be a JSON object"),
        (b'"transformer"', "must be a JSON object"),
        (b"", "truncated or corrupt: invalid JSON"),
        (b'{"model_type": "rnn_seq2seq", "hid', "truncated or corrupt: invalid JSON"),
        (b'{"hidden": 4, "hidden": 8}', "truncated or corrupt: invalid JSON: duplicate key"),
        (b'{"hidden": ' + b"[" * 100_000, "truncated or corrupt: invalid JSON"),
        (b'{"hidden": ' + b"9" * 5000 + b"}", "truncated or corrupt: invalid JSON"),
        (b'{"model_type": "\xff"}', "not UTF-8 at byte 16"),
        (b" " * (2**20 + 1), "larger than 1 MiB"),
    ],
)
def test_a_config_that_is_not_a_json_object_is_an_error(saved: Path, content: bytes, words: str) -> None:
    (saved / CONFIG).write_bytes(content)
    assert refused(saved).startswith(f"{CONFIG}: {words}")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_is_not_loaded(saved: Path, name: str) -> None:
    (saved / WEIGHTS).unlink()
    (saved / name).write_bytes(pickle.dumps({"a": 1}))
    assert f"{name} is a pickle" in refused(saved)
    (saved / CONFIG).unlink()
    assert f"{name} is a pickle" in refused(saved, InputError)
    assert f"{name} is a pickle" in refused(saved / name, InputError)


def test_a_pickle_named_safetensors_is_detected(saved: Path) -> None:
    (saved / WEIGHTS).write_bytes(pickle.dumps({"a": list(range(100))}))
    assert refused(saved).startswith(f"{WEIGHTS}: truncated or corrupt")


def test_a_tokenizer_larger_than_the_model_is_an_error(saved: Path) -> None:
    larger = CharTokenizer.train(["abc def and many more"])
    (saved / TOKENIZER).write_text(larger.to_json(), encoding="utf-8")
    assert f"{len(larger)} tokens" in refused(saved)
    (saved / TOKENIZER).write_text("{}")
    assert refused(saved).startswith(f"{TOKENIZER}: ")


def test_round_trip_of_two_tokenizers(tmp_path: Path) -> None:
    letters, sounds = CharTokenizer.train(["abc"]), WordTokenizer.train(["AH B S K"])
    model = build_model("rnn_seq2seq", source_vocab_size=len(letters), target_vocab_size=len(sounds))
    save_model(model, PairTokenizer(letters, sounds), tmp_path)
    files = [f"{prefix}{name}" for prefix in ("", "target_") for name in (TOKENIZER, TOKENIZER_CONFIG)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CONFIG, WEIGHTS, *files])
    again = load(tmp_path).tokenizer
    assert (again.source.to_json(), again.target.to_json()) == (letters.to_json(), sounds.to_json())
    assert again.target.encode("S AH K") == sounds.encode("S AH K")


def released_tokenizer() -> PretrainedTokenizer:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "<stop>"]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    return PretrainedTokenizer(tokenizer, {"end": "<stop>"})


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_round_trip_of_a_released_tokenizer(name: str, tmp_path: Path) -> None:
    tokenizer = released_tokenizer()
    save_model(build_model(name), tokenizer, tmp_path)
    again = load(tmp_path).tokenizer
    assert isinstance(again, PretrainedTokenizer)
    assert again.to_json() == tokenizer.to_json()
    assert again.special_tokens == tokenizer.special_tokens == SpecialTokens(pad=0, unk=1, cls=2, sep=3, end=7, mask=4)
    assert again.encode("b a c") == [6, 5, 1]
    save_model(build_model(name, vocab_size=7), tokenizer, tmp_path)
    assert "8 tokens" in refused(tmp_path)
    (tmp_path / TOKENIZER).write_text("{}")
    assert refused(tmp_path).startswith(f"{TOKENIZER}: ")


def test_round_trip_of_two_released_tokenizers(tmp_path: Path) -> None:
    source = released_tokenizer()
    target = PretrainedTokenizer(source.backend, {"end": "[SEP]"}, {"[UNK]": 3, "a": 1})
    save_model(build_model("transformer"), PairTokenizer(source, target), tmp_path)
    again = load(tmp_path).tokenizer
    assert isinstance(again, PairTokenizer)
    assert again.source.encode("a b") == [5, 6]
    assert again.target.encode("a b") == [1, 3]


def test_the_library_decides_how_a_model_type_is_read(tmp_path: Path) -> None:
    for name in ("gpt2", "rnn_lm"):
        save_model(build_model(name), None, tmp_path)
        config = json.loads((tmp_path / CONFIG).read_text())
        assert (config.pop("library"), config["model_type"]) == ("qkv", name)
        (tmp_path / CONFIG).write_text(json.dumps(config))
        refused(tmp_path)  # read as a folder of transformers


def test_config_json_is_parsed_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    monkeypatch.setattr(model_folder, "read_object", lambda path: parsed.append(path) or read_object(path))
    load_as(EncoderDecoder, saved)
    assert parsed == [saved / CONFIG]


def test_a_released_elmo_is_loaded_from_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    model = build_model("elmo", vocab_size=793_471)
    (tmp_path / "elmo").mkdir()
    write_elmo(model, tmp_path / "elmo")
    again = load(tmp_path / "elmo")
    assert torch.equal(logits(again), logits(model))
    assert type(load_as(Elmo, tmp_path / "elmo")) is Elmo
    convert(tmp_path / "elmo", tmp_path / "own", "qkv")
    assert torch.equal(logits(load(tmp_path / "own")), logits(model))


def test_each_tokenizer_must_fit_its_side(tmp_path: Path) -> None:
    few, many = CharTokenizer.train(["ab"]), CharTokenizer.train(["abcdef"])
    for sizes, key in (
        ({"source_vocab_size": len(many), "target_vocab_size": len(few)}, "target_vocab_size"),
        ({"source_vocab_size": len(few), "target_vocab_size": len(many)}, "source_vocab_size"),
    ):
        save_model(
            build_model("rnn_seq2seq", **sizes), PairTokenizer(many, many.from_json(many.to_json(), "")), tmp_path
        )
        assert f"{len(many)} tokens, but {key} is {len(few)}" in refused(tmp_path)


def test_the_tokenizer_of_a_language_model_must_fit(tmp_path: Path) -> None:
    save_model(build_model("rnn_lm", vocab_size=5), CHARACTERS, tmp_path)
    assert f"{len(CHARACTERS)} tokens" in refused(tmp_path)


@pytest.mark.parametrize("name", sorted(registered("model")))
def test_the_model_kind_is_checked_before_the_weights_are_read(name: str, tmp_path: Path) -> None:
    model = build_model(name)
    save_model(model, CHARACTERS, tmp_path)
    kinds = {
        EncoderDecoder: r"\(for qkv (translate|transcribe)\)",
        LanguageModel: r"\(for qkv generate\)",
        TextEncoder: r"text encoder \(for .*\)",
        ViT: r"image classifier \(.*\)",
        ShowAttendTell: r"captioner \(for qkv caption\)",
        SequenceModel: r"sequence model \(for .*\)",
        MemoryNetwork: r"memory network \(for .*\)",
        SNAIL: "SNAIL",
        SNAILPolicy: "SNAILPolicy",
    }
    own = next(kind for kind in kinds if isinstance(model, kind))
    assert type(load_as(own, tmp_path)) is type(model)
    (tmp_path / WEIGHTS).unlink()
    for other in kinds.keys() - {own}:
        with pytest.raises(InputError, match=rf"is an? .*{kinds[own]}, but an? .*{kinds[other]} is required"):
            load_as(other, tmp_path)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: no such folder"):
        load(tmp_path / "none")
    with pytest.raises(InputError, match=r"not a saved model \(no config.json\)"):
        load(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="file: is a file"):
        load(tmp_path / "file")


def checkpoint(folder: Path, name: str, best: Any) -> Path:
    path = folder / name
    path.mkdir()
    save_model(build_model("rnn_seq2seq"), CHARACTERS, path)
    write_manifest(path, {"state": {"step": 12, "best": best}})
    return path


def test_a_run_resolves_to_its_best_or_newest_checkpoint(tmp_path: Path) -> None:
    first = checkpoint(tmp_path, "step-00000001", {"step": 1})
    (tmp_path / "step-notes.txt").write_text("a user's own")
    checkpoint(tmp_path, "step-00000009-mine", {"step": 9})
    assert resolve(tmp_path) == first
    checkpoint(tmp_path, "step-00000002", {"step": 1})
    assert resolve(tmp_path) == first
    newest = checkpoint(tmp_path, "step-00000003", None)
    assert resolve(tmp_path) == newest
    for step, best in enumerate([{"step": 99}, {"step": "../x"}, ["step"], 7], start=4):
        newest = checkpoint(tmp_path, f"step-{step:08d}", best)
        assert resolve(tmp_path) == newest


def test_the_manifest_round_trips(tmp_path: Path) -> None:
    record = verify_manifest(checkpoint(tmp_path, "step-00000001", {"step": 1, "value": 0.1 + 0.2}))
    assert record["state"]["best"] == {"step": 1, "value": 0.1 + 0.2}
    assert sorted(record["sha256"]) == [CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG]


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, TOKENIZER, MANIFEST_FILE])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_a_checkpoint_is_detected(tmp_path: Path, file: str, share: float) -> None:
    path = checkpoint(tmp_path, "step-00000001", {"step": 1}) / file
    data = bytearray(path.read_bytes())
    position = next(p for p in range(int(share * len(data)), len(data)) if not chr(data[p]).isspace())
    data[position] ^= 1
    path.write_bytes(data)
    assert refused(tmp_path).startswith(f"step-00000001/{file}: truncated or ")


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, TOKENIZER, MANIFEST_FILE])
def test_a_truncated_checkpoint_is_detected(tmp_path: Path, file: str) -> None:
    path = checkpoint(tmp_path, "step-00000001", {"step": 1}) / file
    path.write_bytes(path.read_bytes()[:-10])
    assert refused(tmp_path).startswith(f"step-00000001/{file}: truncated or ")


def test_a_missing_file_of_a_checkpoint_is_detected(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "step-00000001", {"step": 1})
    (path / TOKENIZER).unlink()
    assert refused(tmp_path) == f"step-00000001/{TOKENIZER}: missing from the checkpoint"
    (path / MANIFEST_FILE).unlink()
    with pytest.raises(CheckpointError, match=f"no {MANIFEST_FILE}"):
        read_manifest(path)


def test_an_edited_manifest_is_detected(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "step-00000001", {"step": 1}) / MANIFEST_FILE
    text = path.read_text()
    for change in (text.replace('"step": 12', '"step": 13'), "[]", "{}", text.replace('"sha256"', '"sha255"')):
        path.write_text(change)
        with pytest.raises(CheckpointError):
            read_manifest(path.parent)


@pytest.mark.parametrize("name", sorted(registered("model")))
def test_loading_draws_no_random_numbers(name: str, tmp_path: Path) -> None:
    save_model(build_model(name), None, tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_pretrained_model_that_was_changed_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    model = qkv.load("shakespeare", dequantize=True)
    with torch.no_grad():
        model.embed.weight.mul_(1.5)
    assert qkv.save(model, str(tmp_path / "runs" / "changed")) == tmp_path / "runs" / "changed"
    saved, tokens = qkv.load(tmp_path / "runs" / "changed"), torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(saved(tokens), model(tokens), rtol=0, atol=0)
    assert saved.tokenizer.encode(["To be"]) == model.tokenizer.encode(["To be"])


def test_what_cannot_be_saved_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.model"):
        qkv.save(qkv.Classifier("sentiment", device="cpu"), tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="empty"):
        qkv.save(qkv.load("sentiment"), tmp_path)
