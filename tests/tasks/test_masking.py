"""Masking: the proportions of Devlin et al. (2019), special tokens, whole words and reproducibility."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks.base.masking import IGNORE, mask_tokens

MASK, SPECIAL, SIZE = 4, 5, 1000
RANDOM_TOKENS = torch.arange(SPECIAL, SIZE)


def random_text(batch: int = 64, length: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(SPECIAL, SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0], tokens[:, -1] = 2, 3
    return tokens, tokens >= SPECIAL


def mask(tokens, maskable, seed=0, **options):
    return mask_tokens(tokens, maskable, MASK, RANDOM_TOKENS, torch.Generator().manual_seed(seed), **options)


def test_fifteen_percent_are_selected_and_split_eighty_ten_ten():
    tokens, maskable = random_text(500, 202)
    inputs, targets = mask(tokens, maskable)
    selected = targets != IGNORE
    assert (selected.sum(dim=1) == 30).all()  # 15 % of 200 in every row
    count = selected.sum().item()
    for share, matches in (
        (0.8, inputs == MASK),
        (0.1, inputs == tokens),
        (0.1, (inputs != MASK) & (inputs != tokens)),
    ):
        # a random token may equal the original
        tolerance = 4 * (share * (1 - share) / count) ** 0.5 + 1 / len(RANDOM_TOKENS)
        assert (matches & selected).sum().item() / count == pytest.approx(share, abs=tolerance)
    assert (inputs[~selected] == tokens[~selected]).all()
    assert (targets[selected] == tokens[selected]).all()


@pytest.mark.parametrize(("mask_share", "random_share"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_the_shares_of_masks_and_random_tokens_can_be_set(mask_share, random_share):
    tokens, maskable = random_text()
    inputs, targets = mask(tokens, maskable, mask_share=mask_share, random_share=random_share)
    selected = targets != IGNORE
    assert (inputs[selected] == MASK).double().mean() == mask_share
    assert (inputs[selected] != tokens[selected]).double().mean() == pytest.approx(mask_share + random_share, abs=0.01)


def test_every_position_is_selected_equally_often():
    tokens, maskable = random_text(4000, 42)
    frequency = (mask(tokens, maskable).targets != IGNORE).double().mean(dim=0)[1:-1]
    assert (frequency - 0.15).abs().max() < 4.5 * (0.15 * 0.85 / 4000) ** 0.5


def test_special_tokens_are_neither_masked_nor_used_as_replacements():
    tokens, maskable = random_text()
    inputs, targets = mask(tokens, maskable, mask_prob=0.9)
    assert (targets[~maskable] == IGNORE).all()
    assert (inputs[~maskable] == tokens[~maskable]).all()
    assert set(inputs[maskable].tolist()) & set(range(SPECIAL)) <= {MASK}


def test_the_seed_determines_the_masks():
    tokens, maskable = random_text()
    first, again, other = (mask(tokens, maskable, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.targets, other.targets)


def test_a_short_row_has_one_masked_token_and_a_row_without_text_none():
    tokens = torch.tensor([[2, 7, 3], [2, 3, 0]])
    targets = mask(tokens, tokens >= SPECIAL).targets
    assert targets.tolist() == [[IGNORE, 7, IGNORE], [IGNORE] * 3]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whole_words_are_selected_within_the_budget(data):
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=40))
    seed, mask_prob = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([0.15, 0.3]))
    word_ids = torch.tensor([[word for word, length in enumerate(lengths) for _ in range(length)]])
    tokens = torch.randint(SPECIAL, SIZE, word_ids.shape, generator=torch.Generator().manual_seed(seed))
    selected = mask(tokens, tokens >= SPECIAL, seed, mask_prob=mask_prob, word_ids=word_ids).targets[0] != IGNORE
    masked_words = [length for word, length in enumerate(lengths) if selected[word_ids[0] == word].any()]
    assert all(
        selected[word_ids[0] == word].all() for word in range(len(lengths)) if selected[word_ids[0] == word].any()
    )
    assert selected.any()
    assert selected.sum() <= max(1, round(mask_prob * word_ids.shape[1])) or len(masked_words) == 1


def test_whole_word_masking_selects_the_same_fraction_of_tokens():
    length = 300
    word_ids = torch.arange(length).div(3, rounding_mode="floor").expand(200, length)
    tokens = torch.randint(SPECIAL, SIZE, (200, length), generator=torch.Generator().manual_seed(0))
    assert ((mask(tokens, tokens >= SPECIAL, word_ids=word_ids).targets != IGNORE).sum(dim=1) == 45).all()
