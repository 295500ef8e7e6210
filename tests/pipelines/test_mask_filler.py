"""Mask filling: the predicted tokens for each mask in a text."""

import pytest
import torch

import qkv
from qkv.errors import InputError
from qkv.tokenizers import CharTokenizer, WordPieceTokenizer
from tests.tasks.tiny_bert import WORD_LIST, saved, tiny_bert, tiny_tokenizer

TEXTS = [
    "The [MASK] sat on the mat.",
    "[MASK]",
    "a [MASK], a[MASK] and the good [MASK]!",
    "[MASK][MASK] dog",
]


@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("head", ["masked_lm", "pretraining"])
def test_guesses_are_the_most_probable_tokens_at_each_mask(tmp_path, head, batch_size):
    model = tiny_bert(head)
    filler = qkv.MaskFiller(saved(model, tiny_tokenizer(tmp_path), tmp_path / "model"), device="cpu")
    results = filler(TEXTS, top_k=3, batch_size=batch_size)
    assert [result.text for result in results] == TEXTS
    tokenizer = filler.model.tokenizer
    for text, result in zip(TEXTS, results, strict=True):
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=True)])
        with torch.no_grad():
            probabilities = model.mlm_logits(model(ids))[0].softmax(dim=-1)
        positions = [position for position, token in enumerate(ids[0].tolist()) if token == WORD_LIST.index("[MASK]")]
        assert len(result.guesses) == len(positions) == text.count("[MASK]")
        for position, guesses in zip(positions, result.guesses, strict=True):
            ranked = sorted(range(len(WORD_LIST)), key=lambda token, row=probabilities[position]: -float(row[token]))[
                :3
            ]
            assert [guess.word for guess in guesses] == [WORD_LIST[token] for token in ranked]
            assert [guess.probability for guess in guesses] == pytest.approx(
                probabilities[position, ranked].tolist(), abs=1e-5
            )


def test_masks_can_be_spelled_in_several_ways(tmp_path):
    filler = qkv.MaskFiller(tiny_bert("masked_lm"), tiny_tokenizer(tmp_path))
    assert filler("the <mask> sat").guesses == filler("the [MASK] sat").guesses
    assert len(filler("<mask> and [MASK]").guesses) == 2


def test_fill_with_a_trained_wordpiece_tokenizer(tmp_path):
    tokenizer = WordPieceTokenizer.train(
        ["the cats sat on mats, and the dogs play", "a dog plays"] * 3, vocab_size=45, lowercase=True
    )
    model = tiny_bert("masked_lm", vocab_size=len(tokenizer))
    filler = qkv.MaskFiller(saved(model, tokenizer, tmp_path / "model"), device="cpu")
    result = filler("The [MASK] sat.", top_k=4)
    ids = tokenizer.encode("The [MASK] sat.", add_special_tokens=True)
    with torch.no_grad():
        probabilities = model.mlm_logits(model(torch.tensor([ids])))[
            0, ids.index(tokenizer.special_tokens.mask)
        ].softmax(dim=-1)
    ranked = probabilities.argsort(descending=True)[:4]
    assert [guess.word for guess in result.guesses[0]] == [tokenizer.id_to_token(int(token)) for token in ranked]
    assert [guess.probability for guess in result.guesses[0]] == pytest.approx(probabilities[ranked].tolist(), abs=1e-5)


def always(word: str, folder) -> qkv.MaskFiller:
    """A filler that always predicts `word`."""
    model = tiny_bert("masked_lm", vocab_size=40)  # more outputs than tokens
    with torch.no_grad():
        model.mlm_head.readout.bias.fill_(-100.0)
        model.mlm_head.readout.bias[WORD_LIST.index(word)] = 100.0
        model.mlm_head.readout.bias[30:] = 90.0
    return qkv.MaskFiller(model, tiny_tokenizer(folder))


@pytest.mark.parametrize(
    ("word", "text", "filled"),
    [
        ("cat", "The [MASK] sat on  the <mask>.", "The cat sat on  the cat."),
        ("##ing", "They play [MASK] there", "They playing there"),
        ("##s", "[MASK]", "s"),
    ],
)
def test_the_text_is_filled_with_the_best_guesses(tmp_path, word, text, filled):
    assert always(word, tmp_path)(text).filled == filled


def test_only_tokens_of_the_vocabulary_are_guessed(tmp_path):
    (guesses,) = always("cat", tmp_path)("[MASK]", top_k=1000).guesses
    assert guesses[0].word == "cat"
    assert sorted(guess.word for guess in guesses) == sorted(WORD_LIST)


@pytest.mark.parametrize(
    ("texts", "top_k", "words"),
    [
        (["a [MASK]", "a cat"], 5, "input 2 has no mask"),
        (["a [MASK]", " "], 5, "input 2 is empty"),
        (["[MASK] " * 31], 5, "input 1 has 31 tokens"),
        (["[MASK]"], 0, "top_k"),
    ],
)
def test_invalid_inputs_are_errors(tmp_path, texts, top_k, words):
    filler = qkv.MaskFiller(tiny_bert("masked_lm"), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match=words):
        filler(texts, top_k=top_k)
    assert filler([]) == []


def test_a_model_without_a_masked_lm_head_or_mask_token_is_an_error(tmp_path):
    with pytest.raises(InputError, match="head masked_lm or pretraining, but this one has no head"):
        qkv.MaskFiller(tiny_bert(None), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match="no mask token"):
        qkv.MaskFiller(tiny_bert("masked_lm"), CharTokenizer.train(["a cat"]))
