"""Faithfulness: hand-computed values, a misleading attention, re-weighting, rank agreement and heads."""

import math

import numpy as np
import pytest
import torch

from qkv.interpret.attribution import attribute
from qkv.interpret.faithfulness import BINS, head_effects, kendall_tau, measure_faithfulness, rank_agreement, top_units
from qkv.interpret.reweighting import divergence, permute, permuted_change, reweight
from tests.interpret.known_models import HONEST, MISLEADING, Sum, bag_of_words, sigmoid

NUMBERS = [2.0, 1.0, -1.0]


def test_comprehensiveness_and_sufficiency_by_hand():
    """Of three units, 1 to 20 % is one unit and 50 % are two."""
    (measured,) = measure_faithfulness(Sum(NUMBERS), torch.tensor([NUMBERS]))
    whole = sigmoid(2.0)
    without_one, without_two = whole - sigmoid(0.0), whole - sigmoid(-1.0)
    assert measured.bins == BINS == (0.01, 0.05, 0.1, 0.2, 0.5)
    assert measured.comprehensiveness == pytest.approx([*[without_one] * 4, without_two])
    assert measured.sufficiency == pytest.approx([*[whole - sigmoid(2.0)] * 4, whole - sigmoid(3.0)])
    assert measured.aopc_comprehensiveness == pytest.approx((4 * without_one + without_two) / 5)
    assert measured.aopc_sufficiency == pytest.approx((whole - sigmoid(3.0)) / 5)


def test_the_opposite_ranking_is_worse():
    right, wrong = (
        measure_faithfulness(Sum(NUMBERS), torch.tensor([sign * n for n in NUMBERS])[None])[0] for sign in (1, -1)
    )
    assert right.aopc_comprehensiveness > 0 > wrong.aopc_comprehensiveness
    assert right.aopc_sufficiency < wrong.aopc_sufficiency


def test_misleading_attention_is_less_faithful_than_the_gradient():
    for words, misleading in ((HONEST, False), (MISLEADING, True)):
        prediction = bag_of_words(words)
        attention, gradient = (
            measure_faithfulness(prediction, attribute(prediction, method))[0] for method in ("attention", "gradient")
        )
        difference = gradient.aopc_comprehensiveness - attention.aopc_comprehensiveness
        assert (difference > 0.1) == misleading
        assert (attention.aopc_sufficiency - gradient.aopc_sufficiency > 0.1) == misleading


def test_of_equal_scores_the_first_units_are_removed():
    assert top_units(torch.tensor([1.0, 2.0, 1.0, 1.0]), 2).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("a", "b", "tau"),
    [
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 1, 2], [1, 2, 3], 2 / math.sqrt(2 * 3)),  # one tie: 2 untied pairs of 3
        ([12, 2, 1, 12, 2], [1, 4, 7, 1, 0], -0.47140452079103173),  # the example of scipy.stats.kendalltau
    ],
)
def test_kendall_tau(a, b, tau):
    assert kendall_tau(np.array(a), np.array(b)) == pytest.approx(tau)
    assert math.isnan(kendall_tau(np.ones(3), np.arange(3)))


def test_rank_agreement_is_averaged_over_outputs():
    a, b = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert rank_agreement(a, a) == pytest.approx(1.0)
    assert rank_agreement(a, b) == pytest.approx(0.0)


def test_a_permutation_keeps_the_weights_and_masked_keys():
    row = torch.tensor([[[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.7, 0.0]]])
    permuted = permute(row, torch.Generator().manual_seed(0))
    assert permuted[..., -1].eq(0).all()
    assert permuted.sort().values.equal(row.sort().values)
    together = [permuted[0, :, key].tolist() for key in range(3)]
    assert sorted(together) == sorted(row[0, :, key].tolist() for key in range(3))  # the same in all heads


def test_divergence_is_that_of_jensen_and_shannon():
    a, b = torch.tensor([[[0.5, 0.5, 0.0]]]), torch.tensor([[[[0.0, 0.5, 0.5]]]])
    expected = 0.5 * (0.5 * math.log(2) + 0.5 * math.log(2))
    assert float(divergence(a, b, torch.ones(1, 1, 3, dtype=torch.bool))) == pytest.approx(expected)


def test_weights_that_decide_the_output_have_no_adversary():
    """Where attention is on the only evidence, other weights change the output; where all words are equal, none do."""
    decisive = reweight(bag_of_words(HONEST, strength=2.0))  # far from a probability of 1, which hides changes
    assert decisive.permuted_tvd > 0.1
    assert permuted_change(bag_of_words(HONEST, strength=2.0)) == decisive.permuted_tvd
    assert decisive.adversarial_jsd < 0.1
    assert decisive.adversarial_tvd <= 0.01
    same = {word: (1.0, salience) for word, (_, salience) in HONEST.items()}
    prediction = bag_of_words(same)
    with torch.no_grad():
        prediction.model.embed.weight[:, 0] = 1.0  # of [CLS] and [SEP], too
    indifferent = reweight(prediction)
    assert indifferent.permuted_tvd == pytest.approx(0.0, abs=1e-6)
    assert indifferent.adversarial_jsd > 0.4


def test_ablating_the_only_head_leaves_the_bias():
    prediction = bag_of_words(HONEST)
    effects = head_effects(prediction)
    bias = math.log(sigmoid(-1.0))  # the labels have the biases 0.5 and -0.5
    whole = float(prediction.log_probs(prediction.everything()))
    assert {name: float(effect) for name, effect in effects.items()} == {("pool", 0): pytest.approx(whole - bias)}
    assert float(prediction.log_probs(prediction.everything())) == whole
