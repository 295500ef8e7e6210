"""The engine on GPUs against the simple searches; small parts of it run in Triton's interpreter without a GPU."""

import random
from collections import deque
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from qkv.generation import (
    DecodingConstraints,
    Engine,
    GenerationConfig,
    PromptLookup,
    Request,
    Sampling,
    SpeculativeConfig,
    Tokens,
    generate,
)
from qkv.generation.decoder_stack import decoder_stack
from qkv.generation.gpu.runner import GPURunner, GreedySteps
from qkv.generation.gpu.speculative_steps import SpeculativeSteps, StaticAssistant, StaticLookup
from qkv.generation.gpu.weights import GPUWeights
from qkv.generation.runner import GuessRunner, Runner
from qkv.generation.static_steps import StaticTokenDecoder, TokenSteps
from qkv.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 4100  # more than one part of the selection


class Fixed(Runner):
    """Returns given logits."""

    def __init__(self, logits):
        self._logits, (_, self.rows, self.vocab_size) = logits, logits.shape
        self.device, self.number = logits.device, 0

    def step_all(self, tokens):
        self.number += 1
        return self._logits[self.number - 1].clone()

    def encode(self, sources, ids): ...
    def reset(self, rows, sources=()): ...
    def reorder(self, rows, parents): ...
    def step(self, rows, tokens): ...
    def extend(self, rows, tokens, wanted=None): ...
    def truncate(self, rows, lengths): ...


@pytest.mark.parametrize("tokens", [Tokens(7), Tokens(7, (0, 4000), 4090), Tokens(None)])
def test_greedy_kernels_equal_the_steps_in_torch(tokens):
    torch.manual_seed(0)
    logits = torch.randn(6, 5, VOCABULARY, device=DEVICE)
    logits[1, :, 7] = 9.0  # the end token, which some rows may not generate yet
    logits[2, 0, 2500] = logits[2, 0, 2501] = 9.0  # the lowest of equal tokens
    logits[0, 1, 4000] = logits[0, 1, 4095] = 8.0
    asked = [Request([1], 4), Request([1], 3, 3), Request([1], 5, 0, [0, 9]), Request([1], 1), Request([1], 5, 2)]
    made = [kind(Fixed(logits), tokens, GenerationConfig(), 8) for kind in (TokenSteps, GreedySteps)]
    for steps in made:
        steps.load(range(5), asked)
    for _ in range(6):
        for steps in made:
            steps.run(1)
        plain, fused = made
        for name in ("steps", "active", "token", "plan"):
            assert torch.equal(getattr(plain, name), getattr(fused, name)), name
        torch.testing.assert_close(plain.totals, fused.totals)
    assert not plain.active.any()


@torch.no_grad()
def test_runner():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=19, dim=16, heads=2, layers=1, max_length=16)).eval().to(DEVICE)
    runner = GPURunner(GPUWeights(decoder_stack(model), "float32", DEVICE), rows=3, capacity=8)
    runner.reset([0, 1, 2])
    texts = {0: [1, 2, 3], 2: [4]}

    def check(logits, rows):
        for row, found in zip(rows, logits, strict=True):
            torch.testing.assert_close(found, model(torch.tensor([texts[row]], device=DEVICE))[0, -1])

    check(runner.extend([0, 2], [[1, 2, 3], [4]]), [0, 2])
    texts[2] += [5, 6]
    check(runner.extend([2], [[5, 6]]), [2])
    texts[1] = [*texts[0], 7]
    runner.reorder(torch.tensor([1], device=DEVICE), torch.tensor([0], device=DEVICE))
    check(runner.step(torch.tensor([1]), torch.tensor([7])), [1])
    for row in range(3):
        texts[row].append(8)
    check(runner.step_all(torch.full((3,), 8, dtype=torch.int32, device=DEVICE)), [0, 1, 2])


