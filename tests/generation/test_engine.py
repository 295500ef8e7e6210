"""The decoding engine against the simple searches, on requests of mixed length."""

import copy
import random

import pytest
import torch

import qkv
from qkv.errors import InputError
from qkv.generation import (
    DecodingConstraints,
    Engine,
    EngineCache,
    GenerationConfig,
    PromptLookup,
    Request,
    Sampling,
    SpeculativeConfig,
    Tokens,
    generate,
)
from qkv.generation.cpu.runner import CPURunner
from tests.generation.kernels import require_kernels
from tests.generation.test_cpu_kernels import random_gpt2, random_transformer

SUPPRESSED, VOCABULARY = (0, 7), 290
CONFIGS = [
    GenerationConfig(),
    GenerationConfig(length_penalty=0.0),
    GenerationConfig(num_beams=4, num_return_sequences=3),
    GenerationConfig(num_beams=3, exact=True, length_penalty=0.6),
    GenerationConfig(num_beams=7),
    GenerationConfig(sampling=Sampling(temperature=0.9, top_k=20, top_p=0.9), num_return_sequences=2),
    GenerationConfig(sampling=Sampling(seed=3)),
    GenerationConfig(sampling=Sampling(temperature=0)),
]


@pytest.fixture(autouse=True)
def _kernels():
    require_kernels()


def mixed_requests(count, vocabulary, source=False, seed=0):
    """Requests with prompts, limits and forced prefixes of different lengths."""
    numbers = random.Random(seed)
    requests = []
    for index in range(count):
        longest = numbers.randint(1, 25)
        prefix = [numbers.randrange(2, vocabulary) for _ in range(numbers.randint(0, min(3, longest)))]
        prompt = [numbers.randrange(vocabulary) for _ in range(1 if source else numbers.randint(1, 30))]
        text = [numbers.randrange(2, vocabulary) for _ in range(numbers.randint(1, 20))] if source else None
        requests.append(Request(prompt, longest, numbers.randint(0, longest), prefix, text, index))
    return requests


@torch.inference_mode()
def simple_search(model, request, tokens, config):
    if request.source is None:
        state = model.init_state(1)
        if len(request.prompt) > 1:
            state = model.forward_from(torch.tensor([request.prompt[:-1]]), state)[1]
    else:
        source = request.source[None] if isinstance(request.source, torch.Tensor) else torch.tensor([request.source])
        weight = next(model.parameters())
        state = model.init_state(model.encode(source.to(weight.dtype) if source.is_floating_point() else source))
    constraints = DecodingConstraints(
        1, [request.prompt[-1]], tokens.end, request.max_new_tokens, request.min_new_tokens, tokens.suppressed,
        tokens.vocab_size, [request.prefix],
    )  # fmt: skip
    return generate(model, state, constraints, config, row_ids=[request.row_id])[0]


def check(model, requests, tokens, config, *batch_sizes):
    """Compare the engine's results for each batch size with a search for each request alone."""
    engine = Engine.build(model)
    results = [dict(engine.decode(requests, tokens, config, batch_size=batch_size)) for batch_size in batch_sizes]
    for rows in results:
        assert sorted(rows) == list(range(len(requests)))
    for index, request in enumerate(requests):
        searched = simple_search(model, request, tokens, config)
        for rows in results:
            expected = searched
            if [best.tokens for best in rows[index]] != [best.tokens for best in expected]:  # a tie in float32
                expected = simple_search(copy.deepcopy(model).double(), request, tokens, config)
            assert [best.tokens for best in rows[index]] == [best.tokens for best in expected], index
            for ours, theirs in zip(rows[index], expected, strict=True):
                assert ours.score == pytest.approx(theirs.score, abs=1e-4)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_gpt2(config):
    check(random_gpt2(), mixed_requests(15, 301), Tokens(1, SUPPRESSED, VOCABULARY), config, 1, 5, None)


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.num_beams == 1], ids=str)
def test_gpt2_without_an_end_token(config):
    check(random_gpt2(), mixed_requests(10, 301), Tokens(None, SUPPRESSED), config, 4)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_transformer(config, norm):
    model = random_transformer(norm=norm)
    check(model, mixed_requests(10, 120, source=True), Tokens(1, (0,)), config, 4)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_500_prompts(config):
    model = random_gpt2(dim=96, heads=4, layers=4)
    check(model, mixed_requests(500, 301, seed=1), Tokens(1, SUPPRESSED, VOCABULARY), config, None)


