"""Source encoders: the contract of all of them, and the equations of each."""

import pytest
import torch
from torch.nn import functional as F

from qkv import registry
from qkv.config import Term, parse_term
from qkv.errors import ConfigError
from qkv.nn.encoders.source_encoders import ConvEncoder, EncoderSizes, RNNEncoder, TransformerEncoder
from qkv.nn.interfaces import EncodedStates, SourceEncoder
from qkv.registry import registered

VOCABULARY, EMBEDDING, DIM, LAYERS = 11, 6, 8, 2
LENGTHS = torch.tensor([5, 3, 1])
SIZES = EncoderSizes(VOCABULARY, EMBEDDING, DIM, LAYERS, dropout=0.0, max_length=9)


def make(name: str, **options: object) -> SourceEncoder:
    torch.manual_seed(0)
    return Term("encoder", name, options).build(SIZES).double().eval()


@pytest.fixture
def source() -> torch.Tensor:
    return torch.randint(VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(1))


every_encoder = pytest.mark.parametrize(
    "name", [name for name, encoder in registered("encoder").items() if not encoder.reads_speech]
)


@every_encoder
def test_the_outputs_have_the_sizes_of_the_contract(name, source):
    encoder = make(name)
    encoded = encoder(source, LENGTHS)
    assert (encoder.dim, encoded.values.shape) == (DIM, (3, 5, DIM))
    assert encoder.final_layers == (LAYERS if encoder.has_final_states else 1)
    assert encoded.final.shape == (3, encoder.final_layers, DIM)
    assert encoded.embedded.shape[:2] == (3, 5)
    assert encoder.embed.weight.shape == (VOCABULARY, EMBEDDING)
    assert make(name, dim=4)(source, LENGTHS).values.shape == (3, 5, 4)


