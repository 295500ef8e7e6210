"""The released ELMo format: exact reading, bit-exact writing, and validation."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import CheckpointError, InputError
from qkv.hub import load as load_elmo
from qkv.hub.families.elmo import elmo_files, write_elmo
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.tokenizers.characters import CharacterIds
from tests.limits import cpu_limit

h5py = pytest.importorskip("h5py", reason="ELMo's released files need h5py")

CONFIG = ElmoConfig(
    max_characters=9,
    character_dim=3,
    filters=((1, 2), (3, 4)),
    highway_layers=1,
    dim=4,
    hidden_dim=5,
    layers=2,
    dropout=0.0,
)
CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"


def save_elmo(model: Elmo, folder: Path) -> None:
    folder.mkdir()
    write_elmo(model, folder)


@pytest.fixture
def released() -> Path:
    """The small model of AllenNLP's ELMo tests."""
    folder = Path(os.environ.get("QKV_DATA", "")) / "elmo_fixture"
    if "QKV_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("QKV_DATA names no folder with elmo_fixture in it")
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save_elmo(Elmo(CONFIG), tmp_path / "elmo")
    return tmp_path / "elmo"


def embeddings(folder: Path, number: int) -> list[torch.Tensor]:
    """Return [forward; backward] of the top layer for each sentence of a text."""
    with h5py.File(folder / f"lm_embeddings_{number}.hdf5") as file:
        return [torch.from_numpy(file[str(sentence)][()]).transpose(0, 1).flatten(1) for sentence in range(len(file))]


def test_released_embeddings_are_reproduced_with_carried_state(released):
    model = load_elmo(released)
    texts = json.loads((released / "sentences.json").read_text())
    expected = [embeddings(released, number) for number in range(3)]
    state, compared = model.init_state(3), 0
    for index in range(10):
        words = [text[index].split() for text in texts]
        with torch.no_grad():
            layers, state = model.representations_from(CharacterIds()(words), state)
        for row in range(3):
            found = layers[row, -1, : len(words[row])]
            torch.testing.assert_close(found, expected[row][index], rtol=1e-6, atol=1e-6)
            compared += found.numel()
    assert compared == 32 * sum(len(sentence.split()) for text in texts for sentence in text)


def test_only_later_sentences_depend_on_the_carried_state(released):
    model = load_elmo(released)
    texts = json.loads((released / "sentences.json").read_text())
    with torch.no_grad():
        first, later = (model.representations(CharacterIds()([texts[0][index].split()]))[0, -1] for index in (0, 1))
    torch.testing.assert_close(first, embeddings(released, 0)[0], rtol=1e-6, atol=1e-6)
    assert (later - embeddings(released, 0)[1]).abs().max() > 0.1


