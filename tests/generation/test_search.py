"""Search over a model small enough to try every sequence."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.errors import InputError
from qkv.generation import beam_search, greedy_search
from qkv.models import MODELS
from qkv.nn.encoder_decoder import EncoderDecoder

BEGIN, END, VOCABULARY, LONGEST = 0, 1, 4, 4


@dataclass(frozen=True)
class Memory:
    tables: Tensor  # batch, token before last, last token, next token


@dataclass(frozen=True)
class State:
    tables: Tensor
    last: Tensor


class SecondOrder(EncoderDecoder[Memory, State]):
    """The next token depends on the last two, by a random table for each sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def encode(self, source, source_lengths=None):
        return Memory(torch.stack([table(int(seed)) for seed in source[:, 0]]))

    def start(self, memory):
        return State(memory.tables, torch.zeros(len(memory.tables), dtype=torch.long))

    def step(self, token, state):
        rows = torch.arange(len(token))
        return state.tables[rows, state.last, token], State(state.tables, token)

    def decode(self, target, memory):
        state, logits = self.start(memory), []
        for token in target.unbind(1):
            one, state = self.step(token, state)
            logits.append(one)
        return torch.stack(logits, 1)


def table(seed: int) -> Tensor:
    return 2 * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def log_probability(seed: int, tokens: tuple[int, ...]) -> float:
    """log p(tokens, END), by looking the table up."""
    before, last, total = 0, BEGIN, 0.0
    for token in (*tokens, END):
        total += table(seed)[before, last].log_softmax(-1)[token].item()
        before, last = last, token
    return total