@every_encoder
def test_padding_affects_neither_states_nor_summary(name, source):
    encoder = make(name)
    together = encoder(source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = encoder(source[row : row + 1, :length], LENGTHS[row : row + 1])
        torch.testing.assert_close(alone.values[0], together.values[row, :length])
        torch.testing.assert_close(alone.final[0], together.final[row])


@every_encoder
def test_an_empty_sentence_has_a_zero_summary(name, source):
    final = make(name)(source, torch.tensor([5, 3, 0])).final
    assert final.isfinite().all()
    assert final[2].eq(0).all()


@pytest.mark.parametrize("name", ["conv", "transformer"])
def test_without_final_states_the_summary_is_the_mean(name, source):
    encoded = make(name)(source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(encoded.final[row, 0], encoded.values[row, :length].mean(dim=0))


def test_a_reversed_encoder_returns_its_states_in_the_order_of_the_source(source):
    plain, reverse = make("rnn", bidirectional=False), make("rnn", bidirectional=False, reverse=True)
    reverse.load_state_dict(plain.state_dict())
    expected, actual = plain(source.flip(1), torch.full((3,), 5)), reverse(source, torch.full((3,), 5))
    torch.testing.assert_close(actual.values, expected.values.flip(1))
    torch.testing.assert_close(actual.embedded, expected.embedded.flip(1))
    torch.testing.assert_close(actual.final, expected.final)


def test_a_transformer_layer_matches_pytorch(source):
    encoder = make("transformer", heads=2, ffn_dim=12, layers=1)
    block = encoder.blocks[0]
    project, output = block.attention.qkv_proj, block.attention.out_proj
    theirs = torch.nn.TransformerEncoderLayer(DIM, 2, 12, 0.0, F.relu, batch_first=True, norm_first=True).double()
    ours = {
        "self_attn.in_proj_weight": project.weight, "self_attn.in_proj_bias": project.bias,
        "self_attn.out_proj.weight": output.weight, "self_attn.out_proj.bias": output.bias,
        "linear1.weight": block.feed_forward.up_proj.weight, "linear1.bias": block.feed_forward.up_proj.bias,
        "linear2.weight": block.feed_forward.down_proj.weight, "linear2.bias": block.feed_forward.down_proj.bias,
        "norm1.weight": block.attention_norm.weight, "norm1.bias": block.attention_norm.bias,
        "norm2.weight": block.feed_forward_norm.weight, "norm2.bias": block.feed_forward_norm.bias,
    }  # fmt: skip
    theirs.load_state_dict(ours)
    padding = torch.arange(5) >= LENGTHS[:, None]
    encoded = encoder(source, LENGTHS)
    expected = encoder.norm(theirs(encoded.embedded, src_key_padding_mask=padding))
    torch.testing.assert_close(encoded.values[~padding], expected[~padding])


def test_a_plug_in_encoder_runs_under_every_decoder(source, monkeypatch):
    monkeypatch.setattr("qkv.registry._classes", {kind: dict(classes) for kind, classes in registry._classes.items()})

    @registry.register("encoder", "bag")
    class Bag(SourceEncoder):
        """h_i = e_i: a bag of words."""

        def __init__(self, vocab_size: int, dim: int) -> None:
            super().__init__()
            self.dim, self.embed = dim, torch.nn.Embedding(vocab_size, dim)

        @classmethod
        def from_sizes(cls, sizes: EncoderSizes, *, dim: int | None = None) -> "Bag":
            return cls(sizes.vocab_size, dim or sizes.dim)

        def forward(self, source, lengths):
            embedded = self.embed(source)
            return EncodedStates(embedded, embedded.mean(dim=1, keepdim=True), embedded)

    for name, sizes in (("rnn_seq2seq", {"hidden_dim": 8}), ("conv_seq2seq", {"dim": 8})):
        network = registry.lookup("model", name)
        model = network(network.config_class(source_vocab_size=11, target_vocab_size=11, encoder="bag", **sizes))
        assert model(source, source).shape == (3, 5, 11)


def test_options_override_the_sizes_of_the_model():
    rnn = make("rnn", dim=10, layers=3, cell="lstm", bidirectional=False, dropout=0.5)
    assert isinstance(rnn, RNNEncoder)
    assert (rnn.dim, len(rnn.layers), rnn.dropout.p) == (10, 3, 0.5)
    assert isinstance(rnn.layers[0].forward_rnn.rnn, torch.nn.LSTM)
    conv = make("conv", hidden_dim=12, layers=3, kernel=5)
    assert isinstance(conv, ConvEncoder)
    assert (conv.up_proj.out_features, len(conv.convolutions), conv.convolutions[0].kernel) == (12, 3, 5)
    transformer = make("transformer", heads=2, ffn_dim=20)
    assert isinstance(transformer, TransformerEncoder)
    assert transformer.blocks[0].attention.heads == 2
    assert transformer.blocks[0].feed_forward.up_proj.out_features == 20


@pytest.mark.parametrize(
    ("name", "dim", "options"),
    [
        ("rnn", 7, {}),
        ("rnn", 2**14, {"layers": 1024 + 1}),
        ("transformer", 8, {"heads": 3}),
        ("pyramid", 7, {}),
        ("pyramid", 8, {"rate": 8001}),
    ],
)
def test_options_that_do_not_fit_raise(name, dim, options):
    with pytest.raises(ConfigError, match=r"^encoder\."):
        registered("encoder")[name].check_options(dim, options)


@pytest.mark.parametrize("wrong", [{"name": "cnv"}, {"name": "conv", "heads": 2}, {"name": "rnn", "cell": "gur"}, 3])
def test_an_unknown_encoder_or_option_raises(wrong):
    with pytest.raises(ValueError, match=r"encoder|heads|cell"):
        parse_term("encoder", wrong)


FRAMES = torch.tensor([11, 8, 1])


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(3, 11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_each_layer_of_the_pyramid_halves_the_time(features):
    for layers, lengths in ((1, [11, 8, 1]), (2, [6, 4, 1]), (3, [3, 2, 1]), (5, [1, 1, 1])):
        encoded = make("pyramid", layers=layers, mels=5)(features, FRAMES)
        assert encoded.lengths.tolist() == lengths
        assert encoded.values.shape == (3, lengths[0], DIM)
        assert encoded.final.shape == (3, layers, DIM)


def test_the_pyramid_equals_a_loop_over_pairs_of_frames(features):
    encoder = make("pyramid", layers=2, mels=5)
    (first, second), row = encoder.layers, features[:1]
    for length in (11, 10):  # the last frame of an odd number is paired with zeros
        h, index = row[:, :length], torch.arange(length).flip(0)[None]
        h, _ = first(h, torch.tensor([length]), index)
        frames = [*h[0], torch.zeros(DIM, dtype=torch.float64)]
        pairs = torch.stack([torch.cat((frames[i], frames[i + 1])) for i in range(0, length, 2)])[None]
        expected, _ = second(pairs, torch.tensor([pairs.shape[1]]), torch.arange(pairs.shape[1]).flip(0)[None])
        torch.testing.assert_close(encoder(row[:, :length], torch.tensor([length])).values, expected)


def test_padding_does_not_affect_the_pyramid(features):
    encoder = make("pyramid", layers=3, mels=5)
    together = encoder(features, FRAMES)
    for row, length in enumerate(FRAMES.tolist()):
        alone = encoder(features[row : row + 1, :length], FRAMES[row : row + 1])
        assert alone.lengths[0] == together.lengths[row]
        torch.testing.assert_close(alone.values[0], together.values[row, : alone.values.shape[1]])
        torch.testing.assert_close(alone.final[0], together.final[row])


def test_a_pyramid_has_no_embedding_to_tie():
    with pytest.raises(ConfigError, match="tie_embeddings"):
        Term("encoder", "pyramid").build(SIZES._replace(tie_embeddings=True))
