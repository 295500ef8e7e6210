"""Greedy and beam search on a model small enough to enumerate every sequence."""

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
from qkv.errors import ConfigError, InputError
from qkv.generation import (
    Coverage,
    DecodingConstraints,
    GenerationConfig,
    Sampling,
    beam_search,
    generate,
    greedy_search,
    sample,
)
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.nn.interfaces import EncoderDecoder

BEGIN, END, VOCABULARY, MAX_LENGTH = 0, 1, 4, 4


@dataclass(frozen=True)
class Memory:
    tables: Tensor  # batch, token before last, last token, next token


@dataclass(frozen=True)
class State:
    tables: Tensor
    last: Tensor


class SecondOrder(EncoderDecoder[Memory, State]):
    """Trigram model with a random table for each sentence."""

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
            step_logits, state = self.step(token, state)
            logits.append(step_logits)
        return torch.stack(logits, 1)


@cache
def table(seed: int) -> Tensor:
    return 2 * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@cache
def log_table(seed: int) -> list[list[list[float]]]:
    return table(seed).log_softmax(-1).tolist()


def log_probability(seed: int, tokens: tuple[int, ...]) -> float:
    """Return log p(tokens, END) from the table."""
    before, last, total = 0, BEGIN, 0.0
    for token in (*tokens, END):
        total += log_table(seed)[before][last][token]
        before, last = last, token
    return total


def every_sequence(seed: int, length_penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """Return all sequences of up to MAX_LENGTH tokens with their scores, best first."""
    others = [token for token in range(VOCABULARY) if token != END]
    sequences = itertools.chain.from_iterable(itertools.product(others, repeat=n) for n in range(MAX_LENGTH + 1))
    scored = [(log_probability(seed, s) / (len(s) + 1) ** length_penalty, s) for s in sequences]
    return sorted(scored, reverse=True)


def search(seeds: list[int], beam: int, length_penalty: float = 1.0, exact: bool = False):
    model = SecondOrder()
    memory = model.encode(torch.tensor(seeds)[:, None])
    constraints = DecodingConstraints(batch=len(seeds), begin=BEGIN, end=END, max_new_tokens=MAX_LENGTH)
    if beam == 0:
        return greedy_search(model, model.init_state(memory), constraints, length_penalty=length_penalty)
    return beam_search(
        model, model.init_state(memory), constraints, num_beams=beam, length_penalty=length_penalty, exact=exact
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_a_wide_beam_matches_exhaustive_search(seed, length_penalty):
    wide = 3**MAX_LENGTH + 1
    (hypotheses,) = search([seed], wide, length_penalty, exact=True)
    best = every_sequence(seed, length_penalty)[:10]
    assert [h.score for h in hypotheses[:10]] == pytest.approx([score for score, _ in best], abs=1e-4)
    for h in hypotheses[:10]:  # ties may change the order, so compare each with its own score
        expected = log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** length_penalty
        assert h.score == pytest.approx(expected, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 6), exact=st.booleans())
def test_hypotheses_are_distinct_sorted_and_scored_correctly(seed, beam, exact):
    (hypotheses,) = search([seed], beam, exact=exact)
    assert 1 <= len(hypotheses) <= beam
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert len({h.tokens for h in hypotheses}) == len(hypotheses)
    for h in hypotheses:
        assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1), abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=5), beam=st.integers(0, 4))
def test_results_do_not_depend_on_the_batch(seeds, beam):
    assert search(seeds, beam) == [search([seed], beam)[0] for seed in seeds]


