"""Hierarchical attention networks: their equations, sentences and documents of different lengths, and what is seen."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.errors import InputError, ShapeError
from qkv.models.han import HAN, Config
from qkv.nn.recurrent import BothWays

VOCABULARY = 11
GOLDEN = 0.92385  # the loss after 20 steps of training on made data
DOCUMENTS = torch.tensor(
    [
        [[4, 5, 6, 0], [7, 0, 0, 0], [8, 9, 10, 4]],
        [[9, 9, 0, 0], [3, 1, 4, 0], [0, 0, 0, 0]],
        [[5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
)
LENGTHS = torch.tensor([3, 2, 1])


def made(dtype: torch.dtype = torch.float64, **changes: Any) -> HAN:
    torch.manual_seed(3)
    model = HAN(Config(VOCABULARY, **{"embedding": 3, "hidden": 2, "dropout": 0.0, "labels": 3, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model.to(dtype).eval()


def gru(reader: BothWays, x: list[Tensor]) -> list[Tensor]:
    """h of a GRU both ways, a step at a time."""

    def one_way(weights: Any, x: list[Tensor]) -> list[Tensor]:
        w, u, b, c = weights.rnn.parameters()
        h, found = torch.zeros(u.shape[1], dtype=w.dtype), []
        for x_t in x:
            (w_r, w_z, w_n), (u_r, u_z, u_n) = (w @ x_t + b).chunk(3), (u @ h + c).chunk(3)
            r, z = torch.sigmoid(w_r + u_r), torch.sigmoid(w_z + u_z)
            h = (1 - z) * torch.tanh(w_n + r * u_n) + z * h
            found.append(h)
        return found

    back = one_way(reader.back, x[::-1])[::-1]
    return [torch.cat(both) for both in zip(one_way(reader.ahead, x), back, strict=True)]


def weighed(pool: Any, h: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The average of states by attention, and the weights."""
    scores = [pool.query @ torch.tanh(pool.key.weight @ one + pool.key.bias) for one in h]
    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
    return sum(weight * one for weight, one in zip(weights, h, strict=True)), weights


