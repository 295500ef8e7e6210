"""Character-based word encoder and its highway layers."""

import torch

from qkv.nn.word_encoder import Highway, WordEncoder


def test_a_highway_layer_matches_its_equation():
    torch.manual_seed(0)
    highway = Highway(3).double()
    u = torch.randn(5, 3, dtype=torch.float64)
    gate = torch.sigmoid(u @ highway.gate.weight.T + highway.gate.bias)
    transformed = torch.relu(u @ highway.transform.weight.T + highway.transform.bias)
    torch.testing.assert_close(highway(u), gate * transformed + (1 - gate) * u)


def test_under_autocast_a_highway_accepts_float32():
    # layer_norm returns float32 under autocast on a GPU
    with torch.autocast("cpu", torch.bfloat16):
        assert Highway(3)(torch.randn(5, 3)).dtype == torch.bfloat16


def test_normalised_words_are_invariant_to_the_feature_scale():
    torch.manual_seed(0)
    encoder = WordEncoder(4, 3, [(1, 5), (2, 6)], 1, "relu", normalise=True).double()
    characters = torch.randint(1, 200, (2, 3, 7))
    expected = encoder(characters)
    with torch.no_grad():
        for convolution in encoder.convolutions:
            convolution.weight.mul_(50)
            convolution.bias.mul_(50)
    torch.testing.assert_close(encoder(characters), expected, rtol=1e-3, atol=1e-3)