def test_each_row_may_have_its_own_constraints():
    model = SecondOrder()
    seeds = list(range(12))
    max_lengths, min_lengths = [1, 2, 3, 4] * 3, [0, 1, 2, 3, 1, 0] * 2
    prefixes = [[], [2], [3, 0], [2, 2, 3]] * 3
    min_lengths = [min(pair) for pair in zip(min_lengths, max_lengths, strict=True)]
    batch_constraints = DecodingConstraints(
        batch=12,
        begin=BEGIN,
        end=END,
        max_new_tokens=max_lengths,
        min_new_tokens=min_lengths,
        prefix_tokens=prefixes,
        suppress_tokens=[0],
    )
    state = model.init_state(model.encode(torch.tensor(seeds)[:, None]))
    together = beam_search(model, state, batch_constraints, num_beams=3, length_penalty=0.7)
    greedy = greedy_search(model, state, batch_constraints, length_penalty=0.7)
    for seed, longest, shortest, prefix in zip(seeds, max_lengths, min_lengths, prefixes, strict=True):
        own = model.init_state(model.encode(torch.tensor([[seed]])))
        constraints = DecodingConstraints(
            batch=1,
            begin=BEGIN,
            end=END,
            max_new_tokens=longest,
            min_new_tokens=shortest,
            prefix_tokens=[prefix],
            suppress_tokens=[0],
        )
        assert together[seed] == beam_search(model, own, constraints, num_beams=3, length_penalty=0.7)[0]
        assert greedy[seed] == greedy_search(model, own, constraints, length_penalty=0.7)[0]
        for h in (greedy[seed], *together[seed]):
            assert shortest <= len(h.tokens) <= longest
            assert h.tokens[: len(prefix)] == tuple(prefix)
            assert 0 not in h.tokens[len(prefix) :]
            assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** 0.7, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_greedy_search_takes_the_most_likely_token_at_every_step(seed):
    (hypothesis,) = search([seed], 0)
    before, last, expected = 0, BEGIN, []
    while len(expected) < MAX_LENGTH and (token := int(table(seed)[before, last].argmax())) != END:
        expected.append(token)
        before, last = last, token
    assert hypothesis.tokens == tuple(expected)
    assert hypothesis.score == pytest.approx(log_probability(seed, hypothesis.tokens) / (len(expected) + 1), abs=1e-4)


def test_only_the_widest_beam_is_guaranteed_to_find_the_best_sequence():
    for seed in range(30):
        scores = [search([seed], beam, length_penalty=0.0, exact=True)[0][0].score for beam in (1, 3, 9, 82)]
        best = every_sequence(seed, 0.0)[0][0]
        assert max(scores) <= best + 1e-4
        assert math.isclose(scores[-1], best, abs_tol=1e-4)


