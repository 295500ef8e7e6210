"""Completions: equal to those of `Generator`, with stop sequences, log-probabilities and streams."""

import json
import math

import pytest
import torch

import qkv
from qkv.generation import GenerationConfig, Sampling


@pytest.fixture(scope="module")
def generator(folders):
    return qkv.Generator(folders["gpt"], device="cpu")


def complete(client, **body):
    response = client.post("/v1/completions", json={"model": "gpt", "max_tokens": 12, "seed": 7, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events(client, **body):
    """The completions of a stream, after a check of its end."""
    body = {"model": "gpt", "max_tokens": 12, "seed": 7, "stream": True, **body}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"temperature": 1.5, "top_k": 5}, {"top_p": 0.8}])
@pytest.mark.parametrize("model", ["gpt", "lstm", "lstmn"])
def test_samples_are_those_of_the_generator(client, folders, model, options):
    answer = complete(client, model=model, prompt=["to be", "or not to be:"], n=2, **options)
    generator = qkv.Generator(folders[model], device="cpu")
    expected = generator(["to be", "or not to be:"], max_new_tokens=12, seed=7, num_return_sequences=2, **options)
    texts = [sample.continuation for samples in expected for sample in samples]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"] == {"prompt_tokens": 18, "completion_tokens": 48, "total_tokens": 66}


def test_without_a_seed_samples_differ(client):
    texts = {complete(client, prompt="to", seed=None, temperature=3.0)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_a_prompt_can_be_token_ids(client, generator):
    ids = generator.tokenizer.encode("to be")
    one = complete(client, prompt="to be")["choices"][0]["text"]
    assert complete(client, prompt=ids)["choices"][0]["text"] == one
    assert [choice["text"] for choice in complete(client, prompt=[ids])["choices"]] == [one]


def test_characters_outside_the_vocabulary_are_returned(client):
    whole = complete(client, prompt=["to be", "tΩ bΩ, é"], n=2)
    assert [choice["unknown"] for choice in whole["choices"]] == [[], [], ["Ω", "é"], ["Ω", "é"]]
    for part in events(client, prompt=["to be", "é"]):
        assert all(choice["unknown"] == [[], ["é"]][choice["index"]] for choice in part["choices"])


def test_a_stream_has_the_text_of_the_completion(client):
    whole = complete(client, prompt=["to be", "or"], n=2)
    parts = events(client, prompt=["to be", "or"], n=2, stream_options={"include_usage": True})
    texts, reasons = [""] * 4, [None] * 4
    for part in parts[:-1]:
        (choice,) = part["choices"]
        assert reasons[choice["index"]] is None
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert reasons == ["length"] * 4
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]
    assert len(parts) == 4 * 12 + 1
    assert len({part["id"] for part in parts}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["not", ["zzz", " not", "t to"], "r n", "q"])
def test_the_text_ends_before_a_stop_sequence(client, stream, stop):
    whole = complete(client, prompt="to be", temperature=0.0, max_tokens=30)["choices"][0]["text"]
    stops = [stop] if isinstance(stop, str) else stop
    cuts = [whole.find(text) for text in stops if text in whole]
    expected = whole[: min(cuts)] if cuts else whole
    options = {"prompt": "to be", "temperature": 0.0, "max_tokens": 30, "stop": stop}
    if stream:
        choices = [part["choices"][0] for part in events(client, **options)]
    else:
        choices = complete(client, **options)["choices"]
    assert "".join(choice["text"] for choice in choices) == expected
    assert choices[-1]["finish_reason"] == ("stop" if cuts else "length")


@torch.no_grad()
def test_log_probabilities_are_those_of_the_model(client, generator):
    (choice,) = complete(client, prompt="to be", logprobs=3)["choices"]
    scores, text = choice["logprobs"], choice["text"]
    ids = generator.tokenizer.encode(f"to be{text}")
    log_p = generator.model(torch.tensor([ids]))[0].log_softmax(dim=-1)[4:-1]
    assert scores["tokens"] == list(text)
    assert scores["token_logprobs"] == pytest.approx([float(row[i]) for row, i in zip(log_p, ids[5:], strict=True)],
                                                     abs=1e-4)  # fmt: skip
    assert scores["text_offset"] == list(range(len(text)))
    for row, top in zip(log_p, scores["top_logprobs"], strict=True):
        allowed = [index for index in row.argsort(descending=True).tolist() if index not in generator.suppressed][:3]
        assert top == pytest.approx({generator.tokenizer.piece(i): float(row[i]) for i in allowed}, abs=1e-4)


