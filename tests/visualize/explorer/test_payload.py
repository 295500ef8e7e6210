"""The payload of the explorer: formats, sizes, and weights that can be read back."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.errors import InputError
from qkv.interpret.attention_probe import TextAnswer
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_page
from qkv.visualize.explorer import build_payload
from qkv.visualize.explorer.bundle import bundle


def random_answer(tokens: int, heads: int, layers: int, peaked: float = 0.1) -> Answer:
    """An answer with random attention rows; the smaller `peaked`, the sparser."""
    names = tuple(f"t{i}" for i in range(tokens))
    draw = np.random.default_rng(tokens)
    maps = (
        AttentionMap(f"encoder.{layer}", names, names, draw.dirichlet(np.full(tokens, peaked), size=(heads, tokens)))
        for layer in range(layers)
    )
    return Answer("text", "", 0.0, tuple(maps))


def uint16(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<u2")


def restored(stored: dict[str, Any], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored weights (0 elsewhere) of the heads and the upper bound of all others."""
    weights, heads = stored["weights"], stored["heads"]
    if weights["encoding"] == "dense":
        return uint16(weights["steps"]).reshape(heads, rows, columns) / 65535, np.zeros((heads, rows))
    shape = (heads + 1, rows, weights["k"])
    at, values = uint16(weights["columns"]).reshape(shape), uint16(weights["steps"]).reshape(shape) / 65535
    dense = np.zeros((heads + 1, rows, columns))
    np.put_along_axis(dense, at.astype(int), values, axis=2)
    return dense[:-1], values[:-1, :, -1]


def test_small_maps_store_every_weight() -> None:
    answer = random_answer(20, 3, 2)
    payload = build_payload([answer])
    for stored, attention_map in zip(payload["examples"][0]["maps"], answer.attention, strict=True):
        weights, _ = restored(stored, 20, 20)
        np.testing.assert_allclose(weights, attention_map.weights, atol=0.5 / 65535 + 1e-7)


def test_large_maps_store_the_largest_weights_and_bound_the_others() -> None:
    answer = random_answer(150, 4, 3)
    payload = build_payload([answer], max_bytes=400_000)
    assert any("largest weights" in note for note in payload["notes"])
    for stored, attention_map in zip(payload["examples"][0]["maps"], answer.attention, strict=True):
        assert stored["weights"]["encoding"] == "sparse"
        weights, bound = restored(stored, 150, 150)
        exact = np.asarray(attention_map.weights)
        kept = weights > 0
        np.testing.assert_allclose(weights[kept], exact[kept], atol=0.5 / 65535 + 1e-7)
        assert (exact <= np.where(kept, 1, bound[:, :, None]) + 1 / 65535).all()
        assert kept.sum(axis=2).max() == stored["weights"]["k"]


def test_the_average_of_sparse_heads_is_that_of_all_weights() -> None:
    answer = random_answer(150, 4, 3)
    stored = build_payload([answer], max_bytes=400_000)["examples"][0]["maps"][0]
    k = stored["weights"]["k"]
    values = uint16(stored["weights"]["steps"]).reshape(5, 150, k)[-1] / 65535
    exact = np.sort(answer.attention[0].average, axis=1)[:, ::-1][:, :k]
    np.testing.assert_allclose(values, exact, atol=0.5 / 65535 + 1e-7)


@pytest.mark.parametrize(("tokens", "heads", "layers"), [(64, 8, 6), (300, 12, 4), (700, 4, 2)])
def test_a_page_stays_within_its_size(tokens: int, heads: int, layers: int) -> None:
    import json

    answer = random_answer(tokens, heads, layers)
    for size in (60_000, 300_000, 3_000_000):
        payload = build_payload([answer], max_bytes=size)
        maps = payload["examples"][0]["maps"]
        if len(maps) > 1 or maps[0]["weights"].get("k", 3) > 2:  # not the least that a page holds
            assert len(json.dumps(payload)) < size + 10_000
        assert (len(maps) < layers) == any(f"of {layers} layers" in note for note in payload["notes"])


def test_too_many_examples_are_left_out_and_the_page_says_so() -> None:
    answers = [random_answer(60, 2, 1)] * 100
    payload = build_payload(answers, max_bytes=200_000)
    assert 0 < len(payload["examples"]) < 100
    assert any("of 100 examples" in note for note in payload["notes"])


def test_the_overview_of_a_large_map_holds_the_largest_weight_of_each_block() -> None:
    answer = random_answer(200, 2, 1)
    overview = build_payload([answer])["examples"][0]["maps"][0]["overview"]
    assert (overview["height"], overview["width"]) == (48, 48)
    pooled = uint16(overview["values"]).reshape(3, 48, 48) / 65535
    edges = [i * 200 // 48 for i in range(49)]
    for head in range(2):
        for i, j in ((0, 0), (5, 40), (47, 47)):
            block = np.asarray(answer.attention[0].weights)[head, edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
            assert pooled[head, i, j] == pytest.approx(block.max(), abs=1e-5)


def test_layers_that_share_their_tokens_store_them_once() -> None:
    rows, columns = tuple("wxyz"), tuple("abcd")
    maps = (
        AttentionMap("decoder.0.cross", rows, columns, np.full((1, 4, 4), 0.25)),
        AttentionMap("encoder.0", columns, columns, np.full((1, 4, 4), 0.25)),
    )
    (example,) = build_payload([Answer("abcd", "wxyz", 0.0, maps)])["examples"]
    assert example["texts"] == [rows, columns]
    assert [(m["rows"], m["columns"]) for m in example["maps"]] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("model", "name"), [("/home/ann/folders/bert", "folders/bert"), ("runs/demo", "runs/demo"), ("dates", "dates")]
)
def test_the_name_of_a_model_is_the_end_of_an_absolute_path(model: str, name: str) -> None:
    payload = build_payload([random_answer(3, 1, 1)], model=model)
    assert payload["title"] == f"Attention of {name}"
    assert payload["model"] == payload["examples"][0]["model"] == name


def test_models_whose_paths_end_alike_keep_their_paths() -> None:
    paths = ["/a/bert/model", "/b/bert/model"]
    payload = build_payload([random_answer(3, 1, 1)] * 2, model=paths)
    assert [example["model"] for example in payload["examples"]] == paths


@pytest.mark.parametrize(("tokens", "reason"), [(400, "a text of 400 tokens"), (20, "token by token")])
def test_a_note_says_why_there_is_no_operator(tokens: int, reason: str) -> None:
    answer = TextAnswer("text", "", 0.0, random_answer(tokens, 1, 1).attention)
    (example,) = build_payload([answer])["examples"]
    assert example["operators"] == []
    assert reason in example["operator_note"]


def test_a_title_with_undecodable_bytes_still_gives_a_page(tmp_path: Path) -> None:
    path = save_page([Answer("\udcff", "\udcff", 0.0)], tmp_path / "page.html", title="run-\udcff")
    assert "<title>run-?</title>" in path.read_text(encoding="utf-8")


def test_non_finite_weights_keep_the_old_page(tmp_path: Path) -> None:
    path = save_page([random_answer(4, 1, 1)], tmp_path / "page.html")
    before = path.read_bytes()
    broken = AttentionMap("decoder", ("a",), ("b",), np.full((1, 1, 1), np.nan))
    with pytest.raises(InputError, match="decoder"):
        save_page([Answer("b", "a", 0.0, (broken,))], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_script_has_no_module_syntax_left() -> None:
    script = bundle("app.js")
    assert not any(line.startswith(("import ", "export ")) for line in script.splitlines())
    assert script.count('modules["weights.js"] =') == 1
