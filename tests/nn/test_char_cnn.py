"""Vectors of words from characters: the character CNN, its highway layers, and hash embeddings."""

import torch

from qkv.models import elmo
from qkv.nn.encoders import char_cnn
from qkv.nn.encoders.char_cnn import PRIME, ROWS, CharCNN, HashEmbedding, Highway
from qkv.tokenizers import characters as tokenizer
from qkv.tokenizers.characters import CharacterIds


def test_character_ids_are_those_of_the_tokenizer():
    assert (char_cnn.PADDING, char_cnn.CHARACTERS) == (tokenizer.PADDING, tokenizer.CHARACTERS)
    for name in ("BEGIN_SENTENCE", "END_SENTENCE", "BEGIN_WORD", "END_WORD", "WORD_PADDING"):
        assert getattr(elmo, name) == getattr(tokenizer, name)


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


def test_normalized_words_are_invariant_to_the_feature_scale():
    torch.manual_seed(0)
    encoder = CharCNN(4, 3, [(1, 5), (2, 6)], 1, "relu", normalize=True).double()
    characters = torch.randint(1, 200, (2, 3, 7))
    expected = encoder(characters)
    with torch.no_grad():
        for convolution in encoder.convolutions:
            convolution.weight.mul_(50)
            convolution.bias.mul_(50)
    torch.testing.assert_close(encoder(characters), expected, rtol=1e-3, atol=1e-3)


def row_by_hand(numbers: list[int]) -> int:
    """Compute the row with Python's unbounded integers."""
    total = sum(number * PRIME ** (position + 1) for position, number in enumerate(numbers)) % 2**64
    actual = total - 2**64 if total >= 2**63 else total
    return (actual ^ (actual >> 32)) % ROWS


def test_the_hash_of_a_word_selects_its_row():
    torch.manual_seed(0)
    words, characters = HashEmbedding(12, 4), CharacterIds(12)([["a", "schön", "incomprehensibilities"], ["b"]])
    actual = words(characters)
    assert actual.shape == (2, 3, 4)
    for line, vectors in zip(characters.tolist(), actual, strict=True):
        for word, vector in zip(line, vectors, strict=True):
            assert torch.equal(vector, words.table.weight[row_by_hand(word)])


def test_similar_words_collide_no_more_than_random_ones():
    lines = [f"{first}{middle:03}{last}" for first in "abcde" for middle in range(1000) for last in "xyz"]
    rows = {row_by_hand(word) for word in CharacterIds(8)([lines])[0].tolist()}
    expected = ROWS * (1 - (1 - 1 / ROWS) ** len(lines))
    assert abs(len(rows) - expected) < 4 * len(lines) ** 0.5


def test_only_rows_of_input_words_get_gradients():
    words, characters = HashEmbedding(6, 3), CharacterIds(6)([["to", "be"]])
    words(characters).sum().backward()
    learned = words.table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert learned == sorted(row_by_hand(word) for word in characters[0].tolist())
