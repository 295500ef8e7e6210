"""Batches that requests join while others are decoded: the same results as alone, bit for bit."""

import random

import pytest
import torch

from qkv.generation import Engine, GenerationConfig, Request, Sampling, Tokens
from qkv.generation.continuous_batching import TokenDecoder
from qkv.generation.row_runner import RowRunner
from tests.generation.kernels import require_kernels
from tests.generation.test_cpu_kernels import random_gpt2, random_transformer
from tests.generation.test_engine import SUPPRESSED, VOCABULARY, mixed_requests

TOKENS = Tokens(1, SUPPRESSED, VOCABULARY)
SAMPLINGS = [None, Sampling(seed=3), Sampling(temperature=0.7, top_k=9, seed=4), Sampling(top_p=0.8, seed=5)]


@pytest.fixture(autouse=True)
def _kernels():
    require_kernels()


def finish(decoder, arrivals):
    """Submit requests at some steps; return the rows by index once all are finished."""
    rows, step = {}, 0
    while len(rows) < len(arrivals):
        for index, (at, request) in enumerate(arrivals):
            if at == step:
                decoder.submit(index, request)
        rows |= {row.index: row for row in decoder.advance()}
        step += 1
        assert step < 1000
    return rows


def sampled_requests(count, **options):
    requests = mixed_requests(count, 290, **options)
    return [
        Request(**{**vars(request), "sampling": SAMPLINGS[number % 4], "alternatives": number % 3})
        for number, request in enumerate(requests)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_requests_that_arrive_at_any_step_have_the_results_of_requests_alone(dtype):
    engine = Engine.build(random_gpt2(), dtype)
    requests = sampled_requests(24)
    numbers = random.Random(0)
    arrivals = [(numbers.randint(0, 30), request) for request in requests]
    together = finish(engine.open_batch(TOKENS, rows=5, capacity=64), arrivals)
    for index, request in enumerate(requests):
        alone = finish(engine.open_batch(TOKENS, rows=1, capacity=64), [(0, request)])[0]
        row = together[index]
        assert (row.tokens, row.log_p, row.alternatives) == (alone.tokens, alone.log_p, alone.alternatives)
        assert row.total == sum(row.log_p)
        assert [len(tokens) for tokens in row.alternatives] == [request.alternatives] * len(row.tokens)


def test_results_equal_those_of_decode():
    engine = Engine.build(random_gpt2())
    for sampling in SAMPLINGS:
        config = GenerationConfig(sampling=sampling)
        requests = mixed_requests(8, 290)
        expected = dict(engine.decode(requests, TOKENS, config))
        rows = finish(engine.open_batch(TOKENS, rows=3, capacity=64, config=config), [(0, r) for r in requests])
        for index, row in rows.items():
            assert row.hypothesis(1, 1.0) == expected[index][0]


@pytest.mark.parametrize("beams", [2, 4])
def test_beam_searches_that_arrive_at_any_step_have_the_results_of_requests_alone(beams):
    engine = Engine.build(random_transformer())
    config = GenerationConfig(num_beams=beams, num_return_sequences=beams)
    requests = mixed_requests(12, 120, source=True)
    numbers = random.Random(1)
    arrivals = [(numbers.randint(0, 20), request) for request in requests]
    decoder = engine.open_batch(TOKENS, rows=3 * beams, capacity=64, source_capacity=32, config=config)
    results, step = {}, 0
    while len(results) < len(requests):
        for index, (at, request) in enumerate(arrivals):
            if at == step:
                decoder.submit(index, request)
        results |= dict(decoder.advance())
        step += 1
    for index, request in enumerate(requests):
        assert [(0, results[index])] == list(engine.decode([request], TOKENS, config))


def test_a_removed_row_is_given_to_the_next_request():
    engine = Engine.build(random_gpt2())
    request = Request([5, 6], 40, min_new_tokens=40)
    decoder = engine.open_batch(TOKENS, rows=1, capacity=64)
    decoder.submit(0, request)
    decoder.submit(1, Request([7], 3))
    for _ in range(4):
        assert decoder.advance() == []
    (row,) = decoder.active
    assert row.index == 0
    decoder.remove(row)
    finished = []
    while not finished:
        finished = decoder.advance()
    assert [row.index for row in finished] == [1]
    assert (
        finished[0].tokens == finish(engine.open_batch(TOKENS, rows=1, capacity=64), [(0, Request([7], 3))])[0].tokens
    )


def test_an_empty_batch_does_nothing():
    assert Engine.build(random_gpt2()).open_batch(TOKENS, rows=2, capacity=8).advance() == []


def test_rows_decoded_by_the_model_itself_equal_those_of_the_engine():
    from collections import deque

    model = random_gpt2()
    requests = sampled_requests(6)
    engine = finish(Engine.build(model).open_batch(TOKENS, rows=3, capacity=64), [(0, r) for r in requests])
    decoder = TokenDecoder(RowRunner(model, 4), deque(), TOKENS, GenerationConfig())
    with torch.inference_mode():
        rows = finish(decoder, [(0, request) for request in requests])
    for index, row in rows.items():
        assert row.tokens == engine[index].tokens
        assert row.log_p == pytest.approx(engine[index].log_p, abs=1e-4)