def test_suppressed_tokens_are_not_generated_and_scores_are_not_renormalized():
    model = SecondOrder()
    state = model.init_state(model.encode(torch.arange(20)[:, None]))
    constraints = DecodingConstraints(
        batch=20, begin=BEGIN, end=END, max_new_tokens=MAX_LENGTH, suppress_tokens=[BEGIN, 2]
    )
    greedy = greedy_search(model, state, constraints)
    beams = beam_search(model, state, constraints, num_beams=3)
    for seed, hypotheses in enumerate(beams):
        for h in (greedy[seed], *hypotheses):
            assert set(h.tokens) <= {3}
            assert h.score == pytest.approx(log_probability(seed, h.tokens) / (len(h.tokens) + 1), abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    min_length=st.integers(0, MAX_LENGTH),
    prefix=st.lists(st.sampled_from([0, 2, 3]), max_size=MAX_LENGTH),
    suppressed=st.sampled_from([(), (0,), (2, 3)]),
)
def test_a_wide_beam_finds_all_sequences_that_the_constraints_allow(
    seed, length_penalty, min_length, prefix, suppressed
):
    allowed = [
        (score, tokens) for score, tokens in every_sequence(seed, length_penalty)
        if len(tokens) >= max(min_length, len(prefix))
        and tokens[: len(prefix)] == tuple(prefix)
        and not set(tokens[len(prefix) :]) & set(suppressed)
    ]  # fmt: skip
    constraints = DecodingConstraints(
        batch=1,
        begin=BEGIN,
        end=END,
        max_new_tokens=MAX_LENGTH,
        min_new_tokens=min_length,
        prefix_tokens=[prefix],
        suppress_tokens=suppressed,
    )
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[seed]])))
    everything = sum(3**length for length in range(MAX_LENGTH + 1))
    (hypotheses,) = beam_search(
        model, state, constraints, num_beams=everything, length_penalty=length_penalty, exact=True
    )
    assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in allowed], abs=1e-4)
    assert {h.tokens for h in hypotheses} == {tokens for _, tokens in allowed}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 5), length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_exact_stopping_does_not_change_the_result(seed, beam, length_penalty):
    """Compares with a reference beam search that never stops early."""
    (hypotheses,) = search([seed], beam, length_penalty, exact=True)
    running, finished = [(0.0, ())], []
    for _ in range(MAX_LENGTH + 1):
        candidates = [
            (total + step_log_probability(seed, tokens, token), (*tokens, token))
            for total, tokens in running
            for token in range(VOCABULARY)
            if len(tokens) < MAX_LENGTH or token == END
        ]
        candidates.sort(reverse=True)
        finished += [candidate for candidate in candidates[:beam] if candidate[1][-1] == END]
        running = [candidate for candidate in candidates if candidate[1][-1] != END][:beam]
    expected = sorted(
        ((total / len(tokens) ** length_penalty, tokens[:-1]) for total, tokens in finished), reverse=True
    )
    assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected[:beam]], abs=1e-4)
    for h in hypotheses:  # ties may change the order
        true = log_probability(seed, h.tokens) / (len(h.tokens) + 1) ** length_penalty
        assert h.score == pytest.approx(true, abs=1e-4)


def step_log_probability(seed: int, tokens: tuple[int, ...], token: int) -> float:
    before, last = (0, BEGIN, *tokens)[-2:]
    return log_table(seed)[before][last][token]


