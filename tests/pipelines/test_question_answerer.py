"""The answerer: the most probable span, against transformers and against exhaustive search."""

import unicodedata
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.datasets.examples.squad import Passage, Question
from qkv.errors import InputError
from qkv.pipelines.inputs.text_inputs import ExampleEncoder
from qkv.pipelines.inputs.windows import make_windows, tokenize_with_offsets
from qkv.pipelines.question_answerer import QuestionAnswerer
from qkv.tokenizers import BPETokenizer, CharTokenizer, WordTokenizer
from tests.tasks.tiny_bert import WORD_LIST, saved, tiny_bert, tiny_tokenizer

QUESTION = "The cat sat on?"
TEXT = "Ada plays  in Paris, the good cat sat on a mat. A bad dog lives in the film!"
LONG = " ".join(f"{TEXT} The {word} played." for word in ("dog", "mat"))


def every_passage(model: Any, tokenizer: Any, question: str, text: str, most: int, longest: int, stride: int | None):
    """All spans with their probabilities by exhaustive search, best first, and the probability of no answer."""
    question_ids = tokenizer.encode(question)[: (longest - 3) // 2]
    (encoded,) = tokenizer.encode_with_offsets([text])
    width = longest - 3 - len(question_ids)
    best: dict[Passage, float] = {}
    no_answer = []
    start = 0
    while True:
        ids, offsets = encoded.ids[start : start + width], encoded.offsets[start : start + width]
        row = [2, *question_ids, 3, *ids, 3]
        segments = [0] * (2 + len(question_ids)) + [1] * (1 + len(ids))
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([row]), torch.tensor([segments])))[0].double()
        candidates = [0, *range(2 + len(question_ids), 2 + len(question_ids) + len(ids))]
        begins, ends = logits[candidates].softmax(dim=0).T.tolist()
        no_answer.append(begins[0] * ends[0])
        for first, last in product(range(len(ids)), repeat=2):
            if first <= last < first + most:
                passage = Passage(offsets[first][0], offsets[last][1])
                best[passage] = max(begins[1 + first] * ends[1 + last], best.get(passage, 0.0))
        if start + width >= len(encoded.ids):
            return sorted(best.items(), key=lambda item: -item[1]), min(no_answer)
        start += stride or width // 2


@pytest.mark.parametrize(
    ("text", "longest", "stride", "batch_size", "most"),
    [
        (TEXT, 32, None, None, 30),
        (TEXT, 12, None, None, 4),
        (LONG, 16, 5, 3, 1),
        (LONG, 32, None, 2, 30),
        ("cat", 9, None, 1, 4),
    ],
)
def test_the_answer_is_the_best_span_of_all_windows(tmp_path, text, longest, stride, batch_size, most):
    tokenizer = tiny_tokenizer(tmp_path)
    answerer = QuestionAnswerer(
        saved(tiny_bert("span", max_length=longest), tokenizer, tmp_path / "model"), device="cpu"
    )
    answered = answerer(QUESTION, text, top_k=5, max_answer_tokens=most, stride=stride, batch_size=batch_size)
    expected, no_answer = every_passage(answerer.model, tokenizer, QUESTION, text, most, longest, stride)
    assert [candidate.probability for candidate in answered.candidates] == pytest.approx(
        [p for _, p in expected[:5]], rel=1e-4
    )
    for candidate, (passage, _) in zip(answered.candidates, expected, strict=False):
        assert (candidate.start, candidate.end) == (passage.begin, passage.end)
        assert candidate.text == text[candidate.start : candidate.end]
    assert answered.no_answer == pytest.approx(no_answer, rel=1e-4)
    assert answered.span == (answered.candidates[0] if expected[0][1] >= no_answer else None)


def test_logits_and_answer_equal_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(WORD_LIST), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.BertForQuestionAnswering(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    theirs.save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)  # writes vocab.txt
    answerer = QuestionAnswerer(tmp_path, device="cpu")
    inputs = transformers.BertTokenizerFast.from_pretrained(tmp_path)(QUESTION, TEXT, return_tensors="pt")
    with torch.no_grad():
        outputs = theirs(**inputs)
        (window,) = make_windows(ExampleEncoder(answerer.tokenizer), [Question(QUESTION, TEXT)], 64)
        hidden = answerer.model(inputs["input_ids"], inputs["token_type_ids"])
        ours = answerer.model.logits(hidden)[0]
    assert window.ids == inputs["input_ids"][0].tolist()
    assert window.first == inputs["token_type_ids"][0].tolist().index(1)
    torch.testing.assert_close(
        ours, torch.stack((outputs.start_logits[0], outputs.end_logits[0]), dim=-1), atol=1e-5, rtol=0
    )
    text_slice = slice(window.first, len(window.ids) - 1)
    begins, ends = outputs.start_logits[0, text_slice], outputs.end_logits[0, text_slice]
    best = (begins[:, None] + ends[None, :]).triu().masked_fill(torch.ones(len(begins), len(begins)).tril(-1) > 0, -1e9)
    first, last = divmod(int(best.argmax()), len(begins))
    candidate = answerer(QUESTION, TEXT).candidates[0]
    assert (candidate.start, candidate.end) == (window.passages[first].begin, window.passages[last].end)


