"""The recurrent encoder-decoder against its equations, written out one at a time."""

import pytest
import torch

from qkv.errors import InputError
from qkv.models.rnn_seq2seq import Config, RNNSeq2Seq, turning

CONFIG = Config(source_size=9, target_size=8, embedding=5, hidden=6)


def gru(cell, x, h):
    """r, z, n and h' of a GRU, from the weights of PyTorch's layer or cell."""
    suffix = "_l0" if hasattr(cell, "weight_ih_l0") else ""
    w, u, b, c = (getattr(cell, name + suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    xr, xz, xn = (w @ x + b).chunk(3)
    hr, hz, hn = (u @ h + c).chunk(3)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    candidate = torch.tanh(xn + reset * hn)
    return (1 - update) * candidate + update * h


def test_it_computes_the_equations_of_the_paper():
    torch.manual_seed(0)
    model = RNNSeq2Seq(CONFIG).double().eval()
    source, target = torch.tensor([3, 1, 4, 1]), torch.tensor([2, 7, 1])
    encoder, decoder = model.encoder, model.decoder

    embedded = encoder.embed[0].weight[source]
    ahead, back = [torch.zeros(3).double()], [torch.zeros(3).double()]
    for i in range(4):
        ahead.append(gru(encoder.ahead, embedded[i], ahead[-1]))
        back.append(gru(encoder.back, embedded[3 - i], back[-1]))
    h = [torch.cat((ahead[i + 1], back[4 - i])) for i in range(4)]  # h_i

    s = torch.tanh(decoder.bridge[0](back[4]))  # s_0
    score = decoder.attend.score
    expected = []
    for token in target:
        y = decoder.embed[0].weight[token]
        e = torch.stack([score.vector[0] @ torch.tanh(s @ score.query_weight[0] + k @ score.key_weight[0]) for k in h])
        a = e.exp() / e.exp().sum()
        c = sum(weight * state for weight, state in zip(a, h, strict=True))
        s = gru(decoder.cell, torch.cat((y, c)), s)
        readout = torch.tanh(decoder.readout[0](torch.cat((s, c, y))))
        expected.append(decoder.readout[3](readout))
    torch.testing.assert_close(model(source[None], target[None])[0], torch.stack(expected))


def test_turning_a_sentence_round_leaves_its_padding_in_place():
    assert turning(torch.tensor([4, 2]), 4).tolist() == [[3, 2, 1, 0], [1, 0, 2, 3]]


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "additive"])
def test_any_score_serves_by_its_name(score):
    model = RNNSeq2Seq(Config(9, 8, embedding=5, hidden=6, score=score))
    assert model(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)).shape == (2, 4, 8)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"score": "additiv"}, "did you mean additive"),
        ({"hidden": 7}, "hidden must be even"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"embedding": 0}, "embedding must lie between"),
        ({"source_size": 10**12}, "source_size must lie between"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        Config(**{"source_size": 9, "target_size": 8} | wrong)