def test_normalizers_and_top_k():
    model = GPT2(GPT2Config(vocab_size=2100, dim=16, heads=2, layers=1, max_length=16)).eval().to(DEVICE)
    runner = GPURunner(GPUWeights(decoder_stack(model), "float32", DEVICE), rows=1, capacity=8)
    logits = 5 * torch.randn(3, 2100, device=DEVICE)
    logits[0, 5:] = -torch.inf
    torch.testing.assert_close(runner.log_sum_exp(logits), logits.logsumexp(-1))
    for k in (6, 33):
        values, indices = runner.top_k(logits, k)
        torch.testing.assert_close(values, logits.topk(k)[0])
        torch.testing.assert_close(logits.gather(1, indices), values)
        assert torch.equal(indices[1:], logits.topk(k)[1][1:])


class TextRunner(GuessRunner):
    """Runs a model on whole texts; each text has `width` rows."""

    def __init__(self, model, slots, width=1, capacity=32):
        self._model, self.rows, self.vocab_size = model, slots * width, model.config.vocab_size
        self.device = torch.device("cpu")
        self._texts, self.lengths = torch.zeros(slots, capacity, dtype=torch.long), torch.zeros(slots, dtype=torch.long)

    def step_guesses(self, tokens):
        at = self.lengths[:, None] + torch.arange(tokens.shape[1])
        self._texts.scatter_(1, at, tokens.long())
        logits = self._model(self._texts)
        return logits.gather(1, at[..., None].expand(-1, -1, self.vocab_size)).flatten(0, 1)

    def advance(self, counts):
        self.lengths += counts

    def step_all(self, tokens):
        logits = self.step_guesses(tokens[:, None])
        self.lengths += 1
        return logits

    def reset(self, rows, sources=()):
        self.lengths[torch.tensor(rows) // (self.rows // len(self.lengths))] = 0

    def prefill(self, rows, tokens):
        for row, text in zip(rows, tokens, strict=True):
            slot = row // (self.rows // len(self.lengths))
            self._texts[slot, : len(text)], self.lengths[slot] = torch.tensor(text, dtype=torch.long), len(text)

    def encode(self, sources, inputs): ...
    def reorder(self, rows, parents): ...
    def step(self, rows, tokens): ...
    def extend(self, rows, tokens, wanted=None): ...
    def truncate(self, rows, lengths): ...


@pytest.mark.parametrize("kind", ["lookup", "same", "other"])
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.9, seed=3)])
@pytest.mark.parametrize("end", [1, None])
def test_guesses_do_not_change_the_tokens(kind, sampling, end):
    sizes = {"vocab_size": 19, "dim": 16, "heads": 2, "layers": 1, "max_length": 32}
    model, other = (perturbed(GPT2(GPT2Config(**sizes)), 0.2, seed) for seed in range(2))
    asked = [Request([2, 3, 2], 7), Request([4], 9, 3), Request([5, 5, 6, 5, 5], 5, 0, [9], row_id=1), Request([7], 12)]
    tokens, config = Tokens(end, (0,)), GenerationConfig(sampling=sampling)

    def decode(steps):
        results = dict(StaticTokenDecoder(steps, deque(enumerate(asked)), tokens, config).run())
        return [(results[row][0].tokens, pytest.approx(results[row][0].score, abs=1e-5)) for row in range(len(asked))]

    draft = StaticLookup(3) if kind == "lookup" else StaticAssistant(TextRunner(model if kind == "same" else other, 2))
    steps = SpeculativeSteps(TextRunner(model, 2, width=4), tokens, config, 20, draft, 3)
    assert decode(steps) == decode(TokenSteps(TextRunner(model, 2), tokens, config, 20))


@torch.no_grad()
def test_rows_that_share_a_text():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=19, dim=16, heads=2, layers=1, max_length=16)).eval().to(DEVICE)
    runner = GPURunner(GPUWeights(decoder_stack(model), "float32", DEVICE), rows=3, capacity=8)
    runner.reset([0, 1, 2])
    text = []
    for guesses, kept in (([1, 2, 3], 2), ([4, 5, 6], 3), ([7, 8, 9], 1)):
        logits = runner.step_guesses(torch.tensor([guesses], dtype=torch.int32, device=DEVICE))
        expected = model(torch.tensor([text + guesses], device=DEVICE))[0, len(text) :]
        torch.testing.assert_close(logits, expected)
        runner.advance(torch.tensor([kept], device=DEVICE))
        text += guesses[:kept]