@pytest.mark.parametrize(("logit", "answered"), [(9.0, False), (1.0, True)])
def test_no_answer_if_cls_scores_best(tmp_path, logit, answered):
    tokenizer, question, text = tiny_tokenizer(tmp_path), "Who?", "The cat sat on the mat."
    model = tiny_bert("span")
    (window,) = make_windows(ExampleEncoder(tokenizer), [Question(question, text)], 32)
    with torch.no_grad():
        segments = [int(position >= window.first) for position in range(len(window.ids))]
        hidden = model(torch.tensor([window.ids]), torch.tensor([segments]))[0]
        logits = torch.zeros(len(window.ids), 2)
        logits[0], logits[window.ids.index(WORD_LIST.index("cat"))] = logit, 5.0
        model.label.weight.copy_(
            torch.linalg.lstsq(hidden, logits).solution.T
        )  # exact, as there are fewer tokens than features
    result = QuestionAnswerer(model, tokenizer, device="cpu")(question, text, top_k=3)
    assert len(result.candidates) == 3
    assert result.candidates[0].text == "cat"
    assert (result.span == result.candidates[0]) == answered
    assert (result.text, result.score) == (
        ("cat", result.candidates[0].probability) if answered else ("", result.no_answer)
    )
    others = len(tokenizer.encode(text)) - 1
    total = torch.tensor(logit).exp() + torch.tensor(5.0).exp() + others
    assert result.no_answer == pytest.approx(float((torch.tensor(logit).exp() / total) ** 2), rel=1e-3)


def test_invalid_inputs_and_models_are_errors(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    answerer = QuestionAnswerer(tiny_bert("span"), tokenizer, device="cpu")
    with pytest.raises(InputError, match="input 1: the question is empty"):
        answerer(" ", "a")
    with pytest.raises(InputError, match="input 2: the context is empty"):
        answerer(["a", "a"], ["a", ""])
    with pytest.raises(InputError, match="pass one each"):
        answerer(["a", "a"], ["a"])
    for option in ("top_k", "max_answer_tokens", "stride", "batch_size"):
        with pytest.raises(InputError, match=option):
            answerer(["a"], "a", **{option: 0})
    with pytest.raises(InputError, match="question answering requires a model with the head span"):
        QuestionAnswerer(tiny_bert("tagger"), tokenizer)
    with pytest.raises(InputError, match="too short"):
        QuestionAnswerer(tiny_bert("span", max_length=4), tokenizer)("a", "a")
    assert answerer([], []) == []
    assert answerer.truncated_questions(["cat", "cat " * 15]) == [2]
    empty = answerer("cat", "\x00\x01", top_k=2)  # encodes to no tokens
    assert (empty.candidates, empty.span, empty.no_answer) == ((), None, pytest.approx(1.0))


def test_answers_do_not_depend_on_the_batch(tmp_path):
    answerer = QuestionAnswerer(tiny_bert("span", max_length=14), tiny_tokenizer(tmp_path), device="cpu")
    questions, contexts = ["Who?", QUESTION, QUESTION, "a"], [LONG, "cat", LONG, TEXT]
    answers = answerer(questions, contexts, top_k=2, batch_size=3)
    for question, context, answered in zip(questions, contexts, answers, strict=True):
        alone = answerer(question, context, top_k=2)
        assert (answered.question, answered.context) == (question, context)
        assert [c.text for c in answered.candidates] == [c.text for c in alone.candidates]
        assert answered.no_answer == pytest.approx(alone.no_answer, rel=1e-4)
    for one, each in zip(answerer(questions, LONG), answerer(questions, [LONG] * 4), strict=True):
        assert one.no_answer == pytest.approx(each.no_answer, rel=1e-4)


@pytest.mark.parametrize(
    "train", [CharTokenizer.train, WordTokenizer.train, partial(BPETokenizer.train, vocab_size=60)]
)
def test_spans_of_a_trained_tokenizer_have_no_surrounding_whitespace(tmp_path: Path, train):
    text = unicodedata.normalize("NFD", "Ein Café,  là-bas;\n  schön ") + "☃ !"
    tokenizer = train([unicodedata.normalize("NFC", text)])
    ((_, passages),) = tokenize_with_offsets(tokenizer, [text])
    for passage in passages:
        words = text[passage.begin : passage.end]
        assert words == words.strip()
        assert not unicodedata.combining(text[passage.end : passage.end + 1] or "x")
    assert "".join(text[passage.begin : passage.end] for passage in passages) == "".join(text.split())
    model = tiny_bert("span", vocab_size=len(tokenizer))
    answered = QuestionAnswerer(saved(model, tokenizer, tmp_path / "model"), device="cpu")("Café?", text, top_k=4)
    assert all(passage.text == passage.text.strip() != "" for passage in answered.candidates)


def test_a_span_includes_combining_characters_at_its_end(tmp_path):
    text = unicodedata.normalize("NFD", "a Cãt, sat")
    decomposed = unicodedata.normalize("NFD", "á")
    (_, passages), (_, (last,)) = tokenize_with_offsets(tiny_tokenizer(tmp_path), [text, decomposed])
    assert [text[passage.begin : passage.end] for passage in passages] == [
        "a",
        unicodedata.normalize("NFD", "Cãt"),
        ",",
        "sat",
    ]
    assert last.end == 2
