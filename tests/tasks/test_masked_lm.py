"""Masked language modelling task: BERT's input rows, masking, loss and metrics."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.datasets.dataset import Dataset, LabeledTextDataset, TextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.models.bert import Bert, BertConfig
from qkv.tasks.base.masking import IGNORE
from qkv.tasks.masked_lm import MaskedLMTask, TokenizedCorpus
from qkv.tokenizers import CharTokenizer, WordPieceTokenizer
from qkv.tokenizers.sentences import split_sentences
from tests.tasks.settings import prepare

PAD, UNKNOWN, BEGIN, END, MASK = range(5)
SUBJECTS, VERBS = ("cats", "dogs", "horses", "mice", "owls"), ("sleep", "jump", "sing", "wander")
TEXTS = [
    " ".join(f"Some {SUBJECTS[(n + i) % 5]} {VERBS[(n * i) % 4]} in the garden." for i in range(2 + n % 7))
    for n in range(40)
]
TOKENIZER = WordPieceTokenizer.train(TEXTS, vocab_size=60, lowercase=True)
DATA = LabeledTextDataset(
    {"train": [Pair(text, "x") for text in TEXTS], "valid": [Pair(text, "x") for text in TEXTS[:9]]}
)


def prepared(head: str = "pretraining", longest: int = 64, data: Dataset[Any] = DATA, **train: Any) -> MaskedLMTask:
    model = SimpleNamespace(head=head, max_length=longest)
    return prepare(MaskedLMTask, data, TOKENIZER, model, seed=3, **{"batch_size": 8 * 24, "length": 24, **train})


def tiny(head: str) -> Bert:
    torch.manual_seed(0)
    return Bert(
        BertConfig(vocab_size=len(TOKENIZER), head=head, dim=16, heads=2, layers=1, max_length=24, dropout=0.0)
    ).eval()


def unmasked(batch: Any) -> torch.Tensor:
    """The rows before masking."""
    tokens = batch.token_ids.clone()
    for row, (positions, targets) in enumerate(zip(batch.positions, batch.targets, strict=True)):
        for position, target in zip(positions.tolist(), targets.tolist(), strict=True):
            if target != IGNORE:
                tokens[row, position] = target
    return tokens


def batches(task: MaskedLMTask, epoch: int = 0) -> list[Any]:
    return [task.batch(rows) for rows in task.epoch(epoch)]


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_a_row_is_one_or_two_passages_with_special_tokens(head):
    whole = [TOKENIZER.encode(text) for text in TEXTS]
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


def test_without_pairs_an_epoch_has_every_token_once():
    task = prepared("masked_lm")
    counted = Counter(token for batch in batches(task) for token in unmasked(batch).flatten().tolist())
    wanted = Counter(token for text in TEXTS for token in TOKENIZER.encode(text))
    assert {token: count for token, count in counted.items() if token not in (PAD, BEGIN, END)} == dict(wanted)


def test_half_of_the_second_passages_follow_the_first():
    task = prepared(length=64, batch_size=64 * 8)
    documents = [TOKENIZER.encode(text) for text in TEXTS]
    labels = []
    for epoch in range(8):
        for batch in batches(task, epoch):
            for ids, segments, length, label in zip(
                unmasked(batch).tolist(), batch.segments, batch.lengths, batch.next_sentence.tolist(), strict=True
            ):
                boundary = int((segments[:length] == 0).sum())
                first, second = ids[1 : boundary - 1], ids[boundary : length - 1]
                labels.append(label)
                if label == 0 and length < 60:  # nothing was truncated
                    assert any(contains(text, first + second) for text in documents)
    assert set(labels) == {0, 1}
    assert sum(labels) / len(labels) == pytest.approx(0.5, abs=4 * 0.5 / len(labels) ** 0.5)


@pytest.mark.parametrize("whole_words", [False, True])
def test_fifteen_percent_are_masked_80_10_10_but_no_special_tokens(whole_words):
    task = prepared("masked_lm", length=64, batch_size=64 * 16, whole_word_masking=whole_words)
    outcomes, maskable, count = Counter[str](), 0, 0
    for epoch in range(20):
        for batch in batches(task, epoch):
            before = unmasked(batch)
            assert torch.equal(before < 5, (batch.token_ids < 5) & ~((batch.token_ids == MASK) & (before >= 5)))
            maskable += int((before >= 5).sum())
            masked = batch.targets != IGNORE
            assert (batch.targets[masked] >= 5).all()
            assert not masked[:, 0].any()
            count += batch.tokens
            inputs = batch.token_ids.gather(1, batch.positions)[masked]
            outcomes["mask"] += int((inputs == MASK).sum())
            outcomes["same"] += int((inputs == batch.targets[masked]).sum())
    assert count / maskable == pytest.approx(0.15, abs=0.02)  # rounded to whole tokens per row
    others = len(TOKENIZER) - 5
    for name, share in (("mask", 0.8), ("same", 0.1 + 0.1 / others)):  # a random token may be the original
        assert outcomes[name] / count == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5)


def test_whole_word_masking_masks_all_pieces_of_a_word_or_none():
    task = prepared("masked_lm", length=64, batch_size=64 * 16, whole_word_masking=True)
    several = 0
    for batch in batches(task):
        before = unmasked(batch)
        for row, positions in enumerate(batch.positions):
            chosen = set(positions[batch.targets[row] != IGNORE].tolist())
            for position in range(1, int(batch.lengths[row]) - 1):
                if (
                    TOKENIZER.id_to_token(int(before[row, position])).startswith("##")
                    and int(before[row, position - 1]) != BEGIN
                ):
                    assert (position in chosen) == (position - 1 in chosen)
                    several += position in chosen
    assert several > 10


def test_batches_depend_only_on_seed_epoch_and_rows():
    first, same, different = prepared(), prepared(), prepared()
    different.seed = 4
    rows = first.epoch(2)
    assert same.epoch(1) is not None
    assert same.epoch(2) == rows
    different.epoch(2)
    last = first.batch(rows[-1])
    first.batch(rows[0])
    assert torch.equal(last.token_ids, same.batch(rows[-1]).token_ids)
    assert torch.equal(last.positions, first.batch(rows[-1]).positions)
    assert not torch.equal(first.batch(rows[0]).token_ids, different.batch(rows[0]).token_ids)
    first.epoch(3)
    assert not torch.equal(first.batch(rows[0]).token_ids, same.batch(rows[0]).token_ids)


@pytest.mark.parametrize("head", ["pretraining", "masked_lm"])
def test_loss_is_the_sum_of_masked_lm_and_next_sentence_loss(head):
    task, model = prepared(head), tiny(head)
    for batch in batches(task)[-2:]:
        token_losses, next_losses = [], []
        for row in range(len(batch.lengths)):
            length = int(batch.lengths[row])
            hidden = model(batch.token_ids[row : row + 1, :length], batch.segments[row : row + 1, :length])
            words = model.mlm_logits(hidden)[0].log_softmax(dim=-1)
            token_losses += [
                -words[p, t] for p, t in zip(batch.positions[row], batch.targets[row], strict=True) if t != IGNORE
            ]
            if head == "pretraining":
                next_losses.append(
                    F.cross_entropy(model.label(model.pooled(hidden)), batch.next_sentence[row : row + 1])
                )
        expected = torch.stack(token_losses).mean() + (torch.stack(next_losses).mean() if next_losses else 0.0)
        assert batch.tokens == len(token_losses)
        torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-5, atol=1e-5)


def test_a_padded_batch_has_one_shape_and_the_same_loss():
    task, model = prepared(), tiny("pretraining")
    rows = [task.epoch(0)[0], task.epoch(0)[0][:3]]
    assert [len(chosen) for chosen in rows] == [8, 3]
    for chosen in rows:
        plain, padded = task.batch(chosen), task.batch(chosen, padded_to_shape=True)
        assert padded.token_ids.shape == padded.segments.shape == (8, 24)
        assert padded.positions.shape == padded.targets.shape == (8, 1 + math.ceil(0.15 * 22))
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
        assert padded.tokens == plain.tokens


def test_scores_do_not_depend_on_seed_epoch_or_batch_size():
    model = tiny("pretraining")
    first, second = prepared(), prepared(batch_size=24 * 3)
    second.seed = 9
    second.epoch(5)
    scores, again = first.validate(model), second.validate(model)
    assert scores.keys() == first.metrics.keys()
    assert again == pytest.approx(scores)
    assert first.evaluate(model, DATA, "valid").scores == pytest.approx(scores)
    evaluation = first.evaluate(model, DATA, "valid")
    assert (evaluation.size, evaluation.unit) == (9, "documents")
    assert math.log(scores["perplexity"]) < scores["loss"]
    alone = prepared("masked_lm").validate(tiny("masked_lm"))
    assert math.log(alone["perplexity"]) == pytest.approx(alone["loss"])
    assert "next_sentence" not in alone


def test_blank_lines_separate_documents_and_sentences_are_tokenized_alone():
    data = TextDataset({"train": "Cats sleep. Dogs sing!\n\n \nMice jump\nand wander.\n", "valid": "Owls."})
    assert data.documents("train") == ["Cats sleep. Dogs sing!", "Mice jump\nand wander.\n"]
    corpus = TokenizedCorpus.from_texts(["\x00. .", *data.documents("train"), "\x01"], TOKENIZER)
    sentences = [s for text in ["\x00. .", *data.documents("train")] for s in split_sentences(text)]
    assert corpus.tokens.tolist() == [i for s in sentences for i in TOKENIZER.encode(s)]
    assert [len(document) - 1 for document in corpus.documents] == [len(split_sentences("\x00. .")), 2, 1]
    assert MaskedLMTask.splits(data) == ["train", "valid"]
    assert prepared("masked_lm", data=data).describe() == f"2 documents, {len(corpus.tokens) - 2} tokens"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 4}, r"task\.length = 4"),
        ({"length": 65, "batch_size": 65}, r"task\.length = 65"),
        ({"length": 48, "batch_size": 47}, r"train\.batch_size = 47"),
        ({"head": "masked_lm", "best_by": "next_sentence"}, "best_by next_sentence"),
        ({"valid_size": 1}, "valid: sentence pairs"),
        ({"data": LabeledTextDataset({"train": [Pair(" ", "x")], "valid": []})}, "train: there are no non-empty"),
        ({"data": LabeledTextDataset({"train": [Pair("a", "x")] * 9, "valid": []})}, "train: sentence pairs"),
    ],
)  # fmt: skip
def test_invalid_settings_and_data_are_errors(change, words):
    with pytest.raises(InputError, match=words):
        prepared(**change)


def test_a_tokenizer_without_a_mask_is_an_error():
    with pytest.raises(InputError, match=r"\[MASK\]"):
        prepare(MaskedLMTask, DATA, CharTokenizer.train(TEXTS), BertConfig(vocab_size=9, head="masked_lm"))


def test_shares_of_masking_must_not_exceed_one():
    with pytest.raises(InputError, match="random_share"):
        prepared("masked_lm", length=64, batch_size=64 * 16, mask_share=0.8, random_share=0.3)


def test_the_rule_of_masking_is_an_option():
    task = prepared("masked_lm", length=64, batch_size=64 * 16, mask_share=1.0, random_share=0.0)
    for batch in batches(task, 0):
        masked = batch.targets != IGNORE
        assert (batch.token_ids.gather(1, batch.positions)[masked] == MASK).all()
