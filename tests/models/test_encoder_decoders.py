"""Contract tests for all encoder-decoders."""

import pytest
import torch
from torch.nn import functional as F

from qkv.attention import watch
from qkv.nn.interfaces import EncoderDecoder, select
from qkv.registry import lookup, registered

ENCODER_DECODERS = [
    name
    for name, network in registered("model").items()
    if issubclass(network, EncoderDecoder) and name != "whisper"  # speech: tests/hub/families/test_whisper.py
]
SIZES = {
    "rnn_seq2seq": {"embedding_dim": 12, "hidden_dim": 16},
    "conv_seq2seq": {"dim": 16, "hidden_dim": 16, "layers": 2},
    "single_rnn": {"embedding_dim": 12, "hidden_dim": 24},
    "transformer": {"dim": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 24},
}
VOCABULARY = 11
COMPOSED = [  # models with every encoder of texts
    (name, {"encoder": encoder})
    for name in ("rnn_seq2seq", "conv_seq2seq")
    for encoder, cls in registered("encoder").items()
    if not cls.reads_speech
]
MODELS = [("single_rnn", {}), ("transformer", {}), *COMPOSED]
every_model = pytest.mark.parametrize(
    ("name", "options"), MODELS, ids=[f"{name}-{options.get('encoder')}" for name, options in MODELS]
)


def make(name: str, **changes: object):
    network = lookup("model", name)
    config = network.config_class
    torch.manual_seed(0)
    return network(config(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **SIZES[name] | changes))


@pytest.fixture(params=MODELS, ids=lambda model: f"{model[0]}-{model[1].get('encoder')}")
def model(request: pytest.FixtureRequest):
    name, options = request.param
    return make(name, **options).eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, VOCABULARY, (3, 7), generator=generator)
    target = torch.randint(4, VOCABULARY, (3, 5), generator=generator)
    return source, target, torch.tensor([7, 4, 1])


def test_every_model_is_tested():
    assert set(SIZES) == set(ENCODER_DECODERS)


def test_stepwise_decoding_matches_teacher_forcing(model, batch):
    source, target, lengths = batch
    memory = model.encode(source, lengths)
    at_once = model.decode(target, memory)
    state = model.init_state(memory)
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, at_once[:, t], rtol=0, atol=1e-5)


def test_a_sentence_alone_matches_a_padded_batch(model, batch):
    source, target, lengths = batch
    together = model(source, target, lengths)
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-5)


def test_the_content_of_padding_does_not_matter(model, batch):
    source, target, lengths = batch
    other = source.clone()
    other[1, 4:] = 9
    other[2, 1:] = 8
    assert model(source, target, lengths).equal(model(other, target, lengths))


def test_no_logit_depends_on_a_later_target_token(model, batch):
    source, target, lengths = batch
    before = model(source, target, lengths)
    changed = target.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % VOCABULARY
    after = model(source, changed, lengths)
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_every_logit_depends_on_every_source_token(model, batch):
    source, target, _ = batch
    before = model(source, target)
    for position in range(source.shape[1]):
        changed = source.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        assert (model(changed, target) - before).abs().amax(dim=-1).min() > 0


def test_states_can_be_reordered_and_repeated_by_rows(model, batch):
    source, target, lengths = batch
    state = model.init_state(model.encode(source, lengths))
    _, state = model.step(target[:, 0], state)
    expected, _ = model.step(target[:, 1], state)
    rows = torch.tensor([2, 0, 0, 1])
    actual, _ = model.step(target[rows, 1], select(state, rows))
    torch.testing.assert_close(actual, expected[rows], rtol=0, atol=1e-5)


def test_every_weight_gets_a_gradient(model, batch):
    source, target, lengths = batch
    F.cross_entropy(model(source, target, lengths).flatten(0, 1), target.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_model
def test_it_overfits_eight_examples(name, options):
    model = make(name, dropout=0.0, **options).train()
    generator = torch.Generator().manual_seed(2)
    source, target = (torch.randint(4, VOCABULARY, (8, 6), generator=generator) for _ in range(2))
    decoder_input = torch.cat((torch.full((8, 1), 2), target[:, :-1]), dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(source, decoder_input).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.eval()(source, decoder_input).argmax(-1).equal(target)


@every_model
def test_dropout_acts_in_training_only(name, options, batch):
    source, target, lengths = batch
    model = make(name, dropout=0.5, **options)
    assert model.eval()(source, target, lengths).equal(model(source, target, lengths))
    assert not model.train()(source, target, lengths).equal(model(source, target, lengths))


@pytest.mark.parametrize(("name", "options"), COMPOSED, ids=str)
def test_alignment_layers_are_those_of_the_decoder(name, options, batch):
    model = make(name, **options).eval()
    assert all(layer.startswith("decoder") for layer in model.alignment_layers)
    assert len(model.alignment_layers) == (1 if name == "rnn_seq2seq" else 2)
    with watch(model, layers=list(model.alignment_layers)) as records:
        model(*batch)
    for record in records.values():
        assert record.weights.shape == (3, 1, 5, 7)