def every_sequence(seed: int, length_penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All sequences of up to LONGEST tokens with their scores, best first."""
    others = [token for token in range(VOCABULARY) if token != END]
    sequences = itertools.chain.from_iterable(itertools.product(others, repeat=n) for n in range(LONGEST + 1))
    scored = [(log_probability(seed, s) / (len(s) + 1) ** length_penalty, s) for s in sequences]
    return sorted(scored, reverse=True)


def search(seeds: list[int], beam: int, length_penalty: float = 1.0, exact: bool = False):
    model = SecondOrder()
    memory = model.encode(torch.tensor(seeds)[:, None])
    rules = {"batch": len(seeds), "begin": BEGIN, "end": END, "max_length": LONGEST, "length_penalty": length_penalty}
    if beam == 0:
        return greedy_search(model, memory, **rules)
    return beam_search(model, memory, beam=beam, exact=exact, **rules)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_a_beam_wide_enough_finds_what_trying_everything_finds(seed, length_penalty):
    wide = 3**LONGEST + 1
    (found,) = search([seed], wide, length_penalty, exact=True)
    best = every_sequence(seed, length_penalty)[:10]
    assert [h.score for h in found[:10]] == pytest.approx([score for score, _ in best], abs=1e-4)
    for h in found[:10]:  # two sequences may score alike, so each is held to its own score rather than to its rank
        expected = log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** length_penalty
        assert h.score == pytest.approx(expected, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 6), exact=st.booleans())
def test_scores_are_true_falling_and_never_twice_the_same_sequence(seed, beam, exact):
    (found,) = search([seed], beam, exact=exact)
    assert 1 <= len(found) <= beam
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len({h.tokens for h in found}) == len(found)
    for h in found:
        assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1), abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=5), beam=st.integers(0, 4))
def test_a_sentence_gives_the_same_alone_and_in_a_batch(seeds, beam):
    assert search(seeds, beam) == [search([seed], beam)[0] for seed in seeds]


def test_each_row_may_have_its_own_greatest_length():
    model = SecondOrder()
    seeds = list(range(12))
    limits = torch.tensor([1, 2, 3, 4] * 3)
    rules = {"begin": BEGIN, "end": END, "length_penalty": 0.7}
    memory = model.encode(torch.tensor(seeds)[:, None])
    together = beam_search(model, memory, batch=12, beam=3, max_length=limits, **rules)
    greedy = greedy_search(model, memory, batch=12, max_length=limits, **rules)
    for seed, limit in zip(seeds, limits.tolist(), strict=True):
        own = model.encode(torch.tensor([[seed]]))
        assert together[seed] == beam_search(model, own, batch=1, beam=3, max_length=limit, **rules)[0]
        assert greedy[seed] == greedy_search(model, own, batch=1, max_length=limit, **rules)[0]
        assert all(len(h.tokens) <= limit for h in (greedy[seed], *together[seed]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_greedy_takes_the_most_probable_token_at_every_step(seed):
    (found,) = search([seed], 0)
    before, last, expected = 0, BEGIN, []
    while len(expected) < LONGEST and (token := int(table(seed)[before, last].argmax())) != END:
        expected.append(token)
        before, last = last, token
    assert found.tokens == tuple(expected)
    assert found.score == pytest.approx(log_probability(seed, found.tokens) / (len(expected) + 1), abs=1e-4)


def test_no_beam_finds_better_than_the_best_and_the_widest_finds_it():
    for seed in range(30):
        widths = [search([seed], beam, length_penalty=0.0, exact=True)[0][0].score for beam in (1, 3, 9, 82)]
        best = every_sequence(seed, 0.0)[0][0]
        assert max(widths) <= best + 1e-4
        assert math.isclose(widths[-1], best, abs_tol=1e-4)


def test_what_is_never_to_be_said_is_not_said_and_the_rest_keeps_its_probability():
    model = SecondOrder()
    memory = model.encode(torch.arange(20)[:, None])
    rules = {"batch": 20, "begin": BEGIN, "end": END, "max_length": LONGEST, "never": [BEGIN, 2]}
    greedy = greedy_search(model, memory, **rules)
    beams = beam_search(model, memory, beam=3, **rules)
    for seed, hypotheses in enumerate(beams):
        for h in (greedy[seed], *hypotheses):
            assert set(h.tokens) <= {3}
            assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1), abs=1e-4)


def test_a_hypothesis_says_in_which_rows_it_was_computed():
    """Followed through the tables: the step at each of its rows was given the token before."""

    class Noted(SecondOrder):
        def __init__(self) -> None:
            super().__init__()
            self.given: list[list[int]] = []

        def step(self, token, state):
            self.given.append(token.tolist())
            return super().step(token, state)

    seeds = torch.arange(6)[:, None]
    rules = {"batch": 6, "begin": BEGIN, "end": END, "max_length": LONGEST}
    for beam in (0, 3):
        model = Noted()
        memory = model.encode(seeds)
        if beam == 0:
            found = [[h] for h in greedy_search(model, memory, **rules)]
        else:
            found = beam_search(model, memory, beam=beam, **rules)
        for row, hypotheses in enumerate(found):
            for h in hypotheses:
                assert [model.given[step][at] for step, at in enumerate(h.rows)] == [BEGIN, *h.tokens]
                assert {at // max(beam, 1) for at in h.rows} == {row}


SIZES = {
    "rnn_seq2seq": {"embedding": 12, "hidden": 16},
    "transformer": {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "feedforward": 24},
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("beam", [1, 4])
def test_the_weights_of_every_hypothesis_can_be_read_from_the_search_itself(name, beam):
    network, config = MODELS[name]
    torch.manual_seed(3)
    model = network(config(9, 9, **SIZES[name])).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    source, lengths = torch.randint(3, 9, (3, 6)), torch.tensor([6, 2, 4])
    rules = {"batch": 3, "begin": BEGIN, "end": END, "max_length": torch.tensor([7, 5, 6])}
    with torch.inference_mode():
        memory = model.encode(source, lengths)
    with qkv.watch(model, layers=["decoder"]) as seen:
        if beam == 1:
            found = [[h] for h in greedy_search(model, memory, **rules)]
        else:
            found = beam_search(model, memory, beam=beam, **rules)
    assert len({len(h.tokens) for hypotheses in found for h in hypotheses}) > 1
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == beam
        for h in hypotheses:
            with qkv.watch(model, layers=["decoder"]) as forced:
                model(source[row : row + 1], torch.tensor([[BEGIN, *h.tokens]]), lengths[row : row + 1])
            assert seen.keys() == forced.keys()
            for layer in seen:
                followed = seen[layer].along(h.rows)
                torch.testing.assert_close(followed, forced[layer].weights[0], rtol=0, atol=1e-5)


def test_a_search_for_nothing_is_refused_in_words():
    model = SecondOrder()
    memory = model.encode(torch.tensor([[1]]))
    rules = {"begin": BEGIN, "end": END}
    with pytest.raises(InputError, match="a beam holds one hypothesis at least, not 0"):
        beam_search(model, memory, beam=0, batch=1, max_length=3, **rules)
    for sizes in ({"batch": 0, "max_length": 3}, {"batch": 1, "max_length": -1}):
        with pytest.raises(InputError, match="a row at least, and room for no fewer than 0 tokens"):
            greedy_search(model, memory, **sizes, **rules)
