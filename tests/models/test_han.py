"""Hierarchical attention networks: equations, padding, and watched weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.errors import InputError, ShapeError
from qkv.models.han import HAN, HANConfig
from qkv.nn.rnn import BiRNN

VOCABULARY = 11
GOLDEN = 0.92385  # the loss after 20 steps of training on synthetic data
DOCUMENTS = torch.tensor(
    [
        [[4, 5, 6, 0], [7, 0, 0, 0], [8, 9, 10, 4]],
        [[9, 9, 0, 0], [3, 1, 4, 0], [0, 0, 0, 0]],
        [[5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
)
LENGTHS = torch.tensor([3, 2, 1])


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> HAN:
    torch.manual_seed(3)
    model = HAN(
        HANConfig(
            vocab_size=VOCABULARY, **{"embedding_dim": 3, "hidden_dim": 2, "dropout": 0.0, "labels": 3, **changes}
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model.to(dtype).eval()


def gru(rnn: BiRNN, x: list[Tensor]) -> list[Tensor]:
    """h of a bidirectional GRU, step by step."""

    def one_direction(weights: Any, x: list[Tensor]) -> list[Tensor]:
        w, u, b, c = weights.rnn.parameters()
        h, actual = torch.zeros(u.shape[1], dtype=w.dtype), []
        for x_t in x:
            (w_r, w_z, w_n), (u_r, u_z, u_n) = (w @ x_t + b).chunk(3), (u @ h + c).chunk(3)
            r, z = torch.sigmoid(w_r + u_r), torch.sigmoid(w_z + u_z)
            h = (1 - z) * torch.tanh(w_n + r * u_n) + z * h
            actual.append(h)
        return actual

    backward = one_direction(rnn.backward_rnn, x[::-1])[::-1]
    return [torch.cat(both) for both in zip(one_direction(rnn.forward_rnn, x), backward, strict=True)]


def attention_pool(pool: Any, h: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention-pooled states, and the weights."""
    scores = [pool.query @ torch.tanh(pool.key.weight @ item + pool.key.bias) for item in h]
    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
    return sum(weight * state for weight, state in zip(weights, h, strict=True)), weights


