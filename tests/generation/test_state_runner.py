"""Continuous batching of models that are decoded by their own steps, against the simple searches."""

from collections import deque

import pytest
import torch

from qkv.errors import InputError
from qkv.generation import Engine, GenerationConfig, PromptLookup, Request, SpeculativeConfig, Tokens
from qkv.generation.state_runner import StateRunner
from qkv.generation.static_steps import BeamSteps, StaticBeamDecoder, StaticTokenDecoder, TokenSteps
from qkv.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from tests.generation.kernels import require_kernels
from tests.generation.test_engine import CONFIGS, check, mixed_requests, simple_search

VOCABULARY, MAX_LENGTH = 40, 30
FEW_CONFIGS = [config for config in CONFIGS if config.num_return_sequences > 1 or config.exact]
RNN_OPTIONS = {
    "luong": {"decoder": "luong", "score": "bilinear", "cell": "lstm", "layers": 2},
    "luong at once": {"decoder": "luong", "input_feeding": False},
    "plain": {"decoder": "plain", "context": "both"},
    "local": {"align": {"name": "local_m", "window": 2}},  # attends around the number of the step
    "coverage": {"coverage": True},
    "copying": {"coverage": True, "copying": True},
    "conv encoder": {"encoder": {"name": "conv"}},
    "transformer encoder": {"encoder": {"name": "transformer", "heads": 2}},
}


def perturbed(model):
    """Return a model whose outputs differ clearly from token to token."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


def random_rnn(**options):
    torch.manual_seed(0)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "max_length": MAX_LENGTH}
    return perturbed(RNNSeq2Seq(RNNSeq2SeqConfig(embedding_dim=12, hidden_dim=16, **sizes, **options)))


def random_conv(**options):
    torch.manual_seed(0)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "max_length": MAX_LENGTH}
    return perturbed(ConvSeq2Seq(ConvSeq2SeqConfig(dim=12, hidden_dim=16, layers=2, **sizes, **options)))


def random_rnn_lm(**options):
    torch.manual_seed(0)
    return perturbed(RNNLM(RNNLMConfig(vocab_size=VOCABULARY, embedding_dim=12, hidden_dim=16, **options)))


def random_captioner(**options):
    torch.manual_seed(0)
    sizes = {"channels": 1, "height": 16, "width": 16, "feature_dim": 12, "embedding_dim": 8, "hidden_dim": 16}
    return perturbed(
        ShowAttendTell(ShowAttendTellConfig(vocab_size=VOCABULARY, max_length=MAX_LENGTH, **sizes, **options))
    )


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_rnn_seq2seq(config):
    check(random_rnn(), mixed_requests(12, VOCABULARY, source=True), Tokens(1, (0,)), config, 3)


@pytest.mark.parametrize("config", FEW_CONFIGS, ids=str)
@pytest.mark.parametrize("options", RNN_OPTIONS.values(), ids=RNN_OPTIONS)
def test_terms_of_rnn_seq2seq(config, options):
    check(random_rnn(**options), mixed_requests(8, VOCABULARY, source=True), Tokens(1, (0,)), config, 3)


@pytest.mark.parametrize("config", FEW_CONFIGS, ids=str)
@pytest.mark.parametrize("batch_size", [1, None])
def test_conv_seq2seq(config, batch_size):
    check(random_conv(), mixed_requests(8, VOCABULARY, source=True), Tokens(1, (0,)), config, batch_size)


@pytest.mark.parametrize("config", FEW_CONFIGS, ids=str)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rnn_lm(config, cell):
    check(random_rnn_lm(cell=cell), mixed_requests(12, VOCABULARY), Tokens(1, (0,), 38), config, 4)


@pytest.mark.parametrize("config", FEW_CONFIGS, ids=str)
@pytest.mark.parametrize("decoder", ["tell", "attend"])
def test_captioner(config, decoder):
    torch.manual_seed(1)
    images = torch.randn(8, 1, 16, 16)
    requests = [Request([1], 4 + number, source=image, row_id=number) for number, image in enumerate(images)]
    check(random_captioner(decoder=decoder), requests, Tokens(2, (0,)), config, 5)


@pytest.mark.parametrize("config", FEW_CONFIGS, ids=str)
@pytest.mark.parametrize("kind", ["rnn", "conv", "rnn_lm"])
def test_steps_of_fixed_shape(config, kind):
    """All rows are stepped, finished or not, beyond the largest position of the model."""
    model = {"rnn": random_rnn, "conv": random_conv, "rnn_lm": random_rnn_lm}[kind]()
    requests = mixed_requests(12, VOCABULARY, source=kind != "rnn_lm")
    tokens, beams = Tokens(1, (0,)), config.num_beams
    runner = StateRunner(model, 4 * beams, 20)
    queue = deque(enumerate(requests))
    if beams > 1:
        decoder = StaticBeamDecoder(BeamSteps(runner, tokens, config, 60), queue, tokens, config)
    else:
        decoder = StaticTokenDecoder(TokenSteps(runner, tokens, config, 60), queue, tokens, config)
    results = dict(decoder.run())
    for index, request in enumerate(requests):
        expected = simple_search(model, request, tokens, config)
        assert [best.tokens for best in results[index]] == [best.tokens for best in expected], index


def test_packed_weights():
    require_kernels()
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 300, "target_vocab_size": 300, "embedding_dim": 64, "hidden_dim": 128}
    model = perturbed(RNNSeq2Seq(RNNSeq2SeqConfig(**sizes)))
    texts = torch.randint(2, 300, (30, 12)).tolist()
    requests = [Request([1], 6, prefix=text[:6], source=text) for text in texts]  # all tokens are forced
    config, tokens = GenerationConfig(num_beams=3), Tokens(1)
    engines = {dtype: Engine.build(model, dtype) for dtype in ("auto", "bfloat16", "int8")}
    assert "int8" in engines["int8"].description
    scores = {
        dtype: torch.tensor([best[0].score for _, best in sorted(engine.decode(requests, tokens, config))])
        for dtype, engine in engines.items()
    }
    for dtype, most in (("bfloat16", 0.02), ("int8", 0.1)):
        error = (scores[dtype] - scores["auto"]).abs().mean()
        assert 0 < error < most * scores["auto"].abs().mean()


def test_recurrent_models_have_no_speculative_decoding():
    engine = Engine.build(random_rnn_lm())
    with pytest.raises(InputError):
        engine.decode(
            [Request([1], 5)], Tokens(None), GenerationConfig(), speculative=SpeculativeConfig(PromptLookup())
        )