def test_guesses_from_the_text_equal_those_of_prompt_lookup(unchecked):
    numbers = random.Random(0)
    for length in (1, 2, 7, 30):
        for _ in range(10):
            text = [numbers.randrange(4) for _ in range(length)]
            (expected,) = PromptLookup(3).propose([0], [text], [5], lambda *_: None)
            history = torch.tensor([[*text, *[0] * (40 - length)]])
            (guesses,) = (
                StaticLookup(3)
                .propose(SimpleNamespace(history=history, lengths=torch.tensor([length]), guesses=5))
                .tolist()
            )
            assert [guess for guess in guesses if guess >= 0] == expected


# ------------------------------------------------------------------------------------------------------ on real sizes


CONFIGS = {
    "greedy": GenerationConfig(),
    "beams": GenerationConfig(num_beams=4, num_return_sequences=2),
    "sampling": GenerationConfig(sampling=Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=5)),
    "exact beams": GenerationConfig(num_beams=3, exact=True, length_penalty=0.6),
}
LEAST_EQUAL = 0.99  # of the sequences: two tokens can be as likely as one another up to rounding


def perturbed(model, scale, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model.eval()


def requests(count, vocabulary, with_source):
    generator, made = random.Random(0), []
    for number in range(count):
        length = 1 if with_source else 4 * generator.randint(1, 10)
        source = [generator.randrange(vocabulary) for _ in range(generator.randint(3, 25))] if with_source else None
        limit = generator.randint(4, 32)
        prefix = [generator.randrange(vocabulary) for _ in range(generator.choice([0, 0, 2]))]
        prompt = [generator.randrange(vocabulary) for _ in range(length)]
        made.append(Request(prompt, limit, generator.randint(0, 4), prefix, source, number))
    return made


def share_of_equal(model, asked, tokens, config, **options):
    found = dict(Engine.build(model, "auto").decode(asked, tokens, config, **options))
    equal = 0
    for length in {len(request.prompt) for request in asked}:
        rows = [row for row, request in enumerate(asked) if len(request.prompt) == length]
        some = [asked[row] for row in rows]
        constraints = DecodingConstraints(
            len(some), [request.prompt[-1] for request in some], tokens.end,
            [request.max_new_tokens for request in some], [request.min_new_tokens for request in some],
            tokens.suppressed, tokens.vocab_size, [request.prefix for request in some],
        )  # fmt: skip
        with torch.inference_mode():
            if some[0].source is not None:
                lengths = torch.tensor([len(request.source) for request in some])
                padded = [[*request.source, *[0] * (int(lengths.max()) - len(request.source))] for request in some]
                state = model.init_state(model.encode(torch.tensor(padded).cuda(), lengths.cuda()))
            else:
                prompts = torch.tensor([request.prompt[:-1] for request in some]).cuda()
                _, state = model.forward_from(prompts, model.init_state(len(some)))
        for row, expected in zip(rows, generate(model, state, constraints, config, row_ids=rows), strict=True):
            same = [best.tokens for best in found[row]] == [best.tokens for best in expected]
            equal += same
            if same:
                assert [best.score for best in found[row]] == pytest.approx([b.score for b in expected], abs=1e-3)
    return equal / len(asked)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_gpt2_equals_the_simple_searches(name):
    model = perturbed(GPT2(GPT2Config(layers=4)), 0.05).cuda()
    asked = requests(500, 50_000, False)
    assert share_of_equal(model, asked, Tokens(11, (3, 5), 50_250), CONFIGS[name]) >= LEAST_EQUAL


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_transformer_equals_the_simple_searches(name):
    sizes = {"source_vocab_size": 8000, "target_vocab_size": 8000, "dim": 256, "heads": 4, "ffn_dim": 1024}
    model = perturbed(Transformer(TransformerConfig(**sizes)), 0.05).cuda()
    asked = requests(500, 8000, True)
    assert share_of_equal(model, asked, Tokens(11, (3, 5)), CONFIGS[name], batch_size=48) >= LEAST_EQUAL


@pytest.mark.gpu
def test_calls_can_overlap_and_reuse_recordings():
    model = perturbed(GPT2(GPT2Config(layers=2)), 0.05).cuda()
    engine, asked, tokens, config = Engine.build(model), requests(20, 50_000, False), Tokens(None), GenerationConfig()
    alone = dict(engine.decode(asked, tokens, config, batch_size=4))
    first, second = (engine.decode(asked, tokens, config, batch_size=4) for _ in range(2))
    pairs = list(zip(first, second, strict=True))
    assert dict(pair[0] for pair in pairs) == dict(pair[1] for pair in pairs) == alone
    for index, request in enumerate(asked[:3]):
        streamed = tuple(engine.stream(request, tokens, config))
        assert streamed == alone[index][0].tokens


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["greedy", "sampling"])
@pytest.mark.parametrize("kind", ["lookup", "same", "other"])
def test_speculative_decoding(name, kind):
    model = perturbed(GPT2(GPT2Config(layers=2)), 0.05).cuda()
    other = perturbed(GPT2(GPT2Config(layers=1)), 0.05).cuda()
    drafts = {
        "lookup": lambda: PromptLookup(),
        "same": lambda: Engine.build(model),
        "other": lambda: Engine.build(other),
    }
    speculative = SpeculativeConfig(drafts[kind](), 4)
    asked, tokens = requests(60, 50_000, False), Tokens(11, (3, 5), 50_250)
    assert share_of_equal(model, asked, tokens, CONFIGS[name], speculative=speculative) >= 0.95
    engine = Engine.build(model)
    streamed = tuple(engine.stream(asked[0], tokens, CONFIGS[name], speculative=speculative))
    ((_, (best,)),) = engine.decode(asked[:1], tokens, CONFIGS[name])
    assert streamed == best.tokens


