"""`qkv serve` as a process: the openai client, load from many connections, SIGTERM, and errors of the command."""

import asyncio
import signal
import socket

import numpy as np
import pytest

import qkv
from benchmarks.serving import Call, drive, serving
from qkv.errors import InputError
from qkv.serve.server import bind, is_loopback

GREEDY = {"temperature": 0.0, "max_tokens": 20}


def completions(folder, count, max_tokens=16):
    """Requests with the answers that the generator computes alone."""
    generator = qkv.Generator(folder, device="cpu")
    prompts = ["to be", "or not to be:", "the question", "whether 'tis", "in the mind to suffer", "t"]
    calls = []
    for seed in range(count):
        prompt, temperature = prompts[seed % len(prompts)], (0.0, 0.9, 1.3)[seed % 3]
        expected = generator(prompt, max_new_tokens=max_tokens, temperature=temperature, seed=seed).continuation
        body = {"model": "gpt", "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        calls.append(Call("/v1/completions", body, [expected]))
    return calls


def test_the_openai_client_streams_completions_and_gets_embeddings(folders, minilm):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    key = "sk-0123456789abcdef"
    with serving(str(folders["gpt"]), f"minilm={minilm}", environment={"QKV_API_KEYS": key}) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)
        assert {model.id for model in client.models.list()} == {"gpt", "minilm"}
        expected = qkv.Generator(folders["gpt"], device="cpu")("to be", max_new_tokens=20, temperature=0.0).continuation
        chunks = list(client.completions.create(model="gpt", prompt="to be", stream=True, **GREEDY))
        assert len(chunks) == 20
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "length"
        whole = client.completions.create(model="gpt", prompt="to be", logprobs=2, stop=["be"], **GREEDY)
        assert whole.choices[0].text == expected.partition("be")[0]
        assert whole.choices[0].finish_reason == "stop"
        assert len(whole.choices[0].logprobs.token_logprobs) == len(whole.choices[0].text)
        texts = ["A dog sleeps.", "A puppy is sleeping.", "The stock market fell."]
        found = np.array([item.embedding for item in client.embeddings.create(model="minilm", input=texts).data])
        assert np.allclose(found, qkv.Embedder(minilm, device="cpu")(texts).numpy(), atol=1e-5)
        assert found[0] @ found[1] > 0.7 > 0.3 > found[0] @ found[2]
        with pytest.raises(openai.NotFoundError, match="minilm"):
            client.completions.create(model="gpt-4", prompt="to be")
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            client.completions.create(model="minilm", prompt="to be")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=client.base_url, api_key="sk-wrong", max_retries=0).models.list()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0


def check_load(folders, clients, seconds):
    """Many clients at once, with a queue too short for them; then SIGTERM while they send."""
    calls = completions(folders["gpt"], 30)
    limits = ("--max-queue", str(clients // 2), "--max-batch", "16")
    with serving(str(folders["gpt"]), *limits) as server:
        before = asyncio.run(drive(server, calls, 4, 1.0))
        memory = server.memory
        report = asyncio.run(drive(server, calls, clients, seconds))
        assert before.wrong == report.wrong == []
        assert report.statuses[200] >= clients // 2
        assert set(report.statuses) <= {200, 429, 503}
        assert (report.without_retry, report.broken) == (0, 0)
        assert max(report.memory) < memory + 200 * 2**20
        ended = asyncio.run(drive(server, calls, clients, 60.0, terminate_after=1.0))
        last_line = server.last_message()
        assert server.process.wait(60) == 0
    assert ended.wrong == []
    assert ended.broken == 0
    assert set(ended.statuses) <= {200, 429, 503}
    answered = sum(sum(run.statuses.values()) for run in (before, report, ended))
    assert last_line == f"stopped: {answered} requests completed, 0 aborted"
    return report


def test_answers_under_load_are_those_computed_alone_and_sigterm_finishes_accepted_requests(folders):
    check_load(folders, 24, 2.0)


@pytest.mark.slow
def test_200_clients_for_a_minute(folders):
    report = check_load(folders, 200, 60.0)
    late = len(report.memory) // 3
    assert max(report.memory[late:]) < max(report.memory[:late]) + 20 * 2**20


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="port") as error:
        bind("127.0.0.1", taken.getsockname()[1])
    assert "127.0.0.1" in str(error.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_addresses_are_known(host, loopback):
    assert is_loopback(host) is loopback
