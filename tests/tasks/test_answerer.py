"""The answerer: the most probable passage of a text, against transformers and against trying every passage."""

import unicodedata
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.data.questions import Passage, Question
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.tasks.answerer import Answerer
from qkv.tasks.windows import placed, windows_of
from tests.tasks.tiny_bert import WORDS, saved, tiny_bert, tiny_tokenizer

QUESTION = "The cat sat on?"
TEXT = "Ada plays  in Paris, the good cat sat on a mat. A bad dog lives in the film!"
LONG = " ".join(f"{TEXT} The {word} played." for word in ("dog", "mat"))


def every_passage(model: Any, tokenizer: Any, question: str, text: str, most: int, longest: int, stride: int | None):
    """All passages with their probabilities, one window and one pair of places after the other, and that of none."""
    asked = tokenizer.encode(question, specials=False).ids[: (longest - 3) // 2]
    whole = tokenizer.encode(text, specials=False)
    wide = longest - 3 - len(asked)
    found: dict[Passage, float] = {}
    none = []
    start = 0
    while True:
        ids, offsets = whole.ids[start : start + wide], whole.offsets[start : start + wide]
        row = [2, *asked, 3, *ids, 3]
        segments = [0] * (2 + len(asked)) + [1] * (1 + len(ids))
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([row]), torch.tensor([segments])))[0].double()
        kept = [0, *range(2 + len(asked), 2 + len(asked) + len(ids))]
        begins, ends = logits[kept].softmax(dim=0).T.tolist()
        none.append(begins[0] * ends[0])
        for first, last in product(range(len(ids)), repeat=2):
            if first <= last < first + most:
                passage = Passage(offsets[first][0], offsets[last][1])
                found[passage] = max(begins[1 + first] * ends[1 + last], found.get(passage, 0.0))
        if start + wide >= len(whole.ids):
            return sorted(found.items(), key=lambda one: -one[1]), min(none)
        start += stride or wide // 2


@pytest.mark.parametrize(
    ("text", "longest", "stride", "budget", "most"),
    [
        (TEXT, 32, None, 8192, 30),
        (TEXT, 12, None, 8192, 4),
        (LONG, 16, 5, 50, 1),
        (LONG, 32, None, 100, 30),
        ("cat", 9, None, 1, 4),
    ],
)
def test_the_answer_is_the_best_of_all_passages_in_all_windows(tmp_path, text, longest, stride, budget, most):
    tokenizer = tiny_tokenizer(tmp_path)
    answerer = Answerer(saved(tiny_bert("span", max_length=longest), tokenizer, tmp_path / "model"), device="cpu")
    (found,) = answerer.answer([Question(QUESTION, text)], 5, longest=most, stride=stride, batch_tokens=budget)
    wanted, none = every_passage(answerer.model, tokenizer, QUESTION, text, most, longest, stride)
    assert [one.probability for one in found.candidates] == pytest.approx([p for _, p in wanted[:5]], rel=1e-4)
    for one, (passage, _) in zip(found.candidates, wanted, strict=False):
        assert (one.begin, one.end) == (passage.begin, passage.end)
        assert one.text == text[one.begin : one.end]
    assert found.no_answer == pytest.approx(none, rel=1e-4)
    assert found.answer == (found.candidates[0] if wanted[0][1] >= none else None)


def test_logits_and_answer_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.BertForQuestionAnswering(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    theirs.save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)  # writes vocab.txt
    answerer = Answerer(tmp_path, device="cpu")
    read = transformers.BertTokenizerFast.from_pretrained(tmp_path)(QUESTION, TEXT, return_tensors="pt")
    with torch.no_grad():
        said = theirs(**read)
        (window,) = windows_of(answerer.splitter, [Question(QUESTION, TEXT)], 64)
        hidden = answerer.model(read["input_ids"], read["token_type_ids"])
        ours = answerer.model.logits(hidden)[0]
    assert window.ids == read["input_ids"][0].tolist()
    assert window.first == read["token_type_ids"][0].tolist().index(1)
    torch.testing.assert_close(ours, torch.stack((said.start_logits[0], said.end_logits[0]), dim=-1), atol=1e-5, rtol=0)
    of_text = slice(window.first, len(window.ids) - 1)
    begins, ends = said.start_logits[0, of_text], said.end_logits[0, of_text]
    best = (begins[:, None] + ends[None, :]).triu().masked_fill(torch.ones(len(begins), len(begins)).tril(-1) > 0, -1e9)
    first, last = divmod(int(best.argmax()), len(begins))
    found = answerer(QUESTION, TEXT).candidates[0]
    assert (found.begin, found.end) == (window.passages[first].begin, window.passages[last].end)


