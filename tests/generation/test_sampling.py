"""Sampling, against the probabilities it should draw by."""

import math
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from qkv.errors import InputError
from qkv.generation import Rules, Sampling, sample
from qkv.generation.sampling import drawn
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.language_model import LanguageModel

BEGIN, END, VOCABULARY = 0, 1, 6
LOGITS = torch.tensor([0.3, -0.5, 1.2, 0.0, 2.0, -2.0])


@dataclass(frozen=True)
class Last:
    token: Tensor


class Bigrams(LanguageModel[Last]):
    """The next token depends on the last alone: LOGITS, turned by as many places as its number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.stack([LOGITS.roll(token) for token in range(VOCABULARY)]))

    def init_state(self, batch):
        return Last(torch.zeros(batch, dtype=torch.long))

    def forward_from(self, tokens, state):
        return self.table[tokens], Last(tokens[:, -1])


def first_tokens(count: int, how: Sampling, **rules: object) -> Counter[int]:
    model = Bigrams()
    found = sample(
        model,
        model.init_state(1),
        Rules(**{"batch": 1, "begin": BEGIN, "end": None, "max_length": 1} | rules),
        how,
        samples=count,
    )
    return Counter(h.tokens[0] for h in found[0])


def chi_square(found: Counter[int], p: list[float]) -> float:
    count = sum(found.values())
    return sum((found[token] - count * share) ** 2 / (count * share) for token, share in enumerate(p) if share)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature):
    p = (LOGITS.double() / temperature).softmax(-1).tolist()
    found = first_tokens(4000, Sampling(temperature, seed=11))
    assert chi_square(found, p) < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds
    assert chi_square(found, [1 / 6] * 6) > 100


@pytest.mark.parametrize(
    ("how", "support"),
    [
        ({"top_k": 1}, {4}),
        ({"top_k": 3}, {4, 2, 0}),
        ({"top_k": 6}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-9}, {4}),
        ({"top_p": 0.52}, {4}),  # p(4) = 0.535
        ({"top_p": 0.54}, {4, 2}),  # p(4) + p(2) = 0.776
        ({"top_p": 0.9}, {4, 2, 0, 3}),  # 0.776 and 0.098 are 0.874, which does not suffice
        ({"top_p": 1.0}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 2, "top_p": 0.68}, {4}),  # of the two alone, p(4) = 0.69
        ({"top_k": 2, "top_p": 0.7}, {4, 2}),
    ],
)
def test_nothing_outside_the_k_best_or_the_share_of_p_is_drawn_and_all_within(how, support):
    p = LOGITS.double().softmax(-1)
    kept = torch.zeros(VOCABULARY, dtype=torch.float64)
    kept[list(support)] = p[list(support)]
    narrowed = Sampling(**how).narrowed(LOGITS.log_softmax(-1)[None])
    torch.testing.assert_close(narrowed[0] / narrowed.sum(), kept / kept.sum(), rtol=0, atol=1e-7)
    found = first_tokens(1500, Sampling(**how, seed=5))
    assert set(found) == support
    assert chi_square(found, (kept / kept.sum()).tolist()) < 21


def test_of_equal_tokens_no_more_than_k_are_kept():
    assert (Sampling(top_k=2).narrowed(torch.zeros(3, 5)) > 0).sum(dim=-1).tolist() == [2, 2, 2]
    assert (Sampling(top_p=0.39).narrowed(torch.zeros(3, 5)) > 0).sum(dim=-1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-40, 1e-9, 1e9, 1e300, 1e308, sys.float_info.max])
def test_the_coldest_draw_gives_the_best_the_hottest_anything_and_neither_what_is_forbidden(temperature):
    """The limits of p_i ~ exp(z_i / T): all that is best, or all that is allowed, alike."""
    log_p = torch.tensor(
        [[-math.inf, -2.0, -1.0, -1.0, -1.0 - 2**-23, -90.0], [-math.inf, 0.0, -3e-7, -200.0, -1.0, -2.0]]
    )
    best = [[0, 0, 1 / 2, 1 / 2, 0, 0], [0, 1, 0, 0, 0, 0]]
    expected = torch.tensor(best if temperature < 1 else [[0] + [1 / 5] * 5] * 2, dtype=torch.float64)
    found = Sampling(temperature).narrowed(log_p)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found[:, 0] == 0).all()
    assert set(first_tokens(200, Sampling(temperature), never=[4])) == ({2} if temperature < 1 else {0, 1, 2, 3, 5})


def test_what_is_forbidden_is_never_drawn_and_a_prefix_always():
    model = Bigrams()
    rules = Rules(batch=2, begin=BEGIN, end=END, max_length=4, min_length=3, never=[4, 2], prefixes=[[], [4, 5]])
    first, second = sample(model, model.init_state(2), rules, Sampling(temperature=5.0), samples=200)
    for h in (*first, *second):
        assert 3 <= len(h.tokens) <= 4
        assert END not in h.tokens
    assert {token for h in first for token in h.tokens} == {0, 3, 5}
    assert {h.tokens[:2] for h in second} == {(4, 5)}
    assert {token for h in second for token in h.tokens[2:]} == {0, 3, 5}


def test_a_score_is_the_models_own_whatever_the_temperature():
    model = Bigrams()
    rules = Rules(batch=1, begin=3, end=END, max_length=5)
    for h in sample(model, model.init_state(1), rules, Sampling(0.3, top_k=3), samples=30, length_penalty=0.5)[0]:
        last, total = 3, 0.0
        for token in (*h.tokens, END):
            total += LOGITS.roll(last).log_softmax(-1)[token].item()
            last = token
        assert h.score == pytest.approx(total / math.sqrt(len(h.tokens) + 1), abs=1e-5)


def test_without_an_end_token_every_row_has_its_greatest_length_and_its_own_beginning():
    model = Bigrams()
    rules = Rules(batch=3, begin=[0, 2, 5], end=None, max_length=[4, 1, 7])
    found = sample(model, model.init_state(3), rules, Sampling(top_k=1), samples=2)
    for begin, length, hypotheses in zip([0, 2, 5], [4, 1, 7], found, strict=True):
        last, expected, total = begin, [], 0.0
        for _ in range(length):
            log_p = LOGITS.roll(last).log_softmax(-1)
            last = int(log_p.argmax())
            expected.append(last)
            total += log_p[last].item()
        for h in hypotheses:
            assert h.tokens == tuple(expected)
            assert h.score == pytest.approx(total / length, abs=1e-5)
            assert len(h.rows) == length


def test_a_seed_gives_the_same_again_another_seed_or_number_something_else():
    model = Bigrams()

    def texts(seed: int, numbers: list[int]):
        rules = Rules(batch=len(numbers), begin=BEGIN, end=None, max_length=12)
        found = sample(model, model.init_state(len(numbers)), rules, Sampling(seed=seed), samples=3, numbers=numbers)
        return [[h.tokens for h in row] for row in found]

    assert texts(1, [0, 1, 2]) == texts(1, [0, 1, 2])
    assert len({tokens for seed in (1, 2) for row in texts(seed, [0, 1]) for tokens in row}) == 12
    assert texts(1, [2, 0]) == [texts(1, [0, 1, 2])[2], texts(1, [0])[0]]


def test_luck_picks_by_the_place_it_falls_on_and_never_a_token_of_no_probability():
    p = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    for luck, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (1 - 2**-53, 4)):
        for scale in (1.0, 3.0, 1e-30):
            assert drawn(p * scale, torch.tensor([luck], dtype=torch.float64)).tolist() == [token]


MODELS = {
    "rnn_seq2seq": lambda: rnn_seq2seq.RNNSeq2Seq(rnn_seq2seq.Config(9, 9, embedding=8, hidden=8)),
    "conv_seq2seq": lambda: conv_seq2seq.ConvSeq2Seq(
        conv_seq2seq.Config(9, 9, dim=8, hidden=8, encoder_layers=1, decoder_layers=2)
    ),
    "transformer": lambda: transformer.Transformer(
        transformer.Config(9, 9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_a_padded_sentence_is_the_same_alone_and_in_a_batch(name):
    torch.manual_seed(1)
    model: EncoderDecoder = MODELS[name]().eval()
    source, lengths = torch.randint(3, 9, (5, 7)), torch.tensor([7, 1, 4, 6, 2])

    def found(rows: list[int]):
        with torch.inference_mode():
            state = model.init_state(model.encode(source[rows, : int(lengths[rows].max())], lengths[rows]))
        rules = Rules(batch=len(rows), begin=BEGIN, end=END, max_length=[3 + 2 * row for row in rows])
        return sample(model, state, rules, Sampling(top_p=0.95, seed=4), samples=3, numbers=rows)

    together = found([0, 1, 2, 3, 4])
    assert len({h.tokens for row in together for h in row}) > 10
    for row in range(5):
        (alone,) = found([row])
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"temperature": 0.0}, "temperature must be positive, not 0.0"),
        ({"temperature": math.nan}, "temperature must be positive, not nan"),
        ({"temperature": math.inf}, "temperature must be positive, not inf"),
        ({"top_k": 0}, "top-k"),
        ({"top_k": 10**18}, "top-k"),
        ({"top_p": 0.0}, "top-p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.5}, "top-p must be above 0 and at most 1, not 1.5"),
        ({"seed": -1}, "seed must lie between 0 and 2.64, not -1"),
    ],
)
def test_a_way_of_drawing_that_makes_no_sense_is_refused(how, words):
    with pytest.raises(InputError, match=words):
        Sampling(**how)


def test_samples_and_numbers_are_counted():
    model = Bigrams()
    rules = Rules(batch=2, begin=BEGIN, end=None, max_length=1)
    with pytest.raises(InputError, match="one sample at least, not 0"):
        sample(model, model.init_state(2), rules, samples=0)
    with pytest.raises(InputError, match=r"a search of 2 row\(s\) was given 3 numbers of rows"):
        sample(model, model.init_state(2), rules, numbers=[1, 2, 3])
