"""Limits: keys, sizes, full queues, time limits, metrics, and the order of the end."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape

import pytest
from fastapi.testclient import TestClient

from qkv.errors import InputError
from qkv.serve import create_app
from qkv.serve.api_page import example_of
from qkv.serve.loaded import ModelPool
from qkv.serve.metrics import Metrics
from qkv.serve.settings import ServeSettings, read_api_keys
from qkv.serve.task_schemas import AttentionResponse
from qkv.serve.worker import TextsJob

KEY = "sk-0123456789abcdef"


def app_of(folders, *names, **settings):
    settings = ServeSettings(device="cpu", **settings)
    app = create_app([str(folders[name]) for name in names], settings)
    return TestClient(app, raise_server_exceptions=False)


def test_requests_need_a_key(folders):
    with app_of(folders, "gpt", api_keys=("sk-another-key-of-length", KEY)) as client:
        body = {"model": "gpt", "prompt": "to", "max_tokens": 2}
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {KEY}"}, {"X-API-Key": KEY[:-1]}):
            sent = client.post("/v1/completions", json=body, headers=headers)
            for response in (sent, *(client.get(path, headers=headers) for path in ("/v1/models", "/metrics"))):
                assert response.status_code == 401
                assert response.json()["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}):
            assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
        for path in ("/health", "/ready", "/docs", "/openapi.json", "/"):
            assert client.get(path).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"key": []}]


def test_requests_are_logged_on_request(folders, caplog):
    for access_log in (False, True):
        caplog.clear()
        with app_of(folders, "gpt", access_log=access_log) as client, caplog.at_level("INFO", "qkv.serve.access"):
            client.post("/v1/completions", json={"model": "gpt", "prompt": "to", "max_tokens": 2})
            client.get("/none%0a")
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 2 * access_log
    assert re.fullmatch(r"POST /v1/completions 200 \d+ ms", messages[0])
    assert re.fullmatch(r"GET /none\S+ 404 \d+ ms", messages[1])  # the line break is escaped


def test_keys_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("QKV_API_KEYS", raising=False)
    assert read_api_keys(None) == ()
    monkeypatch.setenv("QKV_API_KEYS", f"{KEY}, {KEY}2")
    assert read_api_keys(None) == (KEY, f"{KEY}2")
    path = tmp_path / "keys"
    path.write_text(f"# a comment\n\n{KEY}3\n")
    assert read_api_keys(path) == (f"{KEY}3",)
    for text in ("", "short\n", "a key with spaces in it\n"):
        path.write_text(text)
        with pytest.raises(InputError, match="key"):
            read_api_keys(path)
    assert KEY not in repr(ServeSettings(api_keys=(KEY,)))


def test_large_bodies_are_refused_whether_their_size_is_declared_or_not(folders):
    with app_of(folders, "gpt", max_body_bytes=1000) as client:
        body = json.dumps({"model": "gpt", "prompt": "x" * 2000}).encode()
        for content in (body, iter([body[:900], body[900:]])):
            response = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
            assert response.status_code == 413
            assert "1,000" in response.json()["error"]["message"]
        response = client.post("/v1/completions", json={"model": "gpt", "prompt": "to", "max_tokens": 1})
        assert response.status_code == 200


def test_a_full_queue_refuses_requests_until_it_is_empty(folders):
    with app_of(folders, "gpt", max_queue=4, max_batch=2, max_inputs=4) as client:
        worker = client.app.state.served.pool.models["gpt"].worker
        begin = threading.Event()
        block(client, worker, begin)  # the worker waits; requests fill the queue
        bodies = [{"model": "gpt", "prompt": "to be", "max_tokens": 5, "seed": n} for n in range(12)]
        with ThreadPoolExecutor(12) as pool:
            answers = [pool.submit(client.post, "/v1/completions", json=body) for body in bodies]
            while sum(answer.done() for answer in answers) < 9:  # all but those in the queue
                time.sleep(0.01)
            begin.set()
            answers = [answer.result() for answer in answers]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert [answer.status_code for answer in answers].count(200) == 3
        assert len(refused) == 9
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
        assert refused[0].json()["error"]["code"] == "queue_full"
        assert client.post("/v1/completions", json=bodies[0]).status_code == 200
        assert client.post("/v1/completions", json={**bodies[0], "n": 5}).status_code == 400


def block(client, worker, begin):
    """Keep a worker busy until `begin` is set."""
    running = threading.Event()

    def wait(texts):
        running.set()
        assert begin.wait(30)
        return texts

    async def submit():
        worker.submit(TextsJob("block", [""], wait))

    client.portal.call(submit)
    assert running.wait(30)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_given_up_after_the_time_limit(folders, stream):
    with app_of(folders, "gpt", timeout=0.2) as client:
        worker, begin = client.app.state.served.pool.models["gpt"].worker, threading.Event()
        block(client, worker, begin)
        body = {"model": "gpt", "prompt": "to be", "max_tokens": 5, "stream": stream}
        response = client.post("/v1/completions", json=body)
        if stream:  # the status was sent before
            assert '"code":"timeout"' in response.text
            assert "[DONE]" not in response.text
        else:
            assert response.status_code == 503
            assert "Retry-After" in response.headers
        begin.set()
        for _ in range(500):  # the worker drops what nobody waits for
            if worker._pending == 0:
                break
            time.sleep(0.01)
        assert worker._pending == 0
        assert client.post("/v1/completions", json={**body, "stream": False}).status_code == 200


def test_accepted_requests_are_finished_when_the_server_stops(folders):
    with app_of(folders, "gpt") as client:
        worker, begin = client.app.state.served.pool.models["gpt"].worker, threading.Event()
        block(client, worker, begin)
        bodies = [{"model": "gpt", "prompt": "to be", "max_tokens": 20, "seed": n} for n in range(5)]
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(client.post, "/v1/completions", json=body) for body in bodies]
            while worker._pending < 6:
                time.sleep(0.01)
            closing = pool.submit(worker.close)
            while worker.alive:
                time.sleep(0.01)
            assert client.get("/ready").status_code == 503
            refused = client.post("/v1/completions", json=bodies[0])
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            begin.set()
            assert [answer.result().status_code for answer in answers] == [200] * 5
            closing.result()


def test_an_unexpected_error_is_answered_and_the_worker_goes_on(folders, monkeypatch):
    with app_of(folders, "gpt") as client:
        model = client.app.state.served.pool.models["gpt"]
        body = {"model": "gpt", "prompt": "to be", "max_tokens": 5, "seed": 0}
        expected = client.post("/v1/completions", json=body).json()["choices"]
        batch = model.worker._batches[()]
        monkeypatch.setattr(batch._decoder, "advance", lambda: 1 / 0)
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 500
        assert "division" not in response.text
        assert client.post("/v1/completions", json=body).json()["choices"] == expected


def test_metrics_count_requests_and_tokens(folders):
    with app_of(folders, "gpt") as client:
        for _ in range(3):
            client.post("/v1/completions", json={"model": "gpt", "prompt": "to be", "max_tokens": 4, "seed": 1})
        client.post("/v1/completions", json={"model": "none", "prompt": "to be"})
        client.get("/unknown/path")
        text = client.get("/metrics").text
    assert 'qkv_requests_total{endpoint="/v1/completions",status="200"} 3.0' in text
    assert 'qkv_requests_total{endpoint="/v1/completions",status="404"} 1.0' in text
    assert 'qkv_requests_total{endpoint="other",status="404"} 1.0' in text
    assert 'qkv_new_tokens_total{model="gpt"} 12.0' in text
    assert 'qkv_prompt_tokens_total{model="gpt"} 15.0' in text
    assert 'qkv_queued_sequences{model="gpt"} 0.0' in text
    assert "/unknown" not in text


def test_models_are_named_by_their_folders_or_by_the_user(folders):
    settings, gpt = ServeSettings(device="cpu"), str(folders["gpt"])
    pool = ModelPool([f"poet={gpt}", gpt], settings, Metrics())
    assert list(pool.models) == ["poet", "gpt"]
    pool.close()
    for sources, word in (([], "no model"), ([gpt, gpt], "NAME="), ([f"{gpt}-missing"], "no such folder")):
        with pytest.raises(InputError, match=word):
            ModelPool(sources, settings, Metrics())


def test_every_endpoint_is_described(client):
    schema = client.get("/openapi.json").json()
    paths = {"/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{name}", "/translate", "/classify", "/tag",
             "/answer", "/caption", "/fill", "/attention", "/health", "/ready", "/metrics", "/"}  # fmt: skip
    assert set(schema["paths"]) == paths
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["description"], path
    page = client.get("/docs").text
    assert all(f" {path}</code>" in page for path in paths)
    assert "http" not in page  # no outside requests


def test_the_page_describes_the_response_of_each_endpoint(client):
    schema = client.get("/openapi.json").json()
    sections = client.get("/docs").text.split("<h2 ")[1:]
    described = {}
    for section in sections:
        path = unescape(section.partition('id="')[2].partition('"')[0])
        _, _, response = section.partition("<h3>Response</h3>" if path != "errors" else ">")
        names = re.findall(r"<tr><td><code>([^<]*)</code></td><td>[^<]+</td><td>([^<]*)", response)
        assert all(meaning or "<code>" in response for _, meaning in names), path
        example = re.search(r"<pre>(.*?)</pre>", response, re.DOTALL)
        described[path] = [name for name, _ in names], example and json.loads(unescape(example[1]))
    assert set(described) == {*schema["paths"], "errors"}
    assert "results[].translations[].text" in described["/translate"][0]
    assert "error.code" in described["errors"][0]
    for path, (names, example) in described.items():
        if path not in ("/", "/metrics"):
            assert set(example) == {name for name in names if "." not in name}, path


def test_examples_of_responses_fit_their_schemas(client):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = client.get("/openapi.json").json()
    for methods in schema["paths"].values():
        for operation in methods.values():
            part = operation["responses"]["200"]["content"].get("application/json", {}).get("schema")
            if part is not None:
                jsonschema.validate(example_of(schema, part), {**part, "components": schema["components"]})


def test_all_fields_have_a_meaning_and_those_of_attention_occur(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    fields = [(name, field, part) for name, each in schemas.items() for field, part in each["properties"].items()]
    assert [(name, field) for name, field, part in fields if not part.get("description")] == []
    payload = client.post("/attention", json={"model": "transformer", "input": "the cat"}).json()
    answer = AttentionResponse.model_validate(payload)
    assert answer.model_dump(exclude_unset=True)["examples"][0]["texts"] == payload["examples"][0]["texts"]


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models"])
def test_get_endpoints_answer_head_without_a_body(client, path):
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]
    assert client.head("/translate").status_code == 405
    assert client.post("/health").headers["allow"] == "GET, HEAD"


def test_the_example_of_each_endpoint_is_answered_by_a_loaded_model(client):
    page = client.get("/docs").text
    forms = re.findall(r'<form data-path="([^"]*)"><textarea[^>]*>(.*?)</textarea>', page)
    assert {path for path, _ in forms} >= {"/v1/completions", "/v1/embeddings", "/translate", "/tag", "/attention"}
    for path, escaped in forms:
        body = unescape(escaped)
        assert f"curl testserver{path} -H 'Content-Type: application/json' -d '{body}'" in unescape(page)
        if "image" not in json.loads(body):
            assert client.post(path, json=json.loads(body)).status_code == 200, (path, body)


def test_the_page_says_which_endpoints_no_model_has(folders):
    with TestClient(create_app([str(folders["gpt"])], ServeSettings(device="cpu"))) as client:
        page = client.get("/docs").text
        assert "No loaded model" not in page.split("/v1/completions</code></h2>")[1].split("<h2")[0]
        assert "No loaded model" in page.split("/translate</code></h2>")[1].split("<h2")[0]
        refused = client.post("/translate", json={"input": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "no loaded model has /translate; loaded: gpt"
