"""Masked words: the shares of Devlin et al. (2019), what is never masked, whole words, and that a seed repeats it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.objectives.masking import IGNORE, mask_tokens

MASK, SPECIAL, SIZE = 4, 5, 1000
OTHERS = torch.arange(SPECIAL, SIZE)


def text(batch: int = 64, length: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(SPECIAL, SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0], tokens[:, -1] = 2, 3
    return tokens, tokens >= SPECIAL


def masked(tokens, maskable, seed=0, **options):
    return mask_tokens(tokens, maskable, MASK, OTHERS, torch.Generator().manual_seed(seed), **options)


def test_fifteen_percent_are_chosen_and_of_these_eighty_ten_and_ten():
    tokens, maskable = text(500, 202)
    read, targets = masked(tokens, maskable)
    chosen = targets != IGNORE
    assert (chosen.sum(dim=1) == 30).all()  # 15 % of 200 in every row
    count = chosen.sum().item()
    for share, found in (
        (0.8, read == MASK),
        (0.1, read == tokens),
        (0.1, (read != MASK) & (read != tokens)),
    ):
        off = 4 * (share * (1 - share) / count) ** 0.5 + 1 / len(OTHERS)  # a stranger may be the token itself
        assert (found & chosen).sum().item() / count == pytest.approx(share, abs=off)
    assert (read[~chosen] == tokens[~chosen]).all()
    assert (targets[chosen] == tokens[chosen]).all()


def test_every_place_is_chosen_as_often_as_any_other():
    tokens, maskable = text(4000, 42)
    often = (masked(tokens, maskable).targets != IGNORE).double().mean(dim=0)[1:-1]
    assert (often - 0.15).abs().max() < 4.5 * (0.15 * 0.85 / 4000) ** 0.5


def test_special_tokens_are_neither_masked_nor_put_in_the_place_of_others():
    tokens, maskable = text()
    read, targets = masked(tokens, maskable, share=0.9)
    assert (targets[~maskable] == IGNORE).all()
    assert (read[~maskable] == tokens[~maskable]).all()
    assert set(read[maskable].tolist()) & set(range(SPECIAL)) <= {MASK}


def test_a_seed_gives_the_same_again_and_another_does_not():
    tokens, maskable = text()
    first, again, other = (masked(tokens, maskable, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.targets, other.targets)


def test_a_row_with_little_has_one_token_to_guess_and_a_row_with_nothing_none():
    tokens = torch.tensor([[2, 7, 3], [2, 3, 0]])
    targets = masked(tokens, tokens >= SPECIAL).targets
    assert targets.tolist() == [[IGNORE, 7, IGNORE], [IGNORE] * 3]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_word_is_guessed_whole_or_not_at_all_and_no_more_than_the_share(data):
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=40))
    seed, share = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([0.15, 0.3]))
    words = torch.tensor([[word for word, length in enumerate(lengths) for _ in range(length)]])
    tokens = torch.randint(SPECIAL, SIZE, words.shape, generator=torch.Generator().manual_seed(seed))
    chosen = masked(tokens, tokens >= SPECIAL, seed, share=share, words=words).targets[0] != IGNORE
    guessed = [length for word, length in enumerate(lengths) if chosen[words[0] == word].any()]
    assert all(chosen[words[0] == word].all() for word in range(len(lengths)) if chosen[words[0] == word].any())
    assert chosen.any()
    assert chosen.sum() <= max(1, round(share * words.shape[1])) or len(guessed) == 1


def test_whole_words_are_chosen_by_their_share_of_the_tokens_too():
    length = 300
    words = torch.arange(length).div(3, rounding_mode="floor").expand(200, length)
    tokens = torch.randint(SPECIAL, SIZE, (200, length), generator=torch.Generator().manual_seed(0))
    assert ((masked(tokens, tokens >= SPECIAL, words=words).targets != IGNORE).sum(dim=1) == 45).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(InputError, match="share must lie between 0 and 1"):
        masked(*text(), share=share)
