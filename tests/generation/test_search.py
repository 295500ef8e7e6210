"""Search over a model small enough to try every sequence."""

import itertools
import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.errors import InputError
from qkv.generation import Coverage, Rules, beam_search, greedy_search, sample
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
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

    def init_state(self, memory):
        return State(memory.tables, torch.zeros(len(memory.tables), dtype=torch.long))

    def step(self, token, state):
        rows = torch.arange(len(token))
        return state.tables[rows, state.last, token], State(state.tables, token)

    def decode(self, target, memory):
        state, logits = self.init_state(memory), []
        for token in target.unbind(1):
            one, state = self.step(token, state)
            logits.append(one)
        return torch.stack(logits, 1)


@cache
def table(seed: int) -> Tensor:
    return 2 * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@cache
def log_table(seed: int) -> list[list[list[float]]]:
    return table(seed).log_softmax(-1).tolist()


def log_probability(seed: int, tokens: tuple[int, ...]) -> float:
    """log p(tokens, END), by looking the table up."""
    before, last, total = 0, BEGIN, 0.0
    for token in (*tokens, END):
        total += log_table(seed)[before][last][token]
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
    rules = Rules(batch=len(seeds), begin=BEGIN, end=END, max_length=LONGEST)
    if beam == 0:
        return greedy_search(model, model.init_state(memory), rules, length_penalty=length_penalty)
    return beam_search(model, model.init_state(memory), rules, beam=beam, length_penalty=length_penalty, exact=exact)


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


def test_each_row_may_have_its_own_rules():
    model = SecondOrder()
    seeds = list(range(12))
    limits, least = [1, 2, 3, 4] * 3, [0, 1, 2, 3, 1, 0] * 2
    prefixes = [[], [2], [3, 0], [2, 2, 3]] * 3
    least = [min(least, limit) for least, limit in zip(least, limits, strict=True)]
    whole = Rules(batch=12, begin=BEGIN, end=END, max_length=limits, min_length=least, prefixes=prefixes, never=[0])
    state = model.init_state(model.encode(torch.tensor(seeds)[:, None]))
    together = beam_search(model, state, whole, beam=3, length_penalty=0.7)
    greedy = greedy_search(model, state, whole, length_penalty=0.7)
    for seed, limit, fewest, prefix in zip(seeds, limits, least, prefixes, strict=True):
        own = model.init_state(model.encode(torch.tensor([[seed]])))
        rules = Rules(batch=1, begin=BEGIN, end=END, max_length=limit, min_length=fewest, prefixes=[prefix], never=[0])
        assert together[seed] == beam_search(model, own, rules, beam=3, length_penalty=0.7)[0]
        assert greedy[seed] == greedy_search(model, own, rules, length_penalty=0.7)[0]
        for h in (greedy[seed], *together[seed]):
            assert fewest <= len(h.tokens) <= limit
            assert h.tokens[: len(prefix)] == tuple(prefix)
            assert 0 not in h.tokens[len(prefix) :]
            assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** 0.7, abs=1e-4)


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
    state = model.init_state(model.encode(torch.arange(20)[:, None]))
    rules = Rules(batch=20, begin=BEGIN, end=END, max_length=LONGEST, never=[BEGIN, 2])
    greedy = greedy_search(model, state, rules)
    beams = beam_search(model, state, rules, beam=3)
    for seed, hypotheses in enumerate(beams):
        for h in (greedy[seed], *hypotheses):
            assert set(h.tokens) <= {3}
            assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1), abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    least=st.integers(0, LONGEST),
    prefix=st.lists(st.sampled_from([0, 2, 3]), max_size=LONGEST),
    never=st.sampled_from([(), (0,), (2, 3)]),
)
def test_a_wide_beam_finds_the_best_of_what_the_rules_allow(seed, length_penalty, least, prefix, never):
    allowed = [
        one for one in every_sequence(seed, length_penalty)
        if len(one[1]) >= max(least, len(prefix))
        and one[1][: len(prefix)] == tuple(prefix)
        and not set(one[1][len(prefix) :]) & set(never)
    ]  # fmt: skip
    rules = Rules(batch=1, begin=BEGIN, end=END, max_length=LONGEST, min_length=least, prefixes=[prefix], never=never)
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[seed]])))
    everything = sum(3**length for length in range(LONGEST + 1))
    (found,) = beam_search(model, state, rules, beam=everything, length_penalty=length_penalty, exact=True)
    assert [h.score for h in found] == pytest.approx([score for score, _ in allowed], abs=1e-4)
    assert {h.tokens for h in found} == {tokens for _, tokens in allowed}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 5), length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_an_exact_stop_never_changes_what_is_found(seed, beam, length_penalty):
    """Against the same search by hand, which knows no stop."""
    (found,) = search([seed], beam, length_penalty, exact=True)
    running, ended = [(0.0, ())], []
    for _ in range(LONGEST + 1):
        further = [
            (total + step_log_probability(seed, tokens, token), (*tokens, token))
            for total, tokens in running
            for token in range(VOCABULARY)
            if len(tokens) < LONGEST or token == END
        ]
        further.sort(reverse=True)
        ended += [one for one in further[:beam] if one[1][-1] == END]
        running = [one for one in further if one[1][-1] != END][:beam]
    expected = sorted(((total / len(tokens) ** length_penalty, tokens[:-1]) for total, tokens in ended), reverse=True)
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected[:beam]], abs=1e-4)
    for h in found:  # two sequences may score alike
        true = log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** length_penalty
        assert h.score == pytest.approx(true, abs=1e-4)


