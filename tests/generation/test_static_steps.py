"""Steps of fixed shape against the simple searches: on the CPU with the CPU runner, on a GPU in CUDA graphs."""

import random
from collections import deque

import pytest
import torch

from qkv.errors import InputError
from qkv.generation import DecodingConstraints, GenerationConfig, Request, Sampling, Tokens, generate
from qkv.generation.cpu.packed_stack import PackedStack
from qkv.generation.cpu.runner import CPURunner
from qkv.generation.decoder_stack import decoder_stack, encoder_stack
from qkv.generation.static_steps import BeamSteps, StaticBeamDecoder, StaticTokenDecoder, TokenSteps
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig

END, SUPPRESSED, VOCABULARY = 3, (1, 5), 23
CONFIGS = {
    "greedy": GenerationConfig(),
    "sampling": GenerationConfig(sampling=Sampling(seed=3), num_return_sequences=2),
    "filtered sampling": GenerationConfig(sampling=Sampling(temperature=0.7, top_k=9, top_p=0.8)),
    "no temperature": GenerationConfig(sampling=Sampling(temperature=0.0)),
    "beams": GenerationConfig(num_beams=3, num_return_sequences=2),
    "exact beams": GenerationConfig(num_beams=4, exact=True, length_penalty=0.6),
}


def randomized(model, scale=0.1):
    """Random weights large enough for sequences to end at different lengths."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model.eval()


def gpt2():
    return randomized(GPT2(GPT2Config(vocab_size=VOCABULARY + 2, dim=32, heads=2, layers=2, max_length=64)))


def transformer(**settings):
    sizes = {"source_vocab_size": 25, "target_vocab_size": 25, "dim": 32, "heads": 2, "ffn_dim": 64}
    sizes |= {"encoder_layers": 1, "decoder_layers": 2}
    return randomized(Transformer(TransformerConfig(**sizes | settings)))


def requests(count, with_source):
    generator, made = random.Random(0), []
    for number in range(count):
        source = [generator.randrange(4, VOCABULARY) for _ in range(generator.randint(1, 9))] if with_source else None
        length = 1 if with_source else generator.randint(1, 7)
        limit = generator.randint(1, 12)
        prefix = [generator.choice([1, 4, 6])] * generator.choice([0, 0, 0, min(2, limit)])
        made.append(
            Request(
                [generator.randrange(4, VOCABULARY) for _ in range(length)], limit, generator.randint(0, limit),
                prefix, source, number,
            )  # fmt: skip
        )
    return made


def reference(model, request, tokens, config):
    """Hypotheses of the simple search."""
    device = next(model.parameters()).device
    constraints = DecodingConstraints(
        1, request.prompt[-1], tokens.end, request.max_new_tokens, request.min_new_tokens, tokens.suppressed,
        tokens.vocab_size, [request.prefix] if request.prefix else (),
    )  # fmt: skip
    with torch.inference_mode():
        if request.source is not None:
            source = torch.tensor([request.source], device=device)
            state = model.init_state(model.encode(source, torch.tensor([len(request.source)], device=device)))
        else:
            state = model.init_state(1)
            if len(request.prompt) > 1:
                _, state = model.forward_from(torch.tensor([request.prompt[:-1]], device=device), state)
    return generate(model, state, constraints, config, row_ids=[request.row_id])[0]


def decode(model, asked, tokens, config, slots):
    """Results of the static steps on the CPU, in the order of the requests."""
    beams = config.num_beams
    encoder = PackedStack(encoder_stack(model), "float32") if isinstance(model, Transformer) else None
    runner = CPURunner(
        PackedStack(decoder_stack(model), "float32"), encoder, rows=slots * beams, capacity=24,
        sources=slots if encoder else 0, source_capacity=16,
    )  # fmt: skip
    queue = deque(enumerate(asked))
    if beams > 1:
        found = dict(StaticBeamDecoder(BeamSteps(runner, tokens, config, 20), queue, tokens, config).run())
    else:
        found = dict(StaticTokenDecoder(TokenSteps(runner, tokens, config, 20), queue, tokens, config).run())
    return [found[index] for index in range(len(asked))]


def assert_same(found, expected):
    assert [best.tokens for best in found] == [best.tokens for best in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)


@pytest.mark.parametrize("slots", [1, 7, 17])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("make", [gpt2, transformer])
def test_equals_the_simple_searches(make, name, slots):
    model, config, tokens = make(), CONFIGS[name], Tokens(END, SUPPRESSED, VOCABULARY)
    asked = requests(60, make is transformer)
    for request, found in zip(asked, decode(model, asked, tokens, config, slots), strict=True):
        assert_same(found, reference(model, request, tokens, config))


@pytest.mark.parametrize("name", ["greedy", "sampling"])
def test_without_end_token(name):
    model, config, tokens = gpt2(), CONFIGS[name], Tokens(None)
    asked = requests(20, False)
    for request, found in zip(asked, decode(model, asked, tokens, config, 6), strict=True):
        assert_same(found, reference(model, request, tokens, config))
        assert all(len(sample.tokens) == request.max_new_tokens for sample in found)


@pytest.mark.parametrize("end", [END, None])
def test_streaming(end):
    model, config, tokens = gpt2(), CONFIGS["filtered sampling"], Tokens(end)
    runner = CPURunner(PackedStack(decoder_stack(model), "float32"), None, rows=1, capacity=64)
    for request in requests(5, False):
        request = Request(request.prompt, 20)
        steps = TokenSteps(runner, tokens, config, 32)
        streamed = StaticTokenDecoder(steps, deque([(0, request)]), tokens, config).stream()
        assert tuple(streamed) == reference(model, request, tokens, config)[0].tokens


def test_beam_search_requires_an_end_token():
    model = gpt2()
    runner = CPURunner(PackedStack(decoder_stack(model), "float32"), None, rows=3, capacity=8)
    with pytest.raises(InputError, match="end token"):
        BeamSteps(runner, Tokens(None), CONFIGS["beams"], 8)