@torch.no_grad()
def test_echo_returns_the_prompt_with_its_log_probabilities(client, generator):
    (choice,) = complete(client, prompt="to be, or", echo=True, logprobs=1, max_tokens=0)["choices"]
    assert choice["text"] == "to be, or"
    ids = generator.tokenizer.encode("to be, or")
    log_p = generator.model(torch.tensor([ids]))[0].log_softmax(dim=-1)
    expected = [float(log_p[position, token]) for position, token in enumerate(ids[1:])]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    assert choice["logprobs"]["text_offset"] == list(range(9))
    both = complete(client, prompt="to be", echo=True)["choices"][0]["text"]
    assert both == "to be" + complete(client, prompt="to be")["choices"][0]["text"]
    assert "".join(part["choices"][0]["text"] for part in events(client, prompt="to be", echo=True)) == both


def test_requests_in_one_batch_have_the_answers_of_requests_alone(client):
    """Several samplings, limits and stop sequences at once, each compared bit for bit with itself alone."""
    from concurrent.futures import ThreadPoolExecutor

    bodies = [
        {"prompt": "to be, or not to be: that is"[: 2 + n], "seed": n, "temperature": n % 3 / 2, "max_tokens": 5 + n,
         "top_p": [1.0, 0.7][n % 2], "logprobs": n % 4, "stop": ["e t"] if n % 5 == 0 else None}
        for n in range(24)
    ]  # fmt: skip
    alone = [complete(client, **body)["choices"] for body in bodies]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda body: complete(client, **body)["choices"], bodies)) == alone
    assert len({choice["text"] for (choice,) in alone}) > 12


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"prompt": ""}, 400, "empty"),
        ({"prompt": []}, 400, "no texts"),
        ({"prompt": [10**6]}, 400, "vocabulary"),
        ({"max_tokens": 101}, 400, "limit of 100"),
        ({"max_tokens": 0}, 400, "echo"),
        ({"prompt": "to be " * 40, "max_tokens": 1}, 400, "240 tokens exceeds the model's context of 128"),
        ({"prompt": "x" * 70_000}, 400, "characters"),
        ({"n": 17}, 400, "limit of 16"),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"best_of": 3}, 400, "best_of"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": math.inf}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"maximum_tokens": 3}, 400, "maximum_tokens"),
        ({"max_token": 3}, 400, "unknown field 'max_token' (did you mean max_tokens?)"),
        ({"temprature": 1, "top_p": 0}, 400, "temprature"),
        ({"model": "GPT"}, 404, "gpt"),
        ({"model": "classifier"}, 400, "/classify"),
    ],
)
def test_errors_name_the_field(client, body, status, word):
    content = json.dumps({"model": "gpt", "prompt": "to be", **body})
    response = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


def test_models_are_described(client):
    listed = client.get("/v1/models").json()["data"]
    assert [client.get(f"/v1/models/{model['id']}").json() for model in listed] == listed
    assert client.get("/v1/models/none").json()["error"]["code"] == "model_not_found"


def test_a_wrong_path_method_or_type_of_the_body_is_named(client):
    def message(response, status):
        assert response.status_code == status
        return response.json()["error"]["message"]

    assert "did you mean /v1/completions?" in message(client.post("/v1/completion", json={}), 404)
    assert "POST" in message(client.get("/v1/completions"), 405)
    plain = client.post("/v1/completions", content="{}", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert "Content-Type: application/json" in message(plain, 400)
    assert "JSON object" in message(client.post("/v1/completions", json=[1]), 400)


def test_a_text_that_ends_is_finished_by_stop(folders, tmp_path):
    """A model with an end token ends by itself, or at the maximum."""
    import shutil

    from fastapi.testclient import TestClient

    from qkv.serve import create_app

    folder = shutil.copytree(folders["gpt"], tmp_path / "ends")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "has_end_token": True}))
    generator = qkv.Generator(folder, device="cpu")
    config = GenerationConfig(max_new_tokens=8, sampling=Sampling(temperature=4.0), num_return_sequences=16)
    ((_, expected),) = generator.stream_results(["to"], config)
    with TestClient(create_app([str(folder)])) as client:
        body = {"model": "ends", "prompt": "to", "max_tokens": 8, "temperature": 4.0, "seed": 0, "n": 16}
        choices = client.post("/v1/completions", json=body).json()["choices"]
    assert [choice["text"] for choice in choices] == [sample.continuation for sample in expected]
    reasons = ["stop" if sample.new_tokens < 8 else "length" for sample in expected]
    assert [choice["finish_reason"] for choice in choices] == reasons
    assert set(reasons) == {"stop", "length"}