def step_log_probability(seed: int, tokens: tuple[int, ...], token: int) -> float:
    before, last = (0, BEGIN, *tokens)[-2:]
    return log_table(seed)[before][last][token]


class Noted(SecondOrder):
    """Notes what every step was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[int]] = []

    def step(self, token, state):
        self.given.append(token.tolist())
        return super().step(token, state)


@pytest.mark.parametrize("beam", [0, 3])
def test_a_hypothesis_says_in_which_rows_it_was_computed(beam):
    """Followed through the tables: the step at each of its rows was given the token before."""
    model = Noted()
    rules = Rules(batch=6, begin=BEGIN, end=END, max_length=LONGEST)
    state = model.init_state(model.encode(torch.arange(6)[:, None]))
    found = [[h] for h in greedy_search(model, state, rules)] if beam == 0 else beam_search(model, state, rules, beam=3)
    for hypotheses in found:
        for h in hypotheses:
            assert [model.given[step][at] for step, at in enumerate(h.rows)] == [BEGIN, *h.tokens]


@pytest.mark.parametrize("beam", [0, 3])
def test_rows_that_are_done_are_computed_no_further(beam):
    model = Noted()
    limits = [1, 4, 2, 4]
    rules = Rules(batch=4, begin=BEGIN, end=END, max_length=limits, min_length=limits)
    state = model.init_state(model.encode(torch.arange(4)[:, None]))
    if beam == 0:
        greedy_search(model, state, rules)
    else:
        beam_search(model, state, rules, beam=beam)
    assert [len(step) for step in model.given] == [max(beam, 1) * rows for rows in (4, 4, 3, 2, 2)]


def test_what_beams_share_is_copied_only_when_a_row_leaves():
    class Same(SecondOrder):
        def __init__(self) -> None:
            super().__init__()
            self.tables: list[Tensor] = []

        def step(self, token, state):
            self.tables.append(state.tables)
            return super().step(token, state)

    model = Same()
    limits = [2, 6, 6]
    rules = Rules(batch=3, begin=BEGIN, end=END, max_length=limits, min_length=limits)
    beam_search(model, model.init_state(model.encode(torch.arange(3)[:, None])), rules, beam=4)
    assert [len(tables) for tables in model.tables] == [12, 12, 12, 8, 8, 8, 8]
    assert len({id(tables) for tables in model.tables}) == 2


def test_only_an_exact_stop_waits_for_what_a_greater_length_forgives():
    """To end at once is likely, log p = -0.36 of one token; to go on costs -1.20 once, but that over four tokens."""

    class Patient(SecondOrder):
        def step(self, token, state):
            p = torch.tensor([[0.0, 0.7, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
            p = p[token]
            third = (state.last == 3) & (token == 3)  # after 2 3 3 it ends
            p[third] = torch.tensor([0.0, 1.0, 0.0, 0.0])
            return p.log(), State(state.tables, token)

    model = Patient()
    state = model.init_state(model.encode(torch.tensor([[0]])))
    rules = Rules(batch=1, begin=BEGIN, end=END, max_length=LONGEST)
    ((hasty,),) = beam_search(model, state, rules, beam=1)
    ((patient,),) = beam_search(model, state, rules, beam=1, exact=True)
    assert (hasty.tokens, patient.tokens) == ((), (2, 3, 3))
    assert hasty.score == pytest.approx(math.log(0.7))
    assert patient.score == pytest.approx(math.log(0.3) / 4)


SIZES = {
    rnn_seq2seq: {"embedding": 12, "hidden": 16},
    conv_seq2seq: {"dim": 12, "hidden": 16, "encoder_layers": 1, "decoder_layers": 2},
    transformer: {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "feedforward": 24},
}
NETWORKS = {
    rnn_seq2seq: rnn_seq2seq.RNNSeq2Seq, conv_seq2seq: conv_seq2seq.ConvSeq2Seq, transformer: transformer.Transformer
}  # fmt: skip
EVERY_MODEL = pytest.mark.parametrize("module", SIZES, ids=lambda module: module.__name__.rpartition(".")[2])


def untrained(module: ModuleType, vocabulary: int, std: float = 0.5) -> EncoderDecoder:
    torch.manual_seed(3)
    model = NETWORKS[module](module.Config(vocabulary, vocabulary, **SIZES[module])).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


@torch.inference_mode()
def begun(model: EncoderDecoder, source: Tensor, lengths: Tensor):
    return model.init_state(model.encode(source, lengths))


@EVERY_MODEL
@pytest.mark.parametrize("beam", [1, 4])
def test_the_weights_of_every_hypothesis_can_be_read_from_the_search_itself(module, beam):
    model = untrained(module, 9).double()
    source, lengths = torch.randint(3, 9, (3, 6)), torch.tensor([6, 2, 4])
    rules = Rules(batch=3, begin=BEGIN, end=END, max_length=[7, 5, 6], min_length=[0, 3, 0])
    with qkv.watch(model, layers=["decoder"]) as seen:
        if beam == 1:
            found = [[h] for h in greedy_search(model, begun(model, source, lengths), rules)]
        else:
            found = beam_search(model, begun(model, source, lengths), rules, beam=beam)
    assert len({len(h.tokens) for hypotheses in found for h in hypotheses}) > 1
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == beam
        for h in hypotheses:
            with qkv.watch(model, layers=["decoder"]) as forced:
                model(source[row : row + 1], torch.tensor([[BEGIN, *h.tokens]]), lengths[row : row + 1])
            assert seen.keys() == forced.keys()
            for layer in seen:
                followed = seen[layer].along(h.rows)
                torch.testing.assert_close(followed, forced[layer].weights[0], rtol=0, atol=1e-9)


@EVERY_MODEL
@pytest.mark.parametrize("beam", [1, 4])
def test_a_padded_sentence_gives_the_same_alone_and_in_a_batch_that_it_outlives_or_leaves(module, beam):
    model = untrained(module, 9)
    source, lengths = torch.randint(3, 9, (5, 7)), torch.tensor([7, 1, 4, 6, 2])
    limits = [9, 2, 5, 12, 4]

    def found(rows: list[int]):
        longest = int(lengths[rows].max())
        state = begun(model, source[rows, :longest], lengths[rows])
        rules = Rules(batch=len(rows), begin=BEGIN, end=END, max_length=[limits[row] for row in rows])
        if beam == 1:
            return [[h] for h in greedy_search(model, state, rules)]
        return beam_search(model, state, rules, beam=beam)

    for row, together in enumerate(found([0, 1, 2, 3, 4])):
        (alone,) = found([row])
        assert [h.tokens for h in alone] == [h.tokens for h in together]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together], abs=1e-5)


def covering(weights: Tensor) -> float:
    """sum_i log min(sum_t a_ti, 1), by hand; the weights are those of one hypothesis over its own source."""
    read = weights.double().sum(dim=0).tolist()
    return sum(math.log(min(max(one, 1e-6), 1.0)) for one in read)


@EVERY_MODEL
def test_a_wide_beam_ranks_by_coverage_as_trying_everything_does(module):
    model = untrained(module, VOCABULARY, std=0.6)
    source, lengths = torch.tensor([[2, 3, 2, 0, 3], [3, 2, 0, 0, 0]]), torch.tensor([5, 2])
    layer = model.alignment_layers[0]
    longest, others = 3, [token for token in range(VOCABULARY) if token != END]
    every: list[dict[tuple[int, ...], tuple[float, float]]] = [{}, {}]  # log p and coverage of each sequence
    for row, n in itertools.product(range(2), range(longest + 1)):
        sequences = list(itertools.product(others, repeat=n))
        own = source[row : row + 1, : lengths[row]].expand(len(sequences), -1)
        with qkv.watch(model, layers=[layer]) as seen, torch.inference_mode():
            log_p = model(own, torch.tensor([[BEGIN, *tokens] for tokens in sequences])).log_softmax(-1)
        for number, tokens in enumerate(sequences):
            total = sum(log_p[number, at, token].item() for at, token in enumerate((*tokens, END)))
            every[row][tokens] = total, covering(seen[layer].weights[number].mean(dim=0))
    for beta, length_penalty in ((0.0, 1.0), (0.4, 0.0), (0.2, 1.0), (3.0, 0.6)):
        found = beam_search(
            model,
            begun(model, source, lengths),
            Rules(batch=2, begin=BEGIN, end=END, max_length=longest),
            beam=40,
            length_penalty=length_penalty,
            coverage=Coverage(beta, layer, lengths),
            exact=True,
        )
        for row in range(2):
            expected = {
                tokens: log_p / (len(tokens) + 1) ** length_penalty + beta * covered
                for tokens, (log_p, covered) in every[row].items()
            }
            assert len(found[row]) == len(expected) == 40
            assert {h.tokens: h.score for h in found[row]} == pytest.approx(expected, abs=1e-4)
            assert [h.score for h in found[row]] == sorted((h.score for h in found[row]), reverse=True)


@pytest.mark.parametrize("beta", [0.0, 0.05, 0.3, 2.0])
def test_a_search_stops_as_soon_as_nothing_that_runs_would_score_better_with_its_coverage(beta):
    """Against the same search by hand, which reads every hypothesis anew: what it finds, and after how many steps."""
    model, longest, taken = untrained(rnn_seq2seq, VOCABULARY, std=0.6), 8, []
    for source in (torch.tensor([tokens]) for tokens in ([2, 3, 2, 0, 3], [3, 2], [0, 0, 2])):
        coverage = Coverage(beta, model.alignment_layers[0], torch.tensor([source.shape[1]]))
        rules = Rules(batch=1, begin=BEGIN, end=END, max_length=longest)
        with qkv.watch(model, layers=["decoder"]) as seen:
            state = begun(model, source, coverage.lengths)
            (found,) = beam_search(model, state, rules, beam=3, length_penalty=0.2, coverage=coverage)
        expected, steps = searched_by_hand(model, source, longest, coverage, beam=3, length_penalty=0.2)
        assert {h.tokens: h.score for h in found} == pytest.approx(expected, abs=1e-4)
        assert seen[coverage.layer].weights.shape[2] == steps
        taken.append(steps)
    assert min(taken) <= longest  # or none would have stopped by itself


@torch.inference_mode()
def searched_by_hand(
    model: EncoderDecoder, source: Tensor, longest: int, coverage: Coverage, *, beam: int, length_penalty: float
) -> tuple[dict[tuple[int, ...], float], int]:
    running, ended = [(0.0, ())], []
    for step in range(1, longest + 2):
        with qkv.watch(model, layers=[coverage.layer]) as seen:
            given = torch.tensor([[BEGIN, *tokens] for _, tokens in running])
            log_p = model(source.expand(len(running), -1), given)[:, -1].log_softmax(-1).tolist()
        read = seen[coverage.layer].weights.mean(dim=1)
        covered = {tokens: coverage.beta * covering(read[row]) for row, (_, tokens) in enumerate(running)}
        further = [
            (total + log_p[row][token], tokens, token)
            for row, (total, tokens) in enumerate(running)
            for token in (range(VOCABULARY) if step <= longest else [END])
        ]
        further.sort(reverse=True)
        ended += [
            (total / step**length_penalty + covered[tokens], tokens)
            for total, tokens, token in further[:beam]
            if token == END
        ]
        ended = sorted(ended, reverse=True)[:beam]
        going_on = [one for one in further if one[2] != END][:beam]
        could_be = [total / (step + 1) ** length_penalty + covered[tokens] for total, tokens, _ in going_on]
        if len(ended) == beam and not max(could_be, default=-math.inf) > ended[-1][0]:
            break
        running = [(total, (*tokens, token)) for total, tokens, token in going_on]
    return {tokens: score for score, tokens in ended}, step


def test_a_coverage_penalty_prefers_what_has_read_all_of_its_source():
    """Of the weights of a step, all on the token that was said: what repeats one token leaves the others unread."""
    coverage = Coverage(0.5, "decoder", torch.tensor([3, 2]))
    covered = torch.tensor([[1.0, 1.2, 0.8], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    found = coverage.penalty(covered, torch.tensor([0, 0, 1, 1]))
    expected = [0.5 * math.log(0.8), 2 * 0.5 * math.log(1e-6), 0.0, 2 * 0.5 * math.log(0.5)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_search_that_ranks_by_coverage_leaves_the_layer_unwatched():
    model = untrained(rnn_seq2seq, VOCABULARY)
    source, lengths = torch.tensor([[2, 3]]), torch.tensor([2])
    rules = Rules(batch=1, begin=BEGIN, end=END, max_length=3)
    coverage = Coverage(0.2, model.alignment_layers[0], lengths)
    with qkv.watch(model, layers=["decoder"]) as seen:
        (found,) = beam_search(model, begun(model, source, lengths), rules, beam=2, coverage=coverage)
    assert seen[coverage.layer].along(found[0].rows).shape == (1, len(found[0].tokens) + 1, 2)
    assert not any(getattr(module, "watchers", ()) for module in model.modules())


def test_a_model_that_gives_no_numbers_does_not_keep_a_search_from_ending():
    class Broken(SecondOrder):
        def step(self, token, state):
            logits, state = super().step(token, state)
            return logits * math.nan, state

    model = Broken()
    state = model.init_state(model.encode(torch.arange(2)[:, None]))
    rules = Rules(batch=2, begin=BEGIN, end=END, max_length=3, min_length=1)
    for found in (
        [[h] for h in greedy_search(model, state, rules)],
        beam_search(model, state, rules, beam=2),
        sample(model, state, rules),
    ):
        assert len(found) == 2
        assert all(math.isnan(h.score) and len(h.tokens) <= 3 for row in found for h in row)


def test_a_search_for_nothing_is_refused_in_words():
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[1]])))
    rules = {"batch": 1, "begin": BEGIN, "end": END, "max_length": 3}
    with pytest.raises(InputError, match="hypotheses"):
        beam_search(model, state, Rules(**rules), beam=0)
    with pytest.raises(InputError, match="it needs an end token"):
        beam_search(model, state, Rules(**rules | {"end": None}), beam=2)
    for penalty in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="a length penalty is a finite number, 0 or more"):
            beam_search(model, state, Rules(**rules), beam=2, length_penalty=penalty)
        with pytest.raises(InputError, match="a coverage penalty is a finite number, 0 or more"):
            Coverage(penalty, "decoder", torch.tensor([1]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "a search needs a row at least, not 0"),
        ({"max_length": -1}, "row 0 of a search may have no fewer than 0 tokens and no more than -1"),
        ({"max_length": [3, 2], "min_length": 3}, "row 1 of a search may have no fewer than 3 tokens and no more than"),
        ({"min_length": -1}, "row 0 of a search may have no fewer than -1 tokens"),
        ({"max_length": [3]}, "a search of 2 row.s. was given max_length for 1: give one for each"),
        ({"begin": [0, 0, 0]}, "a search of 2 row.s. was given begin for 3: give one for each"),
        ({"prefixes": [[2]]}, "a search of 2 row.s. was given 1 prefixes: one for each"),
        ({"prefixes": [[2], [2, 2, 2, 2]]}, "row 1 of a search must begin with 4 tokens, but may have 3"),
        ({"prefixes": [[2], [2, END]]}, "row 1 of a search must begin with an end token"),
        ({"never": [2, END]}, "a search that never says its end token cannot end"),
    ],
)  # fmt: skip
def test_rules_that_nothing_could_follow_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        Rules(**{"batch": 2, "begin": BEGIN, "end": END, "max_length": 3} | change)
