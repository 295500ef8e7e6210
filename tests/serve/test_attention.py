"""Attention over HTTP: the weights of the model, with heads ablated and tokens masked."""

import base64
import json
import re

import numpy as np
import pytest
import torch

import qkv
from qkv.attention.layers import attention_layers
from qkv.interpret.attention_probe import AttentionProbe
from qkv.serve import create_app
from qkv.serve.attention import AttentionOptions, attention_function
from qkv.serve.settings import ServeSettings


def function_of(folder):
    network = qkv.load(folder)
    pipelines = [qkv.Translator(network)] if hasattr(network, "encode") else []
    return network, attention_function(network, pipelines)


@pytest.mark.parametrize("name", ["gpt", "classifier"])
def test_weights_are_those_of_the_probe(folders, name):
    network, attend = function_of(folders[name])
    answer, expected = attend("the cat sat", AttentionOptions()), AttentionProbe(network)("the cat sat")
    assert [m.layer for m in answer.attention] == [m.layer for m in expected.attention] == [*attention_layers(network)]
    for found, other in zip(answer.attention, expected.attention, strict=True):
        assert np.array_equal(found.weights, other.weights)


@pytest.mark.parametrize("name", ["gpt", "classifier", "transformer", "gru"])
def test_no_query_attends_to_masked_tokens_and_the_output_changes(folders, name):
    _, attend = function_of(folders[name])
    plain, masked = (attend("the cat sat", AttentionOptions(mask=mask)) for mask in ((), (1, 2)))
    over_input = [m for m in masked.attention if m.columns == plain.attention[0].columns]
    assert over_input
    for m in over_input:
        assert (m.weights[:, :, 1:3] == 0).all()
        sums = m.weights.sum(axis=2)
        assert np.allclose(sums[sums > 0], 1.0, atol=1e-5)
    assert plain.attention[0].weights[:, :, 1:3].sum() > 0
    assert plain.score != masked.score
    assert attend("the cat sat", AttentionOptions()).score == plain.score  # nothing stays masked


def test_an_ablated_head_has_no_output(folders):
    network, attend = function_of(folders["classifier"])
    layer = next(iter(attention_layers(network)))
    answer = attend("the cat sat", AttentionOptions(ablate=((layer, 1),)))
    with qkv.ablate(network, layer, [1]):
        expected = AttentionProbe(network)("the cat sat")
    assert answer.score == expected.score != attend("the cat sat", AttentionOptions()).score
    assert not any(attend.ablations for attend in attention_layers(network).values())


def test_attention_over_http(client, folders):
    body = {"model": "gpt", "input": "to be or", "options": {"mask": [1]}}
    response = client.post("/attention", json=body)
    assert response.status_code == 200
    payload = response.json()
    assert payload["model"] == "gpt"
    (example,) = payload["examples"]
    first = example["maps"][0]
    steps = np.frombuffer(base64.b64decode(first["weights"]["steps"]), "<u2").reshape(first["heads"], 8, 8)
    _, attend = function_of(folders["gpt"])
    expected = attend("to be or", AttentionOptions(mask=(1,))).attention[0].weights
    assert np.abs(steps / 65535 - expected).max() <= 1 / 65535
    assert example["texts"][first["columns"]] == list("to be or")


@pytest.mark.parametrize(
    ("options", "word"),
    [({"mask": [99]}, "token"), ({"ablate": [{"layer": "no", "head": 0}]}, "layer"), ({"layer": "no"}, "layer"),
     ({"ablate": [{"layer": "blocks.0", "head": 77}]}, "head")],
)  # fmt: skip
def test_changes_that_do_not_fit_are_refused(client, options, word):
    response = client.post("/attention", json={"model": "gpt", "input": "to be", "options": options})
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]
    assert client.post("/attention", json={"model": "gpt", "input": "to be"}).status_code == 200


def test_decoding_is_not_affected_by_attention_of_the_same_model(client):
    from concurrent.futures import ThreadPoolExecutor

    body = {"model": "transformer", "input": "the cat", "max_new_tokens": 12}
    alone = client.post("/translate", json=body).json()
    masked = {"model": "transformer", "input": "the cat", "options": {"mask": [0, 1, 2]}}
    with ThreadPoolExecutor(8) as pool:
        calls = [("/translate", body), ("/attention", masked)] * 8
        answers = list(pool.map(lambda call: client.post(call[0], json=call[1]).json(), calls))
    assert all(answer == alone for answer in answers[::2])


def test_the_explorer_page_names_the_models_with_attention(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    names = json.loads(re.search(r'"models":(\[.*?\])', page.text)[1])
    assert names == ["answerer", "classifier", "filler", "gpt", "gru", "lstmn", "tagger", "transformer"]
    inputs = json.loads(re.search(r'"inputs":(\{.*?\})', page.text)[1])
    assert [*inputs] == names
    assert (inputs["gpt"], inputs["transformer"]) == ("Once upon a time", "Where is the station?")
    assert "[MASK]" in inputs["filler"]


def test_the_explorer_page_starts_with_the_example_of_a_packaged_model():
    from fastapi.testclient import TestClient

    with TestClient(create_app(["mine=dates"], ServeSettings(device="cpu"))) as client:
        page = client.get("/").text
    assert json.loads(re.search(r'"inputs":(\{.*?\})', page)[1]) == {"mine": "Donnerstag, 5. März 2026"}


def test_torch_is_left_without_hooks(folders):
    network, attend = function_of(folders["gpt"])
    with pytest.raises(Exception, match="token"):
        attend("to", AttentionOptions(mask=(50,)))
    assert not any(module._forward_pre_hooks for module in network.modules())
    assert isinstance(network, torch.nn.Module)