def reference_forward(model: HAN, document: list[list[int]]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Logits of one document, its sentence weights, and its word weights."""
    sentences = [
        attention_pool(model.words, gru(model.word_rnn, [model.embed.weight[word] for word in item]))
        for item in document
    ]
    v, weights = attention_pool(model.sentences, gru(model.sentence_rnn, [s for s, _ in sentences]))
    return model.label.weight @ v + model.label.bias, weights, [of_words for _, of_words in sentences]


def test_outputs_gradients_and_watched_weights_match_the_equations():
    model = make_model()
    with qkv.watch(model) as seen:
        actual = model.predict(DOCUMENTS, LENGTHS)
    assert list(seen) == ["words", "sentences"]
    of_words, of_sentences = seen["words"].weights.unflatten(0, (3, 3)), seen["sentences"].weights
    expected = []
    for row, document in enumerate(DOCUMENTS.tolist()):
        trimmed = [[word for word in sentence if word] for sentence in document if any(sentence)]
        logits, sentences, words = reference_forward(model, trimmed)
        expected.append(logits)
        torch.testing.assert_close(of_sentences[row, 0, 0], F.pad(sentences, (0, 3 - len(trimmed))))
        for number, weights in enumerate(words):
            torch.testing.assert_close(of_words[row, number, 0, 0], F.pad(weights, (0, 4 - len(weights))))
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-11)
    direction, parameters = torch.randn(3, 3, dtype=torch.float64), list(model.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((torch.stack(expected) * direction).sum(), parameters),
        strict=True,
    ):
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("pooling", ["attention", "mean", "last"])
def test_gradients_match_finite_differences(pooling):
    model = make_model(pooling=pooling, embedding_dim=2, hidden_dim=1, labels=2)
    names, weights = zip(*model.named_parameters(), strict=True)

    def hidden(*weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), (DOCUMENTS[:2], None, LENGTHS[:2]))

    assert torch.autograd.gradcheck(hidden, weights, fast_mode=True)


@pytest.mark.parametrize("pooling", ["attention", "mean", "last"])
def test_padding_of_words_sentences_and_documents_changes_nothing(pooling):
    model = make_model(pooling=pooling)
    expected = model.predict(DOCUMENTS, LENGTHS)
    wide = F.pad(DOCUMENTS, (0, 3, 0, 2, 0, 1))
    padded = model.predict(wide, torch.tensor([3, 2, 1, 1]))
    torch.testing.assert_close(padded[:3], expected)
    assert padded.isfinite().all()  # also for an empty document
    for row, length in enumerate(LENGTHS.tolist()):
        alone = DOCUMENTS[row : row + 1, :length]
        torch.testing.assert_close(model.logits(model(alone))[0], expected[row])


def test_a_document_may_contain_an_empty_sentence():
    model, gap = make_model(), torch.tensor([[[4, 5], [0, 0], [6, 0], [0, 0]]])
    torch.testing.assert_close(model(gap)[:, :3], model(gap, lengths=torch.tensor([3]))[:, :3])


def test_uniform_attention_is_mean_pooling():
    uniform, mean = make_model(align="uniform"), make_model(pooling="mean")
    mean.load_state_dict(uniform.state_dict(), strict=False)
    torch.testing.assert_close(uniform.predict(DOCUMENTS, LENGTHS), mean.predict(DOCUMENTS, LENGTHS))


def test_mean_pooling_weights_words_and_sentences_equally():
    model = make_model(pooling="mean")
    h = [gru(model.word_rnn, [model.embed.weight[word] for word in item]) for item in ([4, 5, 6], [7])]
    states = gru(model.sentence_rnn, [torch.stack(item).mean(dim=0) for item in h])
    expected = model.label(torch.stack(states).mean(dim=0))
    torch.testing.assert_close(model.predict(DOCUMENTS[:1, :2], torch.tensor([2]))[0], expected)
    with pytest.raises(InputError, match="no attention layer"), qkv.watch(model):
        pass


def test_the_loss_after_20_steps_is_unchanged():
    torch.manual_seed(0)
    model = HAN(
        HANConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=6, dropout=0.2, word_dropout=0.1, labels=3)
    )
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (16, 4, 5), generator=generator)
    targets = tokens[:, 1].max(dim=-1).values % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.predict(tokens, torch.full((16,), 4)), targets)
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(GOLDEN, rel=2e-3)


def test_it_overfits_eight_documents():
    torch.manual_seed(0)
    model = HAN(HANConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=8, dropout=0.0))
    tokens = torch.randint(0, VOCABULARY, (8, 3, 4), generator=torch.Generator().manual_seed(2))
    tokens[:, 0, 0] = 5  # no empty document
    targets = torch.arange(8) % 2
    lengths = torch.full((8,), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model.predict(tokens, lengths), targets).backward()
        optimizer.step()
    assert model.eval().predict(tokens, lengths).argmax(dim=-1).equal(targets)


def test_it_runs_and_learns_in_bfloat16():
    model = make_model(torch.float32).train()
    expected = model.predict(DOCUMENTS, LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model.predict(DOCUMENTS, LENGTHS)
    assert (actual.float() - expected).abs().max() < 0.05
    actual.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_word_dropout_drops_whole_words_in_training_only():
    model = make_model(torch.float32, word_dropout=0.5)
    assert model.predict(DOCUMENTS, LENGTHS).equal(model.predict(DOCUMENTS, LENGTHS))
    layer_inputs = []
    model.word_rnn.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model.train().predict(DOCUMENTS, LENGTHS)
    kept = layer_inputs[0].abs().sum(dim=-1) > 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(layer_inputs[0][kept], 2 * model.embed(DOCUMENTS.flatten(0, 1))[kept], rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"head": "tagger"}, "head = 'tagger'"),
        ({"max_words": 0}, "max_words must be"),
        ({"max_length": 0}, "max_length must be"),
        ({"hidden_dim": 2**25}, "hidden_dim must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"labels": 2, "label_names": ("one",)}, "there are 1 label_names for 2 labels"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        HANConfig(**{"vocab_size": VOCABULARY, **wrong})


@pytest.mark.usefixtures("unchecked")
def test_invalid_inputs_raise():
    model = make_model()
    with pytest.raises(ShapeError, match="sentences, words"):
        model(DOCUMENTS[0])
    with pytest.raises(InputError, match="segments"):
        model(DOCUMENTS, DOCUMENTS[..., 0])
    with pytest.raises(InputError, match="no head"):
        make_model(head=None).predict(DOCUMENTS, LENGTHS)
