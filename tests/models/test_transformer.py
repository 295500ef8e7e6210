"""The Transformer against PyTorch's own layers with the same weights."""

import pytest
import torch
from torch import nn

from qkv.errors import InputError
from qkv.models.transformer import Config, Transformer

CONFIG = Config(10, 10, dim=12, heads=3, encoder_layers=2, decoder_layers=2, feedforward=20)


def copy_attention(theirs: nn.MultiheadAttention, ours) -> None:
    theirs.in_proj_weight.copy_(ours.project.weight)
    theirs.in_proj_bias.copy_(ours.project.bias)
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@torch.no_grad()
def pytorch_twin(model: Transformer) -> nn.Transformer:
    """PyTorch's Transformer with our weights."""
    c = model.config
    layer = {"d_model": c.dim, "nhead": c.heads, "dim_feedforward": c.feedforward, "dropout": 0.0,
             "batch_first": True, "norm_first": True}  # fmt: skip
    twin = nn.Transformer(num_encoder_layers=c.encoder_layers, num_decoder_layers=c.decoder_layers, **layer)
    for theirs, ours in zip(twin.encoder.layers, model.encoder, strict=True):
        copy_attention(theirs.self_attn, ours.attention)
        theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.feedforward_norm.state_dict())
        theirs.linear1.load_state_dict(ours.feedforward.widen.state_dict())
        theirs.linear2.load_state_dict(ours.feedforward.narrow.state_dict())
    for theirs, ours in zip(twin.decoder.layers, model.decoder, strict=True):
        copy_attention(theirs.self_attn, ours.self_attention)
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        theirs.norm1.load_state_dict(ours.self_norm.state_dict())
        theirs.norm2.load_state_dict(ours.cross_norm.state_dict())
        theirs.norm3.load_state_dict(ours.feedforward_norm.state_dict())
        theirs.linear1.load_state_dict(ours.feedforward.widen.state_dict())
        theirs.linear2.load_state_dict(ours.feedforward.narrow.state_dict())
    twin.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
    twin.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return twin.double().eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_it_equals_the_library_of_pytorch_given_the_same_weights():
    torch.manual_seed(0)
    model = Transformer(CONFIG).double().eval()
    for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
        nn.init.normal_(parameter, std=0.3)
    twin = pytorch_twin(model)
    source, target = torch.randint(0, 10, (2, 6)), torch.randint(0, 10, (2, 4))
    lengths = torch.tensor([6, 3])
    expected = twin(
        model.source_embed(source),
        model.target_embed(target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
        src_key_padding_mask=torch.arange(6) >= lengths[:, None],
        memory_key_padding_mask=torch.arange(6) >= lengths[:, None],
    )
    torch.testing.assert_close(model(source, target, lengths), expected @ model.readout.weight.T)


def test_tied_embeddings_are_one_matrix_and_untied_ones_three():
    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    tied = Transformer(CONFIG)
    untied = Transformer(
        Config(10, 10, dim=12, heads=3, encoder_layers=2, decoder_layers=2, feedforward=20, tie_embeddings=False)
    )
    assert tied.readout.weight is tied.source_embed.tokens.weight is tied.target_embed.tokens.weight
    assert count(untied) - count(tied) == 2 * 10 * 12


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"heads": 5}, "must be a multiple of heads"),
        ({"target_size": 11}, "one vocabulary for source and target"),
        ({"encoder_layers": 10**6}, "more than 1,024 layers"),
        ({"max_length": 0}, "max_length must lie between"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        Config(**{"source_size": 10, "target_size": 10} | wrong)
