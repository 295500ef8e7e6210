"""What all pipelines have in common: one input or several, short reprs, HTML for notebooks, named mistakes."""

import inspect
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import qkv
import qkv.attention
from qkv.errors import InputError, KeywordError
from qkv.pipelines.classifier import Classification
from tests.pipelines.every_pipeline import BUILDERS, HOSTILE, Example

VOID = {"img", "br", "rect", "path", "polyline"}
WORDS_OF_A_SENTENCE = ("Tagger", "Parser")  # a tuple is one input for them


@pytest.fixture(params=BUILDERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def example(name: str, tmp_path: Path) -> Example:
    return BUILDERS[name](tmp_path)


def plain(answer):
    """What is compared of an answer: its text or label, or the vector."""
    if isinstance(answer, torch.Tensor):
        return [round(value, 4) for value in answer.tolist()]
    for attribute in ("tags", "filled", "label", "text"):
        if hasattr(answer, attribute):
            return getattr(answer, attribute)
    raise AssertionError(answer)


def test_every_public_pipeline_is_tested():
    pipelines = {name for name in qkv.__all__ if name[0].isupper()}
    assert pipelines == set(BUILDERS)


def test_answers_are_plain_data_with_to_dict(example: Example, name: str):
    if name == "Embedder":
        return
    (fields,) = [answer.to_dict() for answer in example.pipeline([example.source], *example.arguments)]
    assert json.loads(json.dumps(fields)).keys() == fields.keys()
    assert {"text", "filled", "answer", "tree"} & fields.keys()


def test_one_input_gives_one_answer_and_several_give_as_many(example: Example, name: str):
    pipeline, source, arguments = example.pipeline, example.source, example.arguments
    if name == "Generator":  # samples depend on the index of the prompt
        pipeline = partial(pipeline, temperature=0.0)
    one = pipeline(source, *arguments)
    assert not isinstance(one, list)
    if name == "ChatBot":  # answers depend on the conversation so far
        assert [type(reply) for reply in pipeline([source, source])] == [type(one)] * 2
        assert len(pipeline.history) == 6
        return
    for several in ([source, source], (text for text in (source, source)), [source]):
        answers = pipeline(several, *arguments)
        assert isinstance(answers, torch.Tensor if name == "Embedder" else list)
        assert [plain(answer) for answer in answers] == [plain(one)] * len(answers)
    assert len(pipeline([source, source], *arguments)) == 2
    if name not in WORDS_OF_A_SENTENCE:
        assert [plain(answer) for answer in pipeline((source, source), *arguments)] == [plain(one)] * 2


def test_a_wrong_type_is_an_input_error_that_names_it(example: Example):
    with pytest.raises(InputError, match="int"):
        example.pipeline(5, *example.arguments)
    with pytest.raises(InputError, match="float"):
        example.pipeline([example.source, 0.5], *example.arguments)


def test_an_unknown_option_names_the_right_one(example: Example):
    assert issubclass(KeywordError, InputError)
    assert issubclass(KeywordError, TypeError)
    with pytest.raises(KeywordError, match=rf"'{example.misspelled}' \(did you mean {example.option}\?\)"):
        example.pipeline(example.source, *example.arguments, **{example.misspelled: 5})
    with pytest.raises(KeywordError, match=r"did you mean device\?"):
        type(example.pipeline)(example.pipeline.model, devise="cpu")


def test_reprs_are_short_and_have_no_weights(example: Example, name: str):
    answer = example.pipeline(example.source, *example.arguments)
    shown = repr(example.pipeline)
    assert shown.startswith(f"{name}(")
    assert "parameters" in shown
    assert len(shown) < 200
    if name == "Embedder":
        return
    assert len(repr(answer)) < 250
    assert "\n" not in repr(answer)
    assert not any(word in repr(answer) for word in ("array(", "tensor(", "0x"))
    for attention_map in getattr(answer, "attention", ()):
        assert len(repr(attention_map)) < 120


class Page(HTMLParser):
    """The tags and the text of a fragment, whose tags must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: Counter[str] = Counter()
        self.text = ""
        self.feed(html)
        assert not self.open

    @property
    def tags(self) -> set[str]:
        return set(self.count)

    def handle_starttag(self, tag, attributes):
        self.count[tag] += 1
        for key, value in attributes:
            assert not key.startswith("on")
            assert key not in ("src", "href") or value.startswith("data:"), value[:50]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.text += data


def test_answers_draw_themselves_in_a_notebook_with_everything_escaped(example: Example, name: str):
    if name == "Embedder":
        pytest.skip("its answers are tensors")
    answer = example.pipeline(example.source, *example.arguments)
    html = answer._repr_html_()
    page = Page(html)
    assert not page.tags & {"script", "iframe", "i", "link"}
    assert "http" not in html
    assert "url(" not in html
    assert html.count("<style>") == 1
    if name in ("Translator", "Classifier", "QuestionAnswerer"):
        assert HOSTILE.replace(" ", "") in page.text.replace(" ", "")


def test_several_answers_are_a_list_that_draws_itself_as_a_table(example: Example, name: str):
    if name == "Embedder":
        pytest.skip("its answers are tensors")
    answers = example.pipeline([example.source] * 5, *example.arguments)
    assert isinstance(answers, list)
    assert answers == [*answers]
    assert [*answers] == answers
    assert repr(answers) == f"[{answers[0]!r}, {answers[1]!r}, {answers[2]!r}, ... and 2 more]"
    page = Page(answers._repr_html_())
    assert page.tags >= {"table", "th", "td"}
    assert not page.tags & {"script", "iframe", "i", "link"}
    assert all(word in page.text for word in ("input", "output", "score"))
    assert page.count["tr"] == 1 + 5
    if name in ("Translator", "Classifier"):
        assert page.text.replace(" ", "").count(HOSTILE.replace(" ", "")) == 5
    assert repr(example.pipeline([], *example.arguments)) == "[]"


def test_several_sequences_of_one_input_are_drawn_as_several_rows(tmp_path: Path):
    translator = BUILDERS["Translator"](tmp_path).pipeline
    answers = translator("cat", num_beams=3, num_return_sequences=3)
    assert Page(answers._repr_html_()).count["tr"] == 1 + 3
    assert Page(translator(["cat", "dog"], num_beams=2, num_return_sequences=2)._repr_html_()).count["tr"] == 1 + 4


def test_the_signature_of_a_pipeline_takes_and_returns_one_or_several():
    signature = inspect.signature(qkv.Classifier.__call__)
    assert signature.parameters["texts"].annotation == str | Sequence[str]
    assert signature.return_annotation == Classification | list[Classification]


def test_the_choice_of_a_backend_draws_itself():
    explanation = qkv.attention.explain(*torch.randn(3, 2, 4, 5, 8))
    page = Page(explanation._repr_html_())
    assert str(explanation).splitlines()[0] in page.text
    assert page.count["tr"] == 1 + len(explanation.reasons)


def test_a_caption_draws_the_picture_and_a_tile_for_each_word(tmp_path: Path):
    example = BUILDERS["Captioner"](tmp_path)
    caption = example.pipeline(example.source)
    html = caption._repr_html_()
    assert html.count("<img") == 1 + len(caption.attention[0].rows)
    assert "<td" not in html


def test_a_record_draws_its_heads_and_names_its_shape():
    model = BUILDERS["Translator"](Path()).pipeline.model
    with qkv.watch(model) as seen:
        model(torch.tensor([[5, 6, 7, 8]]), torch.tensor([[2, 8]]))
    assert repr(seen) == "AttentionRecording(1 layer(s): decoder [1, 1, 2, 4])"
    assert repr(seen["decoder"]) == "AttentionRecord('decoder', weights [1, 1, 2, 4])"
    assert seen["decoder"].shapes == [tuple(seen["decoder"].weights.shape)]
    for drawn in (seen, seen["decoder"]):
        assert Page(drawn._repr_html_()).tags >= {"img", "figure"}
    with qkv.watch(model) as nothing:
        pass
    assert "nothing recorded" in repr(nothing["decoder"])
    assert "img" not in Page(nothing._repr_html_()).tags


def test_the_output_of_attend_shows_its_shapes():
    output = qkv.attend(*torch.randn(3, 2, 4, 5, 8), need_weights=True)
    assert repr(output) == "AttentionOutput(output [2, 4, 5, 8], weights [2, 4, 5, 5])"
    assert Page(output._repr_html_()).text.count("head") >= 4
    assert "weights" not in repr(qkv.attend(*torch.randn(3, 2, 4, 5, 8)))
