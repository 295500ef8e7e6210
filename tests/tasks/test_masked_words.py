"""Masked words: rows as BERT reads them, masked by its shares, the loss at the masked places, and what is kept."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.data.pair import Pair
from qkv.data.registry import Loaded
from qkv.data.sentences import split_sentences
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from qkv.errors import InputError
from qkv.models.bert import Bert, Config
from qkv.objectives.masking import IGNORE
from qkv.tasks.masked_words import Library, MaskedWordsTask
from qkv.training.recipe import TrainConfig

PAD, UNKNOWN, BEGIN, END, MASK = range(5)
SUBJECTS, VERBS = ("cats", "dogs", "horses", "mice", "owls"), ("sleep", "jump", "sing", "wander")
TEXTS = [
    " ".join(f"Some {SUBJECTS[(n + i) % 5]} {VERBS[(n * i) % 4]} in the garden." for i in range(2 + n % 7))
    for n in range(40)
]
TOKENIZER = learn_wordpieces(TEXTS, 60, lowercase=True)
DATA = Loaded({"train": [Pair(text, "x") for text in TEXTS], "valid": [Pair(text, "x") for text in TEXTS[:9]]})


def prepared(head: str = "pretraining", longest: int = 64, data: Loaded = DATA, **train: Any) -> MaskedWordsTask:
    settings = TrainConfig(**{"batch_tokens": 8 * 24, "length": 24, **train})
    model = SimpleNamespace(head=head, max_length=longest)
    return MaskedWordsTask.prepare(data, TOKENIZER, model, settings, 3)


def tiny(head: str) -> Bert:
    torch.manual_seed(0)
    return Bert(Config(len(TOKENIZER), head, dim=16, heads=2, layers=1, max_length=24, dropout=0.0)).eval()


def unmasked(batch: Any) -> torch.Tensor:
    """The rows as they were before words were masked."""
    tokens = batch.tokens_read.clone()
    for row, (places, targets) in enumerate(zip(batch.places, batch.targets, strict=True)):
        for place, target in zip(places.tolist(), targets.tolist(), strict=True):
            if target != IGNORE:
                tokens[row, place] = target
    return tokens


def batches(task: MaskedWordsTask, epoch: int = 0) -> list[Any]:
    return [task.batch(rows) for rows in task.epoch(epoch)]


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_a_row_is_one_passage_or_two_of_documents_between_their_edges(head):
    whole = [TOKENIZER.encode(text, specials=False).ids for text in TEXTS]
    task = prepared(head)
    for batch in batches(task):
        for ids, segments, length in zip(unmasked(batch).tolist(), batch.segments.tolist(), batch.lengths, strict=True):
            body, rest = ids[:length], ids[length:]
            assert rest == [PAD] * (24 - length)
            assert (body[0], body[-1]) == (BEGIN, END)
            parts = " ".join(map(str, body[1:-1])).split(f" {END} ")
            passages = [[int(token) for token in part.split()] for part in parts]
            assert len(passages) == (2 if head == "pretraining" else 1)
            assert all(any(contains(text, passage) for text in whole) for passage in passages)
            assert segments == [0] * (len(passages[0]) + 2) + [1] * sum(len(p) + 1 for p in passages[1:]) + [0] * len(
                rest
            )


def test_without_pairs_an_epoch_reads_every_token_of_every_document_once():
    task = prepared("masked_lm")
    counted = Counter(token for batch in batches(task) for token in unmasked(batch).flatten().tolist())
    wanted = Counter(token for text in TEXTS for token in TOKENIZER.encode(text, specials=False).ids)
    assert {token: count for token, count in counted.items() if token not in (PAD, BEGIN, END)} == dict(wanted)


def test_a_second_passage_that_follows_comes_next_in_its_document_and_half_of_them_do():
    task = prepared(length=64, batch_tokens=64 * 8)
    whole = [TOKENIZER.encode(text, specials=False).ids for text in TEXTS]
    seen = []
    for epoch in range(8):
        for batch in batches(task, epoch):
            for ids, segments, length, follows in zip(
                unmasked(batch).tolist(), batch.segments, batch.lengths, batch.follows.tolist(), strict=True
            ):
                cut = int((segments[:length] == 0).sum())
                first, second = ids[1 : cut - 1], ids[cut : length - 1]
                seen.append(follows)
                if follows == 0 and length < 60:  # nothing was cut off
                    assert any(contains(text, first + second) for text in whole)
    assert set(seen) == {0, 1}
    assert sum(seen) / len(seen) == pytest.approx(0.5, abs=4 * 0.5 / len(seen) ** 0.5)


@pytest.mark.parametrize("whole_words", [False, True])
def test_fifteen_percent_are_guessed_eighty_ten_and_ten_and_special_tokens_never(whole_words):
    task = prepared("masked_lm", length=64, batch_tokens=64 * 16, whole_words=whole_words)
    fates, maskable, asked = Counter[str](), 0, 0
    for epoch in range(20):
        for batch in batches(task, epoch):
            before = unmasked(batch)
            assert torch.equal(before < 5, (batch.tokens_read < 5) & ~((batch.tokens_read == MASK) & (before >= 5)))
            maskable += int((before >= 5).sum())
            guessed = batch.targets != IGNORE
            assert (batch.targets[guessed] >= 5).all()
            assert not guessed[:, 0].any()
            asked += batch.tokens
            read = batch.tokens_read.gather(1, batch.places)[guessed]
            fates["mask"] += int((read == MASK).sum())
            fates["same"] += int((read == batch.targets[guessed]).sum())
    assert asked / maskable == pytest.approx(0.15, abs=0.02)  # of each row a whole number of tokens
    others = len(TOKENIZER) - 5
    for name, share in (("mask", 0.8), ("same", 0.1 + 0.1 / others)):  # a stranger may be the token itself
        assert fates[name] / asked == pytest.approx(share, abs=4 * (share * (1 - share) / asked) ** 0.5)


def test_with_whole_words_every_piece_of_a_word_is_guessed_or_none():
    task = prepared("masked_lm", length=64, batch_tokens=64 * 16, whole_words=True)
    several = 0
    for batch in batches(task):
        before = unmasked(batch)
        for row, places in enumerate(batch.places):
            chosen = set(places[batch.targets[row] != IGNORE].tolist())
            for place in range(1, int(batch.lengths[row]) - 1):
                if TOKENIZER.name(int(before[row, place])).startswith("##") and int(before[row, place - 1]) != BEGIN:
                    assert (place in chosen) == (place - 1 in chosen)
                    several += place in chosen
    assert several > 10


def test_the_seed_the_epoch_and_the_batch_decide_alone():
    one, other, another = prepared(), prepared(), prepared()
    another.seed = 4
    rows = one.epoch(2)
    assert other.epoch(1) is not None
    assert other.epoch(2) == rows
    another.epoch(2)
    last = one.batch(rows[-1])
    one.batch(rows[0])
    assert torch.equal(last.tokens_read, other.batch(rows[-1]).tokens_read)
    assert torch.equal(last.places, one.batch(rows[-1]).places)
    assert not torch.equal(one.batch(rows[0]).tokens_read, another.batch(rows[0]).tokens_read)
    one.epoch(3)
    assert not torch.equal(one.batch(rows[0]).tokens_read, other.batch(rows[0]).tokens_read)


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_the_loss_is_the_mean_over_masked_words_and_that_of_what_follows(head):
    task, model = prepared(head), tiny(head)
    for batch in batches(task)[-2:]:
        each, said = [], []
        for row in range(len(batch.lengths)):
            length = int(batch.lengths[row])
            hidden = model(batch.tokens_read[row : row + 1, :length], batch.segments[row : row + 1, :length])
            words = model.mlm_logits(hidden)[0].log_softmax(dim=-1)
            each += [-words[p, t] for p, t in zip(batch.places[row], batch.targets[row], strict=True) if t != IGNORE]
            if head == "pretraining":
                said.append(F.cross_entropy(model.label(model.pooled(hidden)), batch.follows[row : row + 1]))
        wanted = torch.stack(each).mean() + (torch.stack(said).mean() if said else 0.0)
        assert batch.tokens == len(each)
        torch.testing.assert_close(task.loss(model, batch), wanted, rtol=1e-5, atol=1e-5)


def test_a_batch_that_is_filled_up_has_the_one_shape_and_the_same_loss():
    task, model = prepared(), tiny("pretraining")
    rows = [task.epoch(0)[0], task.epoch(0)[0][:3]]
    assert [len(some) for some in rows] == [8, 3]
    for some in rows:
        plain, filled = task.batch(some), task.batch(some, filled=True)
        assert filled.tokens_read.shape == filled.segments.shape == (8, 24)
        assert filled.places.shape == filled.targets.shape == (8, 1 + math.ceil(0.15 * 22))
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))
        assert filled.tokens == plain.tokens


def test_scores_do_not_depend_on_the_seed_the_epoch_or_the_size_of_a_batch():
    model = tiny("pretraining")
    first, second = prepared(), prepared(batch_tokens=24 * 3)
    second.seed = 9
    second.epoch(5)
    found, again = first.validate(model), second.validate(model)
    assert found.keys() == first.metrics.keys()
    assert again == pytest.approx(found)
    assert first.examine(model, DATA, "valid").scores == pytest.approx(found)
    assert first.examine(model, DATA, "valid")[:2] == (9, "documents")
    assert math.log(found["perplexity"]) < found["loss"]
    alone = prepared("masked_lm").validate(tiny("masked_lm"))
    assert math.log(alone["perplexity"]) == pytest.approx(alone["loss"])
    assert "next_sentence" not in alone


def test_a_running_text_is_documents_between_blank_lines_and_its_sentences_are_encoded_one_by_one():
    data = Loaded({}, texts={"train": "Cats sleep. Dogs sing!\n\n \nMice jump\nand wander.\n", "valid": "Owls."})
    assert data.documents("train") == ["Cats sleep. Dogs sing!", "Mice jump\nand wander.\n"]
    library = Library.of(["\x00. .", *data.documents("train"), "\x01"], TOKENIZER)
    sentences = [s for text in ["\x00. .", *data.documents("train")] for s in split_sentences(text)]
    assert library.tokens.tolist() == [i for s in sentences for i in TOKENIZER.encode(s, specials=False).ids]
    assert [len(document) - 1 for document in library.documents] == [len(split_sentences("\x00. .")), 2, 1]
    assert MaskedWordsTask.splits(data) == ["train", "valid"]
    assert prepared("masked_lm", data=data).describe() == f"2 documents, {len(library.tokens) - 2} tokens"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 4}, r"train\.length = 4 must lie between 5 and both model\.max_length = 64"),
        ({"length": 65, "batch_tokens": 65}, r"train\.length = 65 must lie between 5 and both"),
        ({"length": 48, "batch_tokens": 47}, r"train\.batch_tokens = 47"),
        ({"head": "masked_lm", "best_by": "next_sentence"}, "best_by next_sentence is for model.head = pretraining"),
        ({"valid_size": 1}, "valid: pairs of passages need two documents"),
        ({"data": Loaded({"train": [Pair(" ", "x")], "valid": []})}, "train: there is no document with text in it"),
        ({"data": Loaded({"train": [Pair("a", "x")] * 9, "valid": []})}, "train: pairs of passages need two documents"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused_in_words(change, words):
    with pytest.raises(InputError, match=words):
        prepared(**change)


def test_a_tokenizer_without_a_mask_is_refused_in_words():
    with pytest.raises(InputError, match=r"a tokenizer with \[MASK\], \[CLS\] and \[SEP\]: data\.vocabulary=wordpiece"):
        MaskedWordsTask.prepare(DATA, Vocabulary.train(TEXTS, "char"), Config(9, "masked_lm"), TrainConfig(), 0)
