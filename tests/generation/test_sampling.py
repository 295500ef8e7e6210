"""Sampling frequencies against the expected probabilities."""

import math
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from qkv.errors import InputError
from qkv.generation import DecodingConstraints, Sampling, sample, stream
from qkv.generation.sampling import MAX_TOKENS, sample_from
from qkv.models import conv_seq2seq, rnn_seq2seq, transformer
from qkv.nn.interfaces import EncoderDecoder, LanguageModel

BEGIN, END, VOCABULARY = 0, 1, 6
LOGITS = torch.tensor([0.3, -0.5, 1.2, 0.0, 2.0, -2.0])


@dataclass(frozen=True)
class Last:
    token: Tensor


class Bigrams(LanguageModel[Last]):
    """Bigram model: the logits of the next token are LOGITS, rolled by the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = torch.nn.Linear(VOCABULARY, VOCABULARY, bias=False)  # column: the logits after a token
        table = torch.stack([LOGITS.roll(token) for token in range(VOCABULARY)])
        self.readout.weight = torch.nn.Parameter(table.t().contiguous())

    def init_state(self, batch):
        return Last(torch.zeros(batch, dtype=torch.long))

    def hidden_from(self, tokens, state):
        return torch.nn.functional.one_hot(tokens, VOCABULARY).to(self.readout.weight), Last(tokens[:, -1])


def first_tokens(count: int, sampling: Sampling, **constraints: object) -> Counter[int]:
    model = Bigrams()
    hypotheses = sample(
        model,
        model.init_state(1),
        DecodingConstraints(**{"batch": 1, "begin": BEGIN, "end": None, "max_new_tokens": 1} | constraints),
        sampling,
        num_return_sequences=count,
    )
    return Counter(h.tokens[0] for h in hypotheses[0])


def chi_square(counts: Counter[int], p: list[float]) -> float:
    count = sum(counts.values())
    return sum((counts[token] - count * share) ** 2 / (count * share) for token, share in enumerate(p) if share)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_frequencies_match_the_softmax(temperature):
    p = (LOGITS.double() / temperature).softmax(-1).tolist()
    counts = first_tokens(4000, Sampling(temperature=temperature, seed=11))
    assert chi_square(counts, p) < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds
    assert chi_square(counts, [1 / 6] * 6) > 100


@pytest.mark.parametrize(
    ("settings", "support"),
    [
        ({"top_k": 1}, {4}),
        ({"top_k": 3}, {4, 2, 0}),
        ({"top_k": 6}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-9}, {4}),
        ({"top_p": 0.52}, {4}),  # p(4) = 0.535
        ({"top_p": 0.54}, {4, 2}),  # p(4) + p(2) = 0.776
        ({"top_p": 0.9}, {4, 2, 0, 3}),  # 0.776 + 0.098 = 0.874 is not enough
        ({"top_p": 1.0}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 2, "top_p": 0.68}, {4}),  # renormalized over the two, p(4) = 0.69
        ({"top_k": 2, "top_p": 0.7}, {4, 2}),
    ],
)
def test_top_k_and_top_p_keep_exactly_the_expected_tokens(settings, support):
    p = LOGITS.double().softmax(-1)
    kept = torch.zeros(VOCABULARY, dtype=torch.float64)
    kept[list(support)] = p[list(support)]
    filtered = Sampling(**settings).filter_probs(LOGITS.log_softmax(-1)[None])
    torch.testing.assert_close(filtered[0] / filtered.sum(), kept / kept.sum(), rtol=0, atol=1e-7)
    counts = first_tokens(1500, Sampling(**settings, seed=5))
    assert set(counts) == support
    assert chi_square(counts, (kept / kept.sum()).tolist()) < 21


def test_ties_do_not_exceed_top_k():
    assert (Sampling(top_k=2).filter_probs(torch.zeros(3, 5)) > 0).sum(dim=-1).tolist() == [2, 2, 2]
    assert (Sampling(top_p=0.39).filter_probs(torch.zeros(3, 5)) > 0).sum(dim=-1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-40, 1e-9, 1e9, 1e300, 1e308, sys.float_info.max])
def test_extreme_temperatures_give_the_argmax_or_the_uniform_distribution(temperature):
    """The limits of p_i ~ exp(z_i / T): uniform over the best tokens, or over all allowed tokens."""
    log_p = torch.tensor(
        [[-math.inf, -2.0, -1.0, -1.0, -1.0 - 2**-23, -90.0], [-math.inf, 0.0, -3e-7, -200.0, -1.0, -2.0]]
    )
    best = [[0, 0, 1 / 2, 1 / 2, 0, 0], [0, 1, 0, 0, 0, 0]]
    expected = torch.tensor(best if temperature < 1 else [[0] + [1 / 5] * 5] * 2, dtype=torch.float64)
    p = Sampling(temperature=temperature).filter_probs(log_p)
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-6)
    assert (p[:, 0] == 0).all()
    assert set(first_tokens(200, Sampling(temperature=temperature), suppress_tokens=[4])) == (
        {2} if temperature < 1 else {0, 1, 2, 3, 5}
    )


def test_suppressed_tokens_are_never_sampled_and_prefixes_are_forced():
    model = Bigrams()
    constraints = DecodingConstraints(
        batch=2,
        begin=BEGIN,
        end=END,
        max_new_tokens=4,
        min_new_tokens=3,
        suppress_tokens=[4, 2],
        prefix_tokens=[[], [4, 5]],
    )
    first, second = sample(model, model.init_state(2), constraints, Sampling(temperature=5.0), num_return_sequences=200)
    for h in (*first, *second):
        assert 3 <= len(h.tokens) <= 4
        assert END not in h.tokens
    assert {token for h in first for token in h.tokens} == {0, 3, 5}
    assert {h.tokens[:2] for h in second} == {(4, 5)}
    assert {token for h in second for token in h.tokens[2:]} == {0, 3, 5}


def test_scores_do_not_depend_on_the_temperature():
    model = Bigrams()
    constraints = DecodingConstraints(batch=1, begin=3, end=END, max_new_tokens=5)
    for h in sample(
        model,
        model.init_state(1),
        constraints,
        Sampling(temperature=0.3, top_k=3),
        num_return_sequences=30,
        length_penalty=0.5,
    )[0]:
        last, total = 3, 0.0
        for token in (*h.tokens, END):
            total += LOGITS.roll(last).log_softmax(-1)[token].item()
            last = token
        assert h.score == pytest.approx(total / math.sqrt(len(h.tokens) + 1), abs=1e-5)


def test_without_an_end_token_every_row_has_its_max_length():
    model = Bigrams()
    constraints = DecodingConstraints(batch=3, begin=[0, 2, 5], end=None, max_new_tokens=[4, 1, 7])
    samples = sample(model, model.init_state(3), constraints, Sampling(top_k=1), num_return_sequences=2)
    for begin, length, hypotheses in zip([0, 2, 5], [4, 1, 7], samples, strict=True):
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


def test_seed_and_row_id_determine_the_samples():
    model = Bigrams()

    def sampled(seed: int, row_ids: list[int]):
        constraints = DecodingConstraints(batch=len(row_ids), begin=BEGIN, end=None, max_new_tokens=12)
        samples = sample(
            model,
            model.init_state(len(row_ids)),
            constraints,
            Sampling(seed=seed),
            num_return_sequences=3,
            row_ids=row_ids,
        )
        return [[h.tokens for h in row] for row in samples]

    assert sampled(1, [0, 1, 2]) == sampled(1, [0, 1, 2])
    assert len({tokens for seed in (1, 2) for row in sampled(seed, [0, 1]) for tokens in row}) == 12
    assert sampled(1, [2, 0]) == [sampled(1, [0, 1, 2])[2], sampled(1, [0])[0]]


def test_sample_from_inverts_the_cdf_and_skips_zero_probabilities():
    p = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    for uniform, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (1 - 2**-53, 4)):
        for scale in (1.0, 3.0, 1e-30):
            assert sample_from(p * scale, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


MODELS = {
    "rnn_seq2seq": lambda: rnn_seq2seq.RNNSeq2Seq(
        rnn_seq2seq.RNNSeq2SeqConfig(source_vocab_size=9, target_vocab_size=9, embedding_dim=8, hidden_dim=8)
    ),
    "conv_seq2seq": lambda: conv_seq2seq.ConvSeq2Seq(
        conv_seq2seq.ConvSeq2SeqConfig(source_vocab_size=9, target_vocab_size=9, dim=8, hidden_dim=8, layers=2)
    ),
    "transformer": lambda: transformer.Transformer(
        transformer.TransformerConfig(
            source_vocab_size=9, target_vocab_size=9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, ffn_dim=8
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_samples_do_not_depend_on_the_rest_of_the_batch(name):
    torch.manual_seed(1)
    model: EncoderDecoder = MODELS[name]().eval()
    source, lengths = torch.randint(3, 9, (5, 7)), torch.tensor([7, 1, 4, 6, 2])

    def sampled(rows: list[int]):
        with torch.inference_mode():
            state = model.init_state(model.encode(source[rows, : int(lengths[rows].max())], lengths[rows]))
        constraints = DecodingConstraints(
            batch=len(rows), begin=BEGIN, end=END, max_new_tokens=[3 + 2 * row for row in rows]
        )
        return sample(model, state, constraints, Sampling(top_p=0.95, seed=4), num_return_sequences=3, row_ids=rows)

    together = sampled([0, 1, 2, 3, 4])
    assert len({h.tokens for row in together for h in row}) > 10
    for row in range(5):
        (alone,) = sampled([row])
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 10**18}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=message):
        Sampling(**settings)


def test_too_many_samples_and_wrong_row_ids_are_rejected():
    model = Bigrams()
    constraints = DecodingConstraints(batch=2, begin=BEGIN, end=None, max_new_tokens=1)
    with pytest.raises(InputError, match="num_return_sequences"):
        sample(model, model.init_state(2), constraints, num_return_sequences=MAX_TOKENS)
    with pytest.raises(InputError, match="row_ids"):
        sample(model, model.init_state(2), constraints, row_ids=[1, 2, 3])


@pytest.mark.parametrize("sampling", [Sampling(seed=3), Sampling(temperature=0.0)])
def test_streamed_tokens_equal_those_of_a_sample(sampling):
    model = Bigrams()
    constraints = DecodingConstraints(batch=1, begin=BEGIN, end=END, max_new_tokens=9)
    ((hypothesis,),) = sample(model, model.init_state(1), constraints, sampling)
    tokens = stream(model, model.init_state(1), constraints, sampling)
    streamed = []
    for token in tokens:
        assert not torch.is_inference_mode_enabled()
        streamed.append(token)
    assert tuple(streamed) == hypothesis.tokens