def by_the_equations(model: HAN, document: list[list[int]]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The logits of one document, the weights of its sentences, and those of their words."""
    read = [
        weighed(model.words, gru(model.word_reader, [model.embed.weight[word] for word in one])) for one in document
    ]
    v, weights = weighed(model.sentences, gru(model.sentence_reader, [s for s, _ in read]))
    return model.label.weight @ v + model.label.bias, weights, [of_words for _, of_words in read]


def test_it_is_its_equations_and_so_are_its_gradients_and_its_weights_are_seen():
    model = made()
    with qkv.watch(model) as seen:
        found = model.say(DOCUMENTS, LENGTHS)
    assert list(seen) == ["words", "sentences"]
    of_words, of_sentences = seen["words"].weights.unflatten(0, (3, 3)), seen["sentences"].weights
    expected = []
    for row, document in enumerate(DOCUMENTS.tolist()):
        cut = [[word for word in sentence if word] for sentence in document if any(sentence)]
        logits, sentences, words = by_the_equations(model, cut)
        expected.append(logits)
        torch.testing.assert_close(of_sentences[row, 0, 0], F.pad(sentences, (0, 3 - len(cut))))
        for number, weights in enumerate(words):
            torch.testing.assert_close(of_words[row, number, 0, 0], F.pad(weights, (0, 4 - len(weights))))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-11)
    direction, parameters = torch.randn(3, 3, dtype=torch.float64), list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((torch.stack(expected) * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("pooling", ["attention", "mean", "last"])
def test_its_gradients_are_those_of_finite_differences(pooling):
    model = made(pooling=pooling, embedding=2, hidden=1, labels=2)
    names, weights = zip(*model.named_parameters(), strict=True)

    def hidden(*weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), (DOCUMENTS[:2], None, LENGTHS[:2]))

    assert torch.autograd.gradcheck(hidden, weights, fast_mode=True)


@pytest.mark.parametrize("pooling", ["attention", "mean", "last"])
def test_padding_of_words_sentences_and_documents_changes_nothing(pooling):
    model = made(pooling=pooling)
    expected = model.say(DOCUMENTS, LENGTHS)
    wide = F.pad(DOCUMENTS, (0, 3, 0, 2, 0, 1))
    padded = model.say(wide, torch.tensor([3, 2, 1, 1]))
    torch.testing.assert_close(padded[:3], expected)
    assert padded.isfinite().all()  # of a document in which there is nothing, too
    for row, length in enumerate(LENGTHS.tolist()):
        alone = DOCUMENTS[row : row + 1, :length]
        torch.testing.assert_close(model.logits(model(alone))[0], expected[row])


def test_a_document_ends_after_its_last_sentence_also_where_one_before_it_is_empty():
    model, gap = made(), torch.tensor([[[4, 5], [0, 0], [6, 0], [0, 0]]])
    torch.testing.assert_close(model(gap)[:, :3], model(gap, lengths=torch.tensor([3]))[:, :3])


def test_without_attention_every_word_and_sentence_counts_the_same():
    model = made(pooling="mean")
    h = [gru(model.word_reader, [model.embed.weight[word] for word in one]) for one in ([4, 5, 6], [7])]
    states = gru(model.sentence_reader, [torch.stack(one).mean(dim=0) for one in h])
    expected = model.label(torch.stack(states).mean(dim=0))
    torch.testing.assert_close(model.say(DOCUMENTS[:1, :2], torch.tensor([2]))[0], expected)
    with pytest.raises(InputError, match="the model has no attention layer"), qkv.watch(model):
        pass


def test_after_twenty_steps_the_loss_is_what_it_was_when_this_was_written():
    torch.manual_seed(0)
    model = HAN(Config(VOCABULARY, embedding=8, hidden=6, dropout=0.2, word_dropout=0.1, labels=3))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (16, 4, 5), generator=generator)
    targets = tokens[:, 1].max(dim=-1).values % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.say(tokens, torch.full((16,), 4)), targets)
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(GOLDEN, rel=2e-3)


def test_it_learns_eight_documents_by_heart():
    torch.manual_seed(0)
    model = HAN(Config(VOCABULARY, embedding=8, hidden=8, dropout=0.0))
    tokens = torch.randint(0, VOCABULARY, (8, 3, 4), generator=torch.Generator().manual_seed(2))
    tokens[:, 0, 0] = 5  # a document has a word
    targets = torch.arange(8) % 2
    lengths = torch.full((8,), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model.say(tokens, lengths), targets).backward()
        optimizer.step()
    assert model.eval().say(tokens, lengths).argmax(dim=-1).equal(targets)


def test_it_runs_and_learns_in_bfloat16():
    model = made(torch.float32).train()
    expected = model.say(DOCUMENTS, LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.say(DOCUMENTS, LENGTHS)
    assert (found.float() - expected).abs().max() < 0.05
    found.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_words_that_are_dropped_are_dropped_whole_and_in_training_only():
    model = made(torch.float32, word_dropout=0.5)
    assert model.say(DOCUMENTS, LENGTHS).equal(model.say(DOCUMENTS, LENGTHS))
    entered = []
    model.word_reader.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model.train().say(DOCUMENTS, LENGTHS)
    kept = entered[0].abs().sum(dim=-1) > 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(entered[0][kept], 2 * model.embed(DOCUMENTS.flatten(0, 1))[kept], rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"head": "tagger"}, "head 'tagger': a hierarchical attention network says something of whole documents"),
        ({"max_words": 0}, "max_words must lie between 1 and 2"),
        ({"max_length": 0}, "max_length must lie between 1 and 2"),
        ({"hidden": 2**15}, "hidden must lie between 1 and 2"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"labels": 2, "label_names": ("one",)}, "there are 1 label_names for 2 labels"),
        ({"vocabulary_size": 2**24, "embedding": 2**14}, "a matrix is too large"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        Config(**{"vocabulary_size": VOCABULARY, **wrong})


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_document_is_refused_in_words():
    model = made()
    with pytest.raises(
        ShapeError, match=r"a document is \[sentences, words\], so a batch has 3 dimensions, not \[3, 4\]"
    ):
        model(DOCUMENTS[0])
    with pytest.raises(InputError, match="knows no segments"):
        model(DOCUMENTS, DOCUMENTS[..., 0])
    with pytest.raises(InputError, match="no labels to choose from: build it with the head 'classifier'"):
        made(head=None).say(DOCUMENTS, LENGTHS)