STATE_MODELS = {
    "bahdanau": lambda: RNNSeq2Seq(RNNSeq2SeqConfig(source_vocab_size=8000, target_vocab_size=8000)),
    "luong": lambda: RNNSeq2Seq(
        RNNSeq2SeqConfig(
            source_vocab_size=8000, target_vocab_size=8000, decoder="luong", score="bilinear", cell="lstm", layers=2
        )
    ),
    "conv": lambda: ConvSeq2Seq(ConvSeq2SeqConfig(source_vocab_size=8000, target_vocab_size=8000)),
    "rnn_lm": lambda: RNNLM(RNNLMConfig(vocab_size=8000)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", STATE_MODELS)
def test_models_with_their_own_steps(name, kind):
    torch.manual_seed(0)
    model = perturbed(STATE_MODELS[kind](), 0.05).cuda()
    asked = requests(200, 8000, kind != "rnn_lm")
    assert share_of_equal(model, asked, Tokens(11, (3, 5)), CONFIGS[name], batch_size=24) >= LEAST_EQUAL


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_weights(dtype):
    """Log-probabilities of greedy search are close to those of float32."""
    model = perturbed(GPT2(GPT2Config(layers=2)), 0.05).cuda()
    asked = [Request(request.prompt, 8) for request in requests(40, 50_000, False)]
    scores = [
        [
            hypotheses[0].score
            for _, hypotheses in sorted(dict(engine.decode(asked, Tokens(None), CONFIGS["greedy"])).items())
        ]
        for engine in (Engine.build(model), Engine.build(model, dtype))
    ]
    assert scores[1] == pytest.approx(scores[0], rel=0.2, abs=0.2)
    if dtype == "bfloat16":
        assert "bfloat16" in Engine.build(model.to(torch.bfloat16)).description