@pytest.mark.parametrize(("logit", "answered"), [(9.0, False), (1.0, True)])
def test_where_cls_scores_best_there_is_no_answer(tmp_path, logit, answered):
    tokenizer, question, text = tiny_tokenizer(tmp_path), "Who?", "The cat sat on the mat."
    model = tiny_bert("span")
    tokens = tokenizer.encode(question, text)
    with torch.no_grad():
        hidden = model(torch.tensor([tokens.ids]), torch.tensor([tokens.segments]))[0]
        said = torch.zeros(len(tokens), 2)
        said[0], said[tokens.pieces.index("cat")] = logit, 5.0
        model.label.weight.copy_(torch.linalg.lstsq(hidden, said).solution.T)  # fewer tokens than features: exact
    found = Answerer(model, tokenizer, device="cpu")(question, text, top=3)
    assert len(found.candidates) == 3
    assert found.candidates[0].text == "cat"
    assert (found.answer == found.candidates[0]) == answered
    assert (found.answer is None) == (not answered)
    others = len(tokenizer.encode(text, specials=False)) - 1
    total = torch.tensor(logit).exp() + torch.tensor(5.0).exp() + others
    assert found.no_answer == pytest.approx(float((torch.tensor(logit).exp() / total) ** 2), rel=1e-3)


def test_what_answers_cannot_be_found_in_is_said(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    answerer = Answerer(tiny_bert("span"), tokenizer, device="cpu")
    for one, words in (
        (Question(" ", "a"), "input 1: the question is empty"),
        (Question("a", ""), "the text is empty"),
    ):
        with pytest.raises(InputError, match=words):
            answerer.answer([one])
    with pytest.raises(InputError, match="one answer at least"):
        answerer.answer([], 0)
    with pytest.raises(InputError, match="one token at least, not 0"):
        answerer.answer([], longest=0)
    with pytest.raises(InputError, match=r"has the head 'tagger'.*and 'span' is needed here"):
        Answerer(tiny_bert("tagger"), tokenizer)
    with pytest.raises(InputError, match="no room for a question and a text"):
        Answerer(tiny_bert("span", max_length=4), tokenizer)("a", "a")
    assert answerer.answer([]) == []
    assert answerer.questions_cut([Question("cat", "a"), Question("cat " * 15, "a")]) == [2]
    nothing = answerer("cat", "\x00\x01", top=2)  # of which the tokenizer leaves nothing
    assert (nothing.candidates, nothing.answer, nothing.no_answer) == ((), None, pytest.approx(1.0))


def test_answers_to_many_questions_are_those_to_each_alone(tmp_path):
    answerer = Answerer(tiny_bert("span", max_length=14), tiny_tokenizer(tmp_path), device="cpu")
    asked = [Question("Who?", LONG), Question(QUESTION, "cat"), Question(QUESTION, LONG), Question("a", TEXT)]
    for one, found in zip(asked, answerer.answer(asked, 2, batch_tokens=64), strict=True):
        alone = answerer(one.question, one.text, 2)
        assert [c.text for c in found.candidates] == [c.text for c in alone.candidates]
        assert found.no_answer == pytest.approx(alone.no_answer, rel=1e-4)


@pytest.mark.parametrize("kind", ["char", "word", "bpe:60"])
def test_with_a_vocabulary_of_our_own_an_answer_is_a_part_of_the_text_without_space_around_it(tmp_path: Path, kind):
    text = unicodedata.normalize("NFD", "Ein Café,  là-bas;\n  schön ") + "☃ !"
    vocabulary = Vocabulary.train([unicodedata.normalize("NFC", text)], kind)
    ((_, passages),) = placed(vocabulary, [text])
    for one in passages:
        words = text[one.begin : one.end]
        assert words == words.strip()
        assert not unicodedata.combining(text[one.end : one.end + 1] or "x")
    assert "".join(text[one.begin : one.end] for one in passages) == "".join(text.split())
    model = tiny_bert("span", vocabulary_size=len(vocabulary))
    found = Answerer(saved(model, vocabulary, tmp_path / "model"), device="cpu")("Café?", text, top=4)
    assert all(one.text == one.text.strip() != "" for one in found.candidates)


def test_an_accent_is_not_torn_from_the_last_letter_of_an_answer(tmp_path):
    text = unicodedata.normalize("NFD", "a Cãt, sat")
    decomposed = unicodedata.normalize("NFD", "á")
    (_, passages), (_, (last,)) = placed(tiny_tokenizer(tmp_path), [text, decomposed])
    assert [text[one.begin : one.end] for one in passages] == ["a", unicodedata.normalize("NFD", "Cãt"), ",", "sat"]
    assert last.end == 2
