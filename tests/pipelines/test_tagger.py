"""The tagger: words of a text, their tags and offsets."""

import gzip
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.errors import InputError
from qkv.pipelines.tagger import Entity
from qkv.tokenizers import WordTokenizer
from qkv.tokenizers.words import split_words
from tests.limits import cpu_limit
from tests.tasks.text_encoders import TableEncoder
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

KINDS = ("DET", "NOUN", "PUNCT", "VERB")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("She doesn't know, he can't.", "She does n't know , he ca n't ."),
        ("DON'T! I cannot; it’s they’ll", "DO N'T ! I can not ; it ’s they ’ll"),
        ("the dogs' (state-of-the-art) bowl's", "the dogs ' ( state - of - the - art ) bowl 's"),
        ("see www.example.org/a?b=1, or me@example.org.", "see www.example.org/a?b=1 , or me@example.org ."),
        ("@ada likes #maths: 1,000.50 at 10:30.", "@ada likes #maths : 1,000.50 at 10:30 ."),
        ("Mr. Ives left the U.S. today...", "Mr. Ives left the U.S. today ..."),
        ("What?! So :) yes \"quoted\" £5", "What ?! So :) yes \" quoted \" £ 5"),
        ("Größe über naïve 東京", "Größe über naïve 東京"),
        ("n't 's ' isn't", "n't ' s ' is n't"),
        ("", ""),
        (" \t ", ""),
    ],
)  # fmt: skip
def test_split_words(text, words):
    assert [text[start:end] for start, end in split_words(text)] == words.split()


@given(st.text())
def test_words_cover_a_text_except_whitespace(text):
    spans = split_words(text)
    assert all(start < end for start, end in spans)
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())
    assert spans == sorted(spans)


@pytest.mark.parametrize("part", ["a-", "a", "1,", "a.", "www.", "www.,", "a@", "a@b-", "don't", "?!", "http:// "])
def test_split_words_takes_linear_time(part):
    text = part * (200_000 // len(part))
    with cpu_limit(30):  # linear time takes 0.1 s, quadratic time minutes
        split_words(text)


def test_split_words_agrees_with_a_treebank():
    folder = os.environ.get("QKV_DATA")
    path = Path(folder or "", "ud_english_ewt", "en_ewt-ud-dev.conllu.gz")
    if not folder or not path.exists():
        pytest.skip("QKV_DATA names no folder with ud_english_ewt")
    right = ours = truth = 0
    for sentence in gzip.decompress(path.read_bytes()).decode().split("\n\n")[:1000]:
        lines = sentence.splitlines()
        text = next(line.removeprefix("# text = ") for line in lines if line.startswith("# text = "))
        gold, start = set(), 0
        for word in (row[1] for row in (line.split("\t") for line in lines) if row[0].isdigit()):
            start = text.index(word, start)
            gold.add((start, start + len(word)))
            start += len(word)
        spans = set(split_words(text))
        right, ours, truth = right + len(spans & gold), ours + len(spans), truth + len(gold)
    assert 2 * right / (ours + truth) > 0.97


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_word_gets_the_tag_of_its_first_token(tmp_path, batch_size):
    model = tiny_bert("tagger", labels=4, label_names=KINDS)
    tagger = qkv.Tagger(saved(model, tiny_tokenizer(tmp_path), tmp_path / "model"), device="cpu")
    texts = ["The cat, playing!", "dogs", "A good film on the mat sat in Paris."]
    results = tagger(texts, batch_size=batch_size)
    tokenizer = tagger.model.tokenizer
    for text, result in zip(texts, results, strict=True):
        assert result.text == text
        assert result.words == tuple(text[start:end] for start, end in result.offsets)
        (encoded,) = tokenizer.encode_with_offsets([text], add_special_tokens=True)
        with torch.no_grad():
            best = model.logits(model(torch.tensor([encoded.ids])))[0].argmax(dim=-1).tolist()
        tag_at = {start: KINDS[label] for label, (start, end) in zip(best, encoded.offsets, strict=True) if end > start}
        assert result.tags == tuple(tag_at[start] for start, _ in result.offsets)
        assert result.entities == ()
    assert len({tag for result in results for tag in result.tags}) > 1


def test_given_words_are_used_unchanged(tmp_path):
    tagger = qkv.Tagger(tiny_bert("tagger", labels=4, label_names=KINDS), tiny_tokenizer(tmp_path))
    result = tagger(("the", "good-film", "!", "cat"))
    assert result.words == ("the", "good-film", "!", "cat")
    assert result.text == "the good-film ! cat"
    assert result.offsets == ((0, 3), (4, 13), (14, 15), (16, 19))
    assert tagger("the cat").tags == tagger(("the", "cat")).tags == tagger([("the", "cat")])[0].tags
    for empty in ((), ""):
        with pytest.raises(InputError, match="input 1 is empty"):
            tagger(empty)
    with pytest.raises(InputError, match="blank"):
        tagger(("a", " "))


def test_a_long_text_is_tagged_in_parts(tmp_path):
    tagger = qkv.Tagger(tiny_bert("tagger", labels=4, label_names=KINDS, max_length=6), tiny_tokenizer(tmp_path))
    text = "the cat sat on a mat in paris"
    whole = tagger(text)
    assert whole.tags == tagger("the cat sat on").tags + tagger("a mat in paris").tags


def entity_tagger(**tags: str) -> qkv.Tagger:
    """A tagger with a fixed tag for every word."""
    tokenizer = WordTokenizer.train([" ".join(tags)])
    labels = ("B-location", "I-person", "B-person", "O", "I-location")
    model = TableEncoder(len(tokenizer), labels, "tagger")
    with torch.no_grad():
        model.table.weight.zero_()
        model.table.weight[:, labels.index("O")] = 1.0
        for word, tag in tags.items():
            model.table.weight[tokenizer.encode(word), labels.index(tag)] = 2.0
    return qkv.Tagger(model, tokenizer)


def test_entities_have_text_and_offsets():
    tagger = entity_tagger(Ada="B-person", Lovelace="I-person", Bob="B-person", New="I-location", York="I-location")
    text = "so Ada  Lovelace, Bob Bob saw (New York)"
    assert tagger(text).entities == (
        Entity("person", "Ada  Lovelace", 3, 16),
        Entity("person", "Bob", 18, 21),
        Entity("person", "Bob", 22, 25),
        Entity("location", "New York", 31, 39),
    )
    for entity in tagger(text).entities:
        assert text[entity.start : entity.end] == entity.text
    assert tagger("nobody saw it").entities == ()
    assert tagger(("New", "York")).entities == (Entity("location", "New York", 0, 8),)


def test_a_model_without_tags_or_tag_names_is_an_error(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    with pytest.raises(InputError, match="the head classifier"):
        qkv.Tagger(tiny_bert("classifier"), tokenizer)
    with pytest.raises(InputError, match="label_names"):
        qkv.Tagger(tiny_bert("tagger"), tokenizer)