def test_stream_equals_decode():
    model, (request,) = random_gpt2(), mixed_requests(1, 301, seed=2)
    engine, tokens = Engine.build(model), Tokens(1, SUPPRESSED)
    for sampling in (Sampling(temperature=0), Sampling(seed=5)):
        config = GenerationConfig(sampling=sampling)
        ((_, (best,)),) = engine.decode([request], tokens, config)
        assert tuple(engine.stream(request, tokens, config)) == best.tokens


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.num_beams == 1], ids=str)
@pytest.mark.parametrize("draft", ["lookup", "same", "other"])
@pytest.mark.parametrize("end", [1, None])
def test_speculative_decoding_is_exact(config, draft, end):
    """Guesses change the speed, not the tokens, whether they are all right (the same model) or mostly wrong."""
    model = random_gpt2()
    drafts = {
        "lookup": PromptLookup(),
        "same": Engine.build(model),
        "other": Engine.build(random_gpt2(seed=1, layers=1)),
    }
    numbers = random.Random(0)
    requests = [
        Request([numbers.randrange(6) for _ in range(numbers.randint(1, 30))], numbers.randint(1, 25), row_id=row)
        for row in range(12)
    ]
    engine, tokens = Engine.build(model), Tokens(end, SUPPRESSED)
    plain = dict(engine.decode(requests, tokens, config, batch_size=5))
    for guesses in (1, 4):
        fast = engine.decode(
            requests, tokens, config, batch_size=5, speculative=SpeculativeConfig(drafts[draft], guesses)
        )
        assert {row: [best.tokens for best in beams] for row, beams in fast} == {
            row: [best.tokens for best in beams] for row, beams in plain.items()
        }


def test_right_guesses_save_steps(monkeypatch):
    engine, request = Engine.build(random_gpt2()), Request([5, 6], 20)
    steps = []
    extend, step = CPURunner.extend, CPURunner.step
    monkeypatch.setattr(CPURunner, "step", lambda *arguments: steps.append(1) or step(*arguments))
    monkeypatch.setattr(CPURunner, "extend", lambda *arguments: steps.append(len(arguments) > 3) or extend(*arguments))
    list(engine.decode([request], Tokens(None), GenerationConfig()))
    plain = sum(steps)
    steps.clear()
    list(engine.decode([request], Tokens(None), GenerationConfig(), speculative=SpeculativeConfig(engine, 4)))
    assert plain == 20
    assert sum(steps) == 4  # five tokens each


def test_unsuitable_drafts():
    model, request = random_gpt2(), Request([5, 6], 8)
    engine, tokens = Engine.build(model), Tokens(1)
    for config, draft, guesses in (
        (GenerationConfig(num_beams=2), PromptLookup(), 5),
        (GenerationConfig(), Engine.build(random_gpt2(vocab_size=200)), 5),
        (GenerationConfig(), PromptLookup(), 0),
    ):
        with pytest.raises(InputError):
            engine.decode([request], tokens, config, speculative=SpeculativeConfig(draft, guesses))


def test_the_engine_follows_the_weights():
    model = random_gpt2()
    cache, request = EngineCache(model), Request([5, 6], 8)
    before = cache.get()
    assert before is cache.get()
    with torch.no_grad():
        model.blocks[0].ffn.up_proj.weight.mul_(-3.0)
    ((_, (best,)),) = cache.get().decode([request], Tokens(None), GenerationConfig())
    assert best.tokens == simple_search(model, request, Tokens(None), GenerationConfig())[0].tokens


def test_models_that_need_their_own_forward_pass():
    model = random_gpt2()
    cache = EngineCache(model)
    with qkv.watch(model):
        assert cache.get() is None
        assert "watched" in cache.reason
    with qkv.ablate(model, 0, [1]):
        assert cache.get() is None
    handle = model.blocks[0].register_forward_hook(lambda *arguments: None)
    assert cache.get() is None
    handle.remove()
    assert cache.get() is not None
    model.train()
    assert cache.get() is None
    assert EngineCache(random_gpt2(position="rotary")).get() is None


def test_no_requests():
    assert list(Engine.build(random_gpt2()).decode([], Tokens(None), GenerationConfig())) == []
