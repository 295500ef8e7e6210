"""The filler: what a model puts where a text has masks."""

import pytest
import torch

import qkv
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from qkv.errors import InputError
from tests.tasks.tiny_bert import WORDS, saved, tiny_bert, tiny_tokenizer

TEXTS = [
    "The [MASK] sat on the mat.",
    "[MASK]",
    "a [MASK], a[MASK] and the good [MASK]!",
    "[MASK][MASK] dog",
]


@pytest.mark.parametrize("budget", [1, 8192])
@pytest.mark.parametrize("head", ["masked_lm", "pretraining"])
def test_the_guesses_are_the_most_probable_tokens_at_each_mask(tmp_path, head, budget):
    model = tiny_bert(head)
    filler = qkv.Filler(saved(model, tiny_tokenizer(tmp_path), tmp_path / "model"), device="cpu")
    found = filler.fill(TEXTS, 3, batch_tokens=budget)
    assert [one.text for one in found] == TEXTS
    tokenizer = filler.model.tokenizer
    for text, one in zip(TEXTS, found, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            said = model.mlm_logits(model(ids))[0].softmax(dim=-1)
        places = [place for place, token in enumerate(ids[0].tolist()) if token == WORDS.index("[MASK]")]
        assert len(one.guesses) == len(places) == text.count("[MASK]")
        for place, guesses in zip(places, one.guesses, strict=True):
            ranked = sorted(range(len(WORDS)), key=lambda token, row=said[place]: -float(row[token]))[:3]
            assert [guess.word for guess in guesses] == [WORDS[token] for token in ranked]
            assert [guess.probability for guess in guesses] == pytest.approx(said[place, ranked].tolist(), abs=1e-5)


def test_a_mask_may_be_written_in_several_ways(tmp_path):
    filler = qkv.Filler(tiny_bert("masked_lm"), tiny_tokenizer(tmp_path))
    assert filler("the <mask> sat").guesses == filler("the [MASK] sat").guesses
    assert len(filler("<mask> and [MASK]").guesses) == 2


def test_a_bert_of_our_own_is_filled_in_by_as_a_released_one(tmp_path):
    tokenizer = learn_wordpieces(["the cats sat on mats, and the dogs play", "a dog plays"] * 3, 45, lowercase=True)
    model = tiny_bert("masked_lm", vocabulary_size=len(tokenizer))
    filler = qkv.Filler(saved(model, tokenizer, tmp_path / "model"), device="cpu")
    found = filler("The [MASK] sat.", 4)
    ids = tokenizer.encode("The [MASK] sat.").ids
    with torch.no_grad():
        said = model.mlm_logits(model(torch.tensor([ids])))[0, ids.index(tokenizer.roles.mask)].softmax(dim=-1)
    ranked = said.argsort(descending=True)[:4]
    assert [guess.word for guess in found.guesses[0]] == [tokenizer.name(int(token)) for token in ranked]
    assert [guess.probability for guess in found.guesses[0]] == pytest.approx(said[ranked].tolist(), abs=1e-5)


def always(word: str, folder) -> qkv.Filler:
    """One that has a single answer."""
    model = tiny_bert("masked_lm", vocabulary_size=40)  # with room for more tokens than there are
    with torch.no_grad():
        model.mlm_head.readout.bias.fill_(-100.0)
        model.mlm_head.readout.bias[WORDS.index(word)] = 100.0
        model.mlm_head.readout.bias[30:] = 90.0
    return qkv.Filler(model, tiny_tokenizer(folder))


@pytest.mark.parametrize(
    ("word", "text", "filled"),
    [
        ("cat", "The [MASK] sat on  the <mask>.", "The cat sat on  the cat."),
        ("##ing", "They play [MASK] there", "They playing there"),
        ("##s", "[MASK]", "s"),
    ],
)
def test_the_text_is_filled_with_the_first_guesses(tmp_path, word, text, filled):
    assert always(word, tmp_path)(text).filled == filled


def test_tokens_that_the_vocabulary_lacks_are_never_guessed_and_more_than_there_are_cannot_be(tmp_path):
    (guesses,) = always("cat", tmp_path)("[MASK]", top=1000).guesses
    assert guesses[0].word == "cat"
    assert sorted(guess.word for guess in guesses) == sorted(WORDS)


@pytest.mark.parametrize(
    ("texts", "top", "words"),
    [
        (["a [MASK]", "a cat"], 5, r"input 2 has no mask to fill in: write \[MASK\] for a word"),
        (["a [MASK]", " "], 5, "input 2 is empty"),
        (["[MASK] " * 31], 5, "input 1 has 31 tokens; this model takes at most 30"),
        (["[MASK]"], 0, "one word at least has to be guessed, not 0"),
    ],
)
def test_what_cannot_be_filled_in_is_said(tmp_path, texts, top, words):
    filler = qkv.Filler(tiny_bert("masked_lm"), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match=words):
        filler.fill(texts, top)
    assert filler.fill([]) == []


def test_a_model_without_a_head_for_words_or_a_token_for_masks_is_told_apart(tmp_path):
    words = "has no head, and 'masked_lm' or 'pretraining' is needed here: take a model that kept its own"
    with pytest.raises(InputError, match=words):
        qkv.Filler(tiny_bert(None), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match=r"Bert: its tokenizer has no token for a mask, such as \[MASK\]"):
        qkv.Filler(tiny_bert("masked_lm"), Vocabulary.train(["a cat"], "char"))
