"""Steps of fixed shape against the simple searches, on the CPU with the CPU runner."""

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
        prompt = [generator.randrange(4, VOCABULARY) for _ in range(length)]
        made.append(Request(prompt, limit, generator.randint(0, limit), prefix, source, number))
    return made


def references(model, asked, tokens, config):
    """Hypotheses of the simple search, for prompts of equal length together."""
    found = [None] * len(asked)
    for length in {len(request.prompt) for request in asked}:
        rows = [row for row, request in enumerate(asked) if len(request.prompt) == length]
        some = [asked[row] for row in rows]
        prefixes = [request.prefix for request in some]
        constraints = DecodingConstraints(
            len(some), [request.prompt[-1] for request in some], tokens.end,
            [request.max_new_tokens for request in some], [request.min_new_tokens for request in some],
            tokens.suppressed, tokens.vocab_size, prefixes if any(prefixes) else (),
        )  # fmt: skip
        ids = [request.row_id for request in some]
        results = generate(model, state_of(model, some), constraints, config, row_ids=ids)
        for row, hypotheses in zip(rows, results, strict=True):
            found[row] = hypotheses
    return found


@torch.inference_mode()
def state_of(model, asked):
    device = next(model.parameters()).device
    if asked[0].source is not None:
        lengths = torch.tensor([len(request.source) for request in asked], device=device)
        padded = [[*request.source, *[0] * (int(lengths.max()) - len(request.source))] for request in asked]
        return model.init_state(model.encode(torch.tensor(padded, device=device), lengths))
    state = model.init_state(len(asked))
    prompts = torch.tensor([request.prompt[:-1] for request in asked], device=device)
    return model.forward_from(prompts, state)[1] if prompts.shape[1] else state


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


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("make", [gpt2, transformer])
def test_equals_the_simple_searches(make, name):
    model, config, tokens = make(), CONFIGS[name], Tokens(END, SUPPRESSED, VOCABULARY)
    asked = requests(60, make is transformer)
    truth = references(model, asked, tokens, config)
    for slots in (2, 17):
        for found, expected in zip(decode(model, asked, tokens, config, slots), truth, strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("name", ["greedy", "sampling"])
def test_without_end_token(name):
    model, config, tokens = gpt2(), CONFIGS[name], Tokens(None)
    asked = requests(20, False)
    truth = references(model, asked, tokens, config)
    for request, found, expected in zip(asked, decode(model, asked, tokens, config, 6), truth, strict=True):
        assert_same(found, expected)
        assert all(len(sample.tokens) == request.max_new_tokens for sample in found)


@pytest.mark.parametrize("end", [END, None])
def test_streaming(end):
    model, config, tokens = gpt2(), CONFIGS["filtered sampling"], Tokens(end)
    runner = CPURunner(PackedStack(decoder_stack(model), "float32"), None, rows=1, capacity=64)
    for request in requests(5, False):
        request = Request(request.prompt, 20)
        steps = TokenSteps(runner, tokens, config, 32)
        streamed = StaticTokenDecoder(steps, deque([(0, request)]), tokens, config).stream()
        assert tuple(streamed) == references(model, [request], tokens, config)[0][0].tokens


def test_beam_search_requires_an_end_token():
    model = gpt2()
    runner = CPURunner(PackedStack(decoder_stack(model), "float32"), None, rows=3, capacity=8)
    with pytest.raises(InputError, match="end token"):
        BeamSteps(runner, Tokens(None), CONFIGS["beams"], 8)