class Recording(SecondOrder):
    """Records the input tokens of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[list[int]] = []

    def step(self, token, state):
        self.inputs.append(token.tolist())
        return super().step(token, state)


@pytest.mark.parametrize("beam", [0, 3])
def test_a_hypothesis_records_the_rows_it_was_computed_in(beam):
    """The input of each step at the recorded row must be the previous token."""
    model = Recording()
    constraints = DecodingConstraints(batch=6, begin=BEGIN, end=END, max_new_tokens=MAX_LENGTH)
    state = model.init_state(model.encode(torch.arange(6)[:, None]))
    results = (
        [[h] for h in greedy_search(model, state, constraints)]
        if beam == 0
        else beam_search(model, state, constraints, num_beams=3)
    )
    for hypotheses in results:
        for h in hypotheses:
            assert [model.inputs[step][row] for step, row in enumerate(h.rows)] == [BEGIN, *h.tokens]


@pytest.mark.parametrize("beam", [0, 3])
def test_finished_rows_leave_the_batch(beam):
    model = Recording()
    max_lengths = [1, 4, 2, 4]
    constraints = DecodingConstraints(
        batch=4, begin=BEGIN, end=END, max_new_tokens=max_lengths, min_new_tokens=max_lengths
    )
    state = model.init_state(model.encode(torch.arange(4)[:, None]))
    if beam == 0:
        greedy_search(model, state, constraints)
    else:
        beam_search(model, state, constraints, num_beams=beam)
    assert [len(step) for step in model.inputs] == [max(beam, 1) * rows for rows in (4, 4, 3, 2, 2)]


def test_state_shared_by_beams_is_copied_only_when_a_row_leaves():
    class RecordingTables(SecondOrder):
        def __init__(self) -> None:
            super().__init__()
            self.tables: list[Tensor] = []

        def step(self, token, state):
            self.tables.append(state.tables)
            return super().step(token, state)

    model = RecordingTables()
    max_lengths = [2, 6, 6]
    constraints = DecodingConstraints(
        batch=3, begin=BEGIN, end=END, max_new_tokens=max_lengths, min_new_tokens=max_lengths
    )
    beam_search(model, model.init_state(model.encode(torch.arange(3)[:, None])), constraints, num_beams=4)
    assert [len(tables) for tables in model.tables] == [12, 12, 12, 8, 8, 8, 8]
    assert len({id(tables) for tables in model.tables}) == 2


def test_only_exact_stopping_finds_a_longer_and_better_hypothesis():
    """Ending at once scores -0.36 for one token; continuing costs -1.20 once, divided by four tokens."""

    class LongPath(SecondOrder):
        def step(self, token, state):
            p = torch.tensor([[0.0, 0.7, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
            p = p[token]
            third = (state.last == 3) & (token == 3)  # after 2 3 3 it ends
            p[third] = torch.tensor([0.0, 1.0, 0.0, 0.0])
            return p.log(), State(state.tables, token)

    model = LongPath()
    state = model.init_state(model.encode(torch.tensor([[0]])))
    constraints = DecodingConstraints(batch=1, begin=BEGIN, end=END, max_new_tokens=MAX_LENGTH)
    ((early,),) = beam_search(model, state, constraints, num_beams=1)
    ((exact,),) = beam_search(model, state, constraints, num_beams=1, exact=True)
    assert (early.tokens, exact.tokens) == ((), (2, 3, 3))
    assert early.score == pytest.approx(math.log(0.7))
    assert exact.score == pytest.approx(math.log(0.3) / 4)


SIZES = {
    rnn_seq2seq: {"embedding_dim": 12, "hidden_dim": 16},
    conv_seq2seq: {"dim": 12, "hidden_dim": 16, "layers": 2, "encoder": {"name": "conv", "layers": 1}},
    transformer: {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 24},
}
NETWORKS = {
    rnn_seq2seq: rnn_seq2seq.RNNSeq2Seq, conv_seq2seq: conv_seq2seq.ConvSeq2Seq, transformer: transformer.Transformer
}  # fmt: skip
EVERY_MODEL = pytest.mark.parametrize("module", SIZES, ids=lambda module: module.__name__.rpartition(".")[2])


def untrained(module: ModuleType, vocabulary: int, std: float = 0.5) -> EncoderDecoder:
    torch.manual_seed(3)
    model = NETWORKS[module](
        NETWORKS[module].config_class(source_vocab_size=vocabulary, target_vocab_size=vocabulary, **SIZES[module])
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


@torch.inference_mode()
def initial_state(model: EncoderDecoder, source: Tensor, lengths: Tensor):
    return model.init_state(model.encode(source, lengths))


@EVERY_MODEL
@pytest.mark.parametrize("beam", [1, 4])
def test_attention_weights_of_every_hypothesis_can_be_recorded_during_search(module, beam):
    model = untrained(module, 9).double()
    source, lengths = torch.randint(3, 9, (3, 6)), torch.tensor([6, 2, 4])
    constraints = DecodingConstraints(batch=3, begin=BEGIN, end=END, max_new_tokens=[7, 5, 6], min_new_tokens=[0, 3, 0])
    with qkv.watch(model, layers=["decoder"]) as recorded:
        if beam == 1:
            results = [[h] for h in greedy_search(model, initial_state(model, source, lengths), constraints)]
        else:
            results = beam_search(model, initial_state(model, source, lengths), constraints, num_beams=beam)
    assert len({len(h.tokens) for hypotheses in results for h in hypotheses}) > 1
    for row, hypotheses in enumerate(results):
        assert len(hypotheses) == beam
        for h in hypotheses:
            with qkv.watch(model, layers=["decoder"]) as forced:
                model(source[row : row + 1], torch.tensor([[BEGIN, *h.tokens]]), lengths[row : row + 1])
            assert recorded.keys() == forced.keys()
            for layer in recorded:
                weights = recorded[layer].for_hypothesis(h.rows)
                torch.testing.assert_close(weights, forced[layer].weights[0], rtol=0, atol=1e-9)


@EVERY_MODEL
@pytest.mark.parametrize("beam", [1, 4])
def test_a_padded_sentence_gives_the_same_result_alone_and_in_a_batch(module, beam):
    model = untrained(module, 9)
    source, lengths = torch.randint(3, 9, (5, 7)), torch.tensor([7, 1, 4, 6, 2])
    max_lengths = [9, 2, 5, 12, 4]

    def decode(rows: list[int]):
        longest = int(lengths[rows].max())
        state = initial_state(model, source[rows, :longest], lengths[rows])
        constraints = DecodingConstraints(
            batch=len(rows), begin=BEGIN, end=END, max_new_tokens=[max_lengths[row] for row in rows]
        )
        if beam == 1:
            return [[h] for h in greedy_search(model, state, constraints)]
        return beam_search(model, state, constraints, num_beams=beam)

    for row, together in enumerate(decode([0, 1, 2, 3, 4])):
        (alone,) = decode([row])
        assert [h.tokens for h in alone] == [h.tokens for h in together]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together], abs=1e-5)


def log_coverage(weights: Tensor) -> float:
    """Return sum_i log min(sum_t a_ti, 1) for the weights of one hypothesis."""
    totals = weights.double().sum(dim=0).tolist()
    return sum(math.log(min(max(total, 1e-6), 1.0)) for total in totals)


@EVERY_MODEL
def test_a_wide_beam_with_coverage_matches_exhaustive_search(module):
    model = untrained(module, VOCABULARY, std=0.6)
    source, lengths = torch.tensor([[2, 3, 2, 0, 3], [3, 2, 0, 0, 0]]), torch.tensor([5, 2])
    layer = model.alignment_layers[0]
    longest, others = 3, [token for token in range(VOCABULARY) if token != END]
    every: list[dict[tuple[int, ...], tuple[float, float]]] = [{}, {}]  # log p and coverage of each sequence
    for row, n in itertools.product(range(2), range(longest + 1)):
        sequences = list(itertools.product(others, repeat=n))
        sources = source[row : row + 1, : lengths[row]].expand(len(sequences), -1)
        with qkv.watch(model, layers=[layer]) as recorded, torch.inference_mode():
            log_p = model(sources, torch.tensor([[BEGIN, *tokens] for tokens in sequences])).log_softmax(-1)
        for index, tokens in enumerate(sequences):
            total = sum(log_p[index, step, token].item() for step, token in enumerate((*tokens, END)))
            every[row][tokens] = total, log_coverage(recorded[layer].weights[index].mean(dim=0))
    for beta, length_penalty in ((0.0, 1.0), (0.4, 0.0), (0.2, 1.0), (3.0, 0.6)):
        results = beam_search(
            model,
            initial_state(model, source, lengths),
            DecodingConstraints(batch=2, begin=BEGIN, end=END, max_new_tokens=longest),
            num_beams=40,
            length_penalty=length_penalty,
            coverage=Coverage(beta, layer, lengths),
            exact=True,
        )
        for row in range(2):
            expected = {
                tokens: log_p / (len(tokens) + 1) ** length_penalty + beta * covered
                for tokens, (log_p, covered) in every[row].items()
            }
            assert len(results[row]) == len(expected) == 40
            assert {h.tokens: h.score for h in results[row]} == pytest.approx(expected, abs=1e-4)
            assert [h.score for h in results[row]] == sorted((h.score for h in results[row]), reverse=True)


@pytest.mark.parametrize("beta", [0.0, 0.05, 0.3, 2.0])
def test_beam_search_with_coverage_stops_at_the_expected_step(beta):
    """Compares results and number of steps with a reference that recomputes every hypothesis."""
    model, longest, step_counts = untrained(rnn_seq2seq, VOCABULARY, std=0.6), 8, []
    for source in (torch.tensor([tokens]) for tokens in ([2, 3, 2, 0, 3], [3, 2], [0, 0, 2])):
        coverage = Coverage(beta, model.alignment_layers[0], torch.tensor([source.shape[1]]))
        constraints = DecodingConstraints(batch=1, begin=BEGIN, end=END, max_new_tokens=longest)
        with qkv.watch(model, layers=["decoder"]) as recorded:
            state = initial_state(model, source, coverage.lengths)
            (hypotheses,) = beam_search(model, state, constraints, num_beams=3, length_penalty=0.2, coverage=coverage)
        expected, steps = reference_beam_search(model, source, longest, coverage, beam=3, length_penalty=0.2)
        assert {h.tokens: h.score for h in hypotheses} == pytest.approx(expected, abs=1e-4)
        assert recorded[coverage.layer].weights.shape[2] == steps
        step_counts.append(steps)
    assert min(step_counts) <= longest  # at least one search stopped early


@torch.inference_mode()
def reference_beam_search(
    model: EncoderDecoder, source: Tensor, longest: int, coverage: Coverage, *, beam: int, length_penalty: float
) -> tuple[dict[tuple[int, ...], float], int]:
    running, finished = [(0.0, ())], []
    for step in range(1, longest + 2):
        with qkv.watch(model, layers=[coverage.layer]) as recorded:
            inputs = torch.tensor([[BEGIN, *tokens] for _, tokens in running])
            log_p = model(source.expand(len(running), -1), inputs)[:, -1].log_softmax(-1).tolist()
        weights = recorded[coverage.layer].weights.mean(dim=1)
        penalties = {tokens: coverage.beta * log_coverage(weights[row]) for row, (_, tokens) in enumerate(running)}
        candidates = [
            (total + log_p[row][token], tokens, token)
            for row, (total, tokens) in enumerate(running)
            for token in (range(VOCABULARY) if step <= longest else [END])
        ]
        candidates.sort(reverse=True)
        finished += [
            (total / step**length_penalty + penalties[tokens], tokens)
            for total, tokens, token in candidates[:beam]
            if token == END
        ]
        finished = sorted(finished, reverse=True)[:beam]
        extended = [candidate for candidate in candidates if candidate[2] != END][:beam]
        bounds = [total / (step + 1) ** length_penalty + penalties[tokens] for total, tokens, _ in extended]
        if len(finished) == beam and not max(bounds, default=-math.inf) > finished[-1][0]:
            break
        running = [(total, (*tokens, token)) for total, tokens, token in extended]
    return {tokens: score for score, tokens in finished}, step


def test_coverage_penalty_matches_its_formula():
    """Uncovered source tokens are penalized, padding is not."""
    coverage = Coverage(0.5, "decoder", torch.tensor([3, 2]))
    covered = torch.tensor([[1.0, 1.2, 0.8], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    penalties = coverage.penalty(covered, torch.tensor([0, 0, 1, 1]))
    expected = [0.5 * math.log(0.8), 2 * 0.5 * math.log(1e-6), 0.0, 2 * 0.5 * math.log(0.5)]
    assert penalties.tolist() == pytest.approx(expected, abs=1e-5)


def test_beam_search_with_coverage_removes_its_watchers():
    model = untrained(rnn_seq2seq, VOCABULARY)
    source, lengths = torch.tensor([[2, 3]]), torch.tensor([2])
    constraints = DecodingConstraints(batch=1, begin=BEGIN, end=END, max_new_tokens=3)
    coverage = Coverage(0.2, model.alignment_layers[0], lengths)
    with qkv.watch(model, layers=["decoder"]) as recorded:
        (hypotheses,) = beam_search(
            model, initial_state(model, source, lengths), constraints, num_beams=2, coverage=coverage
        )
    assert recorded[coverage.layer].for_hypothesis(hypotheses[0].rows).shape == (1, len(hypotheses[0].tokens) + 1, 2)
    assert not any(getattr(module, "watchers", ()) for module in model.modules())


def test_search_ends_if_the_model_returns_nan():
    class Broken(SecondOrder):
        def step(self, token, state):
            logits, state = super().step(token, state)
            return logits * math.nan, state

    model = Broken()
    state = model.init_state(model.encode(torch.arange(2)[:, None]))
    constraints = DecodingConstraints(batch=2, begin=BEGIN, end=END, max_new_tokens=3, min_new_tokens=1)
    for results in (
        [[h] for h in greedy_search(model, state, constraints)],
        beam_search(model, state, constraints, num_beams=2),
        sample(model, state, constraints),
    ):
        assert len(results) == 2
        assert all(math.isnan(h.score) and len(h.tokens) <= 3 for row in results for h in row)


def test_beam_search_requires_an_end_token():
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[1]])))
    with pytest.raises(InputError, match="end token"):
        beam_search(model, state, DecodingConstraints(batch=1, begin=BEGIN, end=None, max_new_tokens=3), num_beams=2)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 10**18}, "num_beams"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"num_return_sequences": 0, "sampling": Sampling()}, "num_return_sequences"),
        ({"num_beams": 2, "sampling": Sampling()}, "num_beams"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": math.inf}, "length_penalty"),
        ({"num_beams": 2, "coverage_penalty": -1.0}, "coverage_penalty"),
        ({"coverage_penalty": 0.2}, "coverage_penalty"),
        ({"exact": True}, "exact"),
        ({"exact": True, "sampling": Sampling()}, "exact"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_new_tokens": 4, "max_new_tokens": 3}, "min_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"beam": 2}, "beam"),
    ],
)
def test_invalid_options_are_rejected_by_name(options, key):
    with pytest.raises(ConfigError, match=key):
        GenerationConfig(**options)


def test_generate_returns_the_requested_number_of_hypotheses():
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[1], [2]])))
    constraints = DecodingConstraints(batch=2, begin=BEGIN, end=END, max_new_tokens=4)
    greedy = generate(model, state, constraints, GenerationConfig())
    beams = generate(model, state, constraints, GenerationConfig(num_beams=4, num_return_sequences=2))
    samples = generate(model, state, constraints, GenerationConfig(num_return_sequences=3, sampling=Sampling()))
    assert [[len(row) for row in results] for results in (greedy, beams, samples)] == [[1, 1], [2, 2], [3, 3]]
    zero = generate(model, state, constraints, GenerationConfig(sampling=Sampling(temperature=0.0)))
    assert zero == greedy


def test_ids_beyond_the_vocabulary_are_never_generated():
    model = SecondOrder()
    state = model.init_state(model.encode(torch.tensor([[1], [2]])))
    constraints = DecodingConstraints(batch=2, begin=BEGIN, end=END, max_new_tokens=4, min_new_tokens=4, vocab_size=3)
    for row in beam_search(model, state, constraints, num_beams=3):
        assert all(max(h.tokens) < 3 for h in row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch"),
        ({"max_new_tokens": -1}, "max_new_tokens = -1"),
        ({"max_new_tokens": [3, 2], "min_new_tokens": 3}, "max_new_tokens = 2"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"max_new_tokens": [3]}, "max_new_tokens"),
        ({"begin": [0, 0, 0]}, "begin"),
        ({"prefix_tokens": [[2]]}, "prefix_tokens"),
        ({"prefix_tokens": [[2], [2, 2, 2, 2]]}, "prefix"),
        ({"prefix_tokens": [[2], [2, END]]}, "end token"),
        ({"suppress_tokens": [2, END]}, "suppress_tokens"),
    ],
)
def test_contradictory_constraints_are_rejected(change, message):
    with pytest.raises(InputError, match=message):
        DecodingConstraints(**{"batch": 2, "begin": BEGIN, "end": END, "max_new_tokens": 3} | change)