def test_released_context_free_embeddings_are_reproduced(released):
    model = load_elmo(released)
    words = (released / "vocab_test.txt").read_text().split("\n")
    with h5py.File(released / "elmo_token_embeddings.hdf5") as file:
        expected = torch.from_numpy(file["embedding"][()])
    with torch.no_grad():
        found = model.word_encoder(CharacterIds()([words]))[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert {"<S>", "</S>"} <= set(words)


def test_round_trip_of_a_released_model_is_bit_exact(released, tmp_path):
    save_elmo(load_elmo(released), tmp_path / "again")
    assert same_datasets(released / "lm_weights.hdf5", tmp_path / "again" / "weights.hdf5") == 33
    options, again = (json.loads((folder / "options.json").read_text()) for folder in (released, tmp_path / "again"))
    assert options == again


def same_datasets(one: Path, other: Path) -> int:
    """Return the number of datasets after checking that both files are equal."""
    names: tuple[list[str], list[str]] = ([], [])
    with h5py.File(one) as first, h5py.File(other) as second:
        for file, found in zip((first, second), names, strict=True):
            file.visititems(
                lambda name, thing, found=found: found.append(name) if isinstance(thing, h5py.Dataset) else None
            )
        assert names[0] == names[1]
        for name in names[0]:
            assert first[name][()].tobytes() == second[name][()].tobytes()
    return len(names[0])


@pytest.mark.parametrize(
    "changes", [{}, {"skip_connections": False, "cell_clip": None, "activation": "tanh", "highway_layers": 0}]
)
def test_round_trip_is_bit_exact(tmp_path, changes):
    model = Elmo(CONFIG.replace(**changes)).eval()
    save_elmo(model, tmp_path / "elmo")
    again = load_elmo(tmp_path / "elmo")
    assert not again.training
    for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        if name == "word_encoder.embed.weight":  # row 0 is padding and not stored
            assert other[0].abs().max() == 0
            one, other = one[1:], other[1:]
        assert torch.equal(one, other), name
    assert again.config.dropout == 0.1
    assert again.config.replace(dropout=0.0) == model.config
    assert again.tokenizer is None
    rows = CharacterIds(9)([["a", "cat"], ["sat"]])
    assert torch.equal(again(rows), model(rows))


@pytest.mark.parametrize("head", ["language_model", "tagger"])
def test_output_layer_and_head_are_not_written(tmp_path, head):
    save_elmo(Elmo(CONFIG.replace(vocab_size=20, head=head)), tmp_path / "elmo")
    assert load_elmo(tmp_path / "elmo").config.head is None


def test_load_with_a_dtype(saved):
    assert {p.dtype for p in load_elmo(saved, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_weights_may_be_stored_in_other_float_dtypes(saved, dtype):
    expected = load_elmo(saved)

    def rewrite(file: Any) -> None:
        values = file[f"{CELL}/W_0"][()]
        del file[f"{CELL}/W_0"]
        file.create_dataset(f"{CELL}/W_0", data=values, dtype=dtype)

    altered(saved, rewrite)
    found = load_elmo(saved).layers[1].gates[1]
    torch.testing.assert_close(found, expected.layers[1].gates[1], rtol=1e-3, atol=1e-3)


def test_file_names_may_have_a_prefix(saved, tmp_path):
    assert elmo_files(saved) == (saved / "options.json", saved / "weights.hdf5")
    long = tmp_path / "long"
    long.mkdir()
    shutil.copy(saved / "options.json", long / "elmo_2x4096_512_2048cnn_2xhighway_options.json")
    shutil.copy(saved / "weights.hdf5", long / "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5")
    assert elmo_files(long) is not None
    (long / "other_embeddings.hdf5").touch()  # not called weights
    assert load_elmo(long).config == load_elmo(saved).config
    (long / "more_weights.hdf5").touch()
    assert elmo_files(long) is None
    with pytest.raises(InputError, match="not a saved model"):
        load_elmo(long)
    assert elmo_files(tmp_path) is None
    assert elmo_files(tmp_path / "nowhere") is None


def test_without_h5py_the_error_says_what_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"pip install 'qkv\[elmo\]'"):
        load_elmo(saved)


def altered(folder: Path, change: Callable[[Any], object]) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        change(file)


def refused(folder: Path) -> str:
    """Return the error of loading, after checking that it is one line and names a file."""
    with cpu_limit(30), pytest.raises(CheckpointError) as caught:
        load_elmo(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def replaced(name: str, **how: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        values = file[name][()]
        del file[name]
        file.create_dataset(name, **({"data": values} | how))

    return change


def elsewhere(link: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file["char_embed"]
        file["char_embed"] = link

    return change


def unfinished(file: Any) -> None:
    file[f"{CELL}/B"][0] = float("nan")


def in_another_file(file: Any) -> None:
    # HDF5 writes through to such a file: it has to be one of the test's own.
    beside = str(Path(file.filename).parent / "other.raw")
    replaced("char_embed", external=[(beside, 0, h5py.h5f.UNLIMITED)])(file)


def virtual(file: Any) -> None:
    del file["char_embed"]
    layout = h5py.VirtualLayout(shape=(261, 3), dtype="f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", shape=(261, 3))
    file.create_virtual_dataset("char_embed", layout)


def never_written(file: Any) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", shape=(261, 3), dtype="f4")  # no bytes are there yet


def references(file: Any) -> None:
    del file["CNN_proj/b_proj"]
    file.create_dataset("CNN_proj/b_proj", data=[file.ref] * 4, dtype=h5py.ref_dtype)


def around_in_circles(file: Any) -> None:
    del file["CNN_high_0"]
    file["CNN_high_0"] = file["/"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.__delitem__(f"{CELL}/W_P_0"), f"{CELL}/W_P_0 is missing"),
        (lambda file: file.__delitem__("RNN_1"), "RNN_1 is missing"),
        (lambda file: file.create_dataset("CNN/W_cnn_2", data=[1.0]), "CNN/W_cnn_2 is not part of the model"),
        (lambda file: [file.create_group(f"g{n}") for n in range(3000)], "g0 is not part of the model"),
        (replaced("char_embed", data=[[0.0] * 3] * 262), r"char_embed has shape \(262, 3\).*\(261, 3\)"),
        (replaced("CNN_proj/b_proj", dtype="i4"), "CNN_proj/b_proj has dtype int32"),
        (replaced("CNN_proj/b_proj", data=["a"] * 4), "CNN_proj/b_proj has dtype object"),
        (references, "CNN_proj/b_proj has dtype object"),
        (replaced("char_embed", compression="gzip"), "char_embed is not stored contiguously"),
        (replaced("char_embed", chunks=(10, 3)), "char_embed is not stored contiguously"),
        (in_another_file, "char_embed is not stored contiguously"),
        (virtual, "char_embed is not stored contiguously"),
        (never_written, "char_embed is not stored contiguously"),
        (unfinished, f"{CELL}/B contains non-finite"),
        (elsewhere(h5py.ExternalLink("other.hdf5", "/x")), "char_embed is a link"),
        (elsewhere(h5py.SoftLink("/CNN_proj/W_proj")), "char_embed is a link"),
        (elsewhere(h5py.SoftLink("/nowhere")), "char_embed is"),
        (around_in_circles, "CNN_high_0/CNN.* is not part of the model"),
        (replaced("CNN_proj/b_proj", data=None, shape=None, dtype="f4"), "CNN_proj/b_proj"),
    ],
)
def test_an_inconsistent_file_is_an_error(saved, change, words):
    altered(saved, change)
    assert re.search(words, refused(saved))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_an_error(saved, share):
    path = saved / "weights.hdf5"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(saved)


def test_a_corrupted_file_loads_or_is_an_error(saved):
    path = saved / "weights.hdf5"
    whole = path.read_bytes()
    draw = torch.Generator().manual_seed(0)
    outcomes = set()
    for _ in range(150):
        data = bytearray(whole)
        # HDF5 stores most of its metadata at the beginning.
        for index in torch.randint(len(whole) // 4, (3,), generator=draw).tolist():
            data[index] = int(torch.randint(256, (), generator=draw))
        path.write_bytes(data)
        try:
            load_elmo(saved)
            outcomes.add("loaded")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("lstm", "dim", 10**12, "hidden_dim"),
        ("lstm", "dim", 64, "has shape"),
        ("lstm", "dim", None, "hidden_dim"),
        ("lstm", "n_layers", 3, "Cell2 is missing"),
        ("lstm", "n_layers", 10**9, "layers"),
        ("lstm", "n_layers", "two", "layers must be an integer"),
        ("lstm", "cell_clip", -1, "cell_clip"),
        ("lstm", "use_skip_connections", "yes", "skip_connections must be true or false"),
        ("lstm", "peepholes", True, r"lstm\.peepholes"),
        ("char_cnn", "activation", "selu", "activation"),
        ("char_cnn", "activation", "__import__('os')", "activation"),
        ("char_cnn", "filters", [[1, 10**6]] * 1000, "features"),
        ("char_cnn", "filters", [[1, 2], [10, 4]], "wider"),
        ("char_cnn", "filters", [[1]], "pairs"),
        ("char_cnn", "filters", "x", "filters"),
        ("char_cnn", "n_characters", 300, "n_characters"),
        ("char_cnn", "embedding", 3, "embedding"),
        ("char_cnn", "embedding", {"dim": 10**15}, "character_dim"),
    ],
)
def test_invalid_option_values_are_errors(saved, unchecked, section, key, value, words):
    path = saved / "options.json"
    options = json.loads(path.read_text())
    options[section][key] = value
    path.write_text(json.dumps(options))
    assert re.search(words, refused(saved))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"lstm": {}, "lstm": {}}', '{"lstm": {}, "char_cnn": {}}', "[" * 10**5]
)
def test_malformed_options_are_errors(saved, text):
    (saved / "options.json").write_text(text)
    refused(saved)


def test_a_unidirectional_model_is_an_error(saved):
    path = saved / "options.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bidirectional": False}))
    assert "bidirectional" in refused(saved)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bidirectional": True, "n_train_tokens": 768648884}))
    load_elmo(saved)
