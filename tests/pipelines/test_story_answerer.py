"""Answers of a memory network, and the attention of its hops."""

import pytest
import torch

from qkv.errors import InputError
from qkv.pipelines.story_answerer import StoryAnswerer
from tests.tasks.stories import memory_network
from tests.tasks.tiny_bert import tiny_bert

STORY = "Mary went to the garden. John went to the hall.\nMary went to the office"


def test_the_answer_is_the_most_likely_label_with_the_weights_of_each_hop():
    model = memory_network()
    answer = StoryAnswerer(model)("Where is Mary?", STORY)
    tokens = model.tokenizer.encode(["Mary went to the garden", "John went to the hall", "Mary went to the office"])
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), torch.tensor(model.tokenizer.encode(["Where is Mary"])))
    assert answer.text == model.labels[int(logits.argmax())]
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert answer.score == pytest.approx(float(logits.log_softmax(dim=-1).max()))
    (hops,) = answer.attention
    assert hops.rows == ("hop 1", "hop 2", "hop 3")
    assert hops.columns == answer.sentences
    assert len(answer.sentences) == 3
    assert hops.average.sum(axis=1) == pytest.approx([1.0] * 3)


def test_final_punctuation_and_other_questions_do_not_matter():
    answerer = StoryAnswerer(memory_network())
    first, second = answerer(["Where is Mary?", "Where is John"], [STORY, "John went to the hall"])
    assert first.probabilities == answerer("Where is Mary", STORY).probabilities
    assert second.probabilities == answerer("Where is John?", "John went to the hall.").probabilities
    assert second.question == "Where is John"


def test_only_the_latest_sentences_are_kept():
    answer = StoryAnswerer(memory_network(max_memories=2))("Where is Mary?", STORY)
    assert answer.sentences == ("John went to the hall.", "Mary went to the office")


def test_unknown_words_are_listed():
    assert StoryAnswerer(memory_network())("Where is Zoe?", STORY).unknown[0] == "Zoe"


@pytest.mark.parametrize(
    ("questions", "story"), [(" ", STORY), ("Where is Mary?", " \n"), (["Where?", "Who?"], ["Mary left."])]
)
def test_empty_inputs_are_rejected(questions, story):
    with pytest.raises(InputError):
        StoryAnswerer(memory_network())(questions, story)


def test_another_kind_of_model_is_rejected():
    with pytest.raises(InputError, match="MemoryNetwork"):
        StoryAnswerer(tiny_bert("span"))
