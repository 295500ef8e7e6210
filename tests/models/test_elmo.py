"""ELMo: the equations, word by word and number by number; both directions, states, the mix of layers, the heads."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.config import build
from qkv.data.characters import CHARACTERS, Characters
from qkv.data.pair import Pair
from qkv.data.registry import DataConfig, LoadedData
from qkv.data.tagged import Tagged
from qkv.errors import InputError, ShapeError
from qkv.interop import load, save_model
from qkv.models.elmo import HEADS, LABELLED, PRESETS, Config, Elmo
from qkv.nn.layer_mix import Mix
from qkv.nn.state import select
from qkv.tasks.classification import ClassificationTask
from qkv.tasks.tagging import TaggingTask
from qkv.tasks.two_way_language_model import TwoWayLanguageModelTask
from qkv.training.recipe import TrainConfig

SIZES: dict[str, Any] = {
    "max_characters": 7, "character_dim": 3, "filters": ((1, 2), (3, 4)), "highway_layers": 2,
    "dim": 4, "hidden": 5, "layers": 3, "cell_clip": 0.6, "projection_clip": 0.4, "dropout": 0.0,
}  # fmt: skip
EIGHT = [
    ("the", "cat", "sat"), ("a", "dog", "ran"), ("one", "cat", "slept"), ("no", "bird", "sang"),
    ("any", "dog", "saw"), ("some", "bird", "ate"), ("my", "cat", "hid"), ("her", "bird", "flew"),
]  # fmt: skip
GOLDEN = {"language_model": 2.61582, "tagger": 0.85838, "classifier": 0.27484}  # losses after 20 steps
SENTENCES = [["the", "cat", "sat", "on"], ["schön"], [], ["a", "b"]]


def made(**changes: Any) -> Elmo:
    torch.manual_seed(3)
    model = Elmo(Config(**{**SIZES, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.9, 0.9)
        model.words.embed.weight[0] = 0.0
    return model


def characters(sentences: list[list[str]] = SENTENCES) -> Tensor:
    return Characters(SIZES["max_characters"])(sentences)


def word_by_hand(model: Elmo, word: Tensor) -> Tensor:
    """x of one word, by loops over places and features."""
    words = model.words
    embedded = [words.embed.weight[number] for number in word]
    found = []
    for convolution in words.convolutions:
        width = convolution.weight.shape[2]
        for kernel, bias in zip(convolution.weight, convolution.bias, strict=True):
            sums = [
                bias + sum(kernel[:, offset] @ embedded[place + offset] for offset in range(width))
                for place in range(len(embedded) - width + 1)
            ]
            found.append(getattr(torch, model.config.activation)(torch.stack(sums)).max())
    u = torch.stack(found)
    if model.config.normalise_words:
        u = (u - u.mean()) / (u.var(correction=0) + 1e-5).sqrt()
    for highway in words.highways:
        gate = torch.sigmoid(highway.gate.weight @ u + highway.gate.bias)
        u = gate * torch.relu(highway.transform.weight @ u + highway.transform.bias) + (1 - gate) * u
    return words.project.weight @ u + words.project.bias


def clipped(x: Tensor, limit: float | None) -> Tensor:
    if limit is None:
        return x
    bound = torch.full_like(x, limit)
    return torch.where(x.abs() > bound, bound * x.sign(), x)


def lstm_by_hand(model: Elmo, layer: int, direction: int, inputs: list[Tensor], h: Tensor, c: Tensor) -> Any:
    """One sentence through one direction of one layer, in the order it reads; h of every word, and c at the end."""
    one, outputs = model.layers[layer], []
    weight, bias, project = one.gates[direction], one.bias[direction], one.project[direction]
    for x in inputs:
        i, g, f, o = (torch.cat((x, h)) @ weight + bias).split(model.config.hidden)
        c = clipped(torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g), model.config.cell_clip)
        h = clipped((torch.sigmoid(o) * torch.tanh(c)) @ project, model.config.projection_clip)
        outputs.append(h)
    return outputs, h, c


def sentence_by_hand(model: Elmo, words: list[str]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """For every layer, y of all places ahead and back, the marks among them; the states begin with zeros."""
    rows = torch.cat((model.marks[:1], characters([words])[0], model.marks[1:]))
    x = [word_by_hand(model, row) for row in rows]
    sides = []
    for direction in (0, 1):
        y, layers = (x[::-1] if direction else x), [x]
        for number in range(model.config.layers):
            zeros = (torch.zeros(model.config.dim).double(), torch.zeros(model.config.hidden).double())
            h, _, _ = lstm_by_hand(model, number, direction, y, *zeros)
            y = [a + b for a, b in zip(h, y, strict=True)] if number and model.config.skip else h
            layers.append(y[::-1] if direction else y)
        sides.append(layers)
    return sides[0], sides[1]


def by_hand(model: Elmo, sentences: list[list[str]]) -> Tensor:
    longest = max(map(len, sentences))
    found = torch.zeros(len(sentences), 1 + model.config.layers, longest, 2 * model.config.dim, dtype=torch.float64)
    for row, words in enumerate(sentences):
        ahead, back = sentence_by_hand(model, words)
        for layer in range(1 + model.config.layers):
            for place in range(len(words)):
                found[row, layer, place] = torch.cat((ahead[layer][place + 1], back[layer][place + 1]))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"skip": False, "activation": "tanh", "highway_layers": 0},
        {"normalise_words": True},
        {"cell_clip": None, "projection_clip": None, "layers": 1},
        {"projection_clip": None},
    ],
)
def test_the_layers_are_the_equations_and_so_are_their_gradients(changes):
    model = made(**changes)
    found, expected = model.representations(characters()), by_hand(model, SENTENCES)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    direction = torch.randn_like(found)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_clipping_matters_where_it_is_asked_for():
    clipped, free = made(), made(cell_clip=None, projection_clip=None)
    found = clipped.representations(characters())[:, 1]
    assert found.abs().max() == SIZES["projection_clip"]
    assert (found - free.representations(characters())[:, 1]).abs().max() > 0.1


def test_the_gradients_are_those_of_finite_differences():
    model = made(layers=2, cell_clip=0.9, projection_clip=None)
    layer = model.layers[1]
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    hidden, cell = torch.randn(2, 2, 4).double().requires_grad_(), torch.rand(2, 2, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: layer(given[0], torch.tensor([4, 2]), *given[1:]), (x, hidden, cell))


def test_no_character_means_nothing_and_learns_nothing():
    model = made()
    model.representations(characters()).sum().backward()
    assert model.words.embed.weight.grad[0].abs().max() == 0
    assert model.words.embed.weight.grad[1:].abs().max() > 0
    assert model.words.embed.num_embeddings == CHARACTERS


def test_a_sentence_is_read_alike_in_any_company():
    model = made()
    whole = model.representations(characters())
    for row, words in enumerate(SENTENCES):
        alone = model.representations(characters([words]))
        torch.testing.assert_close(whole[row : row + 1, :, : len(words)], alone, rtol=0, atol=1e-14)
        assert (whole[row, :, len(words) :] == 0).all()


def test_what_stands_behind_a_sentence_is_not_read():
    model, rows = made(), characters([["the", "cat", "sat"], ["a", "b", "c"]])
    found = model.representations(rows, torch.tensor([3, 1]))
    torch.testing.assert_close(found[1:, :, :1], model.representations(characters([["a"]])), rtol=0, atol=1e-14)
    assert (found[1, :, 1:] == 0).all()


def test_a_batch_of_no_words_gives_no_words():
    assert made().representations(characters([[], []])).shape == (2, 4, 0, 8)


def test_a_state_goes_on_from_the_end_ahead_and_from_the_beginning_back():
    model, before, after = made(layers=1), ["the", "cat"], ["sat"]
    _, state = model.read(characters([before]), model.start(1))
    layers, _ = model.read(characters([after]), state)
    for direction in (0, 1):
        h, c = torch.zeros(4).double(), torch.zeros(5).double()
        for words in (before, after):
            rows = torch.cat((model.marks[:1], characters([words])[0], model.marks[1:]))
            x = [word_by_hand(model, row) for row in rows]
            outputs, h, c = lstm_by_hand(model, 0, direction, x[::-1] if direction else x, h, c)
        torch.testing.assert_close(layers[0, 1, 0].chunk(2)[direction], outputs[1], rtol=0, atol=1e-12)
    assert (layers - model.representations(characters([after]))).abs().max() > 0.01


def test_each_row_carries_its_own_state_and_an_empty_sentence_leaves_it_as_it_was():
    model = made()
    _, state = model.read(characters(), model.start(4))
    for row, words in enumerate(SENTENCES):
        _, alone = model.read(characters([words]), model.start(1))
        picked = select(state, torch.tensor([row]))
        torch.testing.assert_close(picked.hidden, alone.hidden, rtol=0, atol=1e-14)
        torch.testing.assert_close(picked.cell, alone.cell, rtol=0, atol=1e-14)
    assert state.hidden[2].abs().max() == 0
    _, after = model.read(characters([[]] * 4), state)
    assert torch.equal(after.hidden, state.hidden)
    assert torch.equal(after.cell, state.cell)


def test_both_language_models_predict_from_what_they_have_read():
    model, words = made(vocabulary_size=6, head="language_model"), ["the", "cat", "sat"]
    ahead, back = model.predict(characters([words]))
    assert ahead.shape == back.shape == (1, 4, 6)
    y_ahead, y_back = (side[-1] for side in sentence_by_hand(model, words))
    for t in range(4):
        torch.testing.assert_close(ahead[0, t], model.readout(y_ahead[t]), rtol=0, atol=1e-12)
        torch.testing.assert_close(back[0, t], model.readout(y_back[t + 1]), rtol=0, atol=1e-12)
    for place in range(3):  # a word is seen by what comes after it ahead, and before it back, and never by itself
        changed = [*words[:place], "other", *words[place + 1 :]]
        new_ahead, new_back = model.predict(characters([changed]))
        assert [(new_ahead[0, t] - ahead[0, t]).abs().max() > 0 for t in range(4)] == [t > place for t in range(4)]
        assert [(new_back[0, t] - back[0, t]).abs().max() > 0 for t in range(4)] == [t <= place for t in range(4)]


def test_only_a_language_model_predicts_words():
    with pytest.raises(InputError, match="the head language_model"):
        made(vocabulary_size=6).predict(characters())


def test_the_mix_is_gamma_times_the_weighted_sum_of_the_layers():
    layers = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    mix = Mix(3).double()
    torch.testing.assert_close(mix(layers), layers.mean(dim=1))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.scale.fill_(1.7)
    e = torch.exp(torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64))
    expected = 1.7 * sum(e[j] / e.sum() * layers[:, j] for j in range(3))
    torch.testing.assert_close(mix(layers), expected)
    assert torch.autograd.gradcheck(lambda x, *_: mix(x), (layers.requires_grad_(), mix.weights, mix.scale))


def test_a_normalised_mix_gives_each_layer_of_each_word_mean_0_and_variance_1():
    layers = torch.randn(2, 3, 5, 8, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.1]).double()[:, None, None] + 3
    normal = (layers - layers.mean(-1, keepdim=True)) / (layers.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(Mix(3, normalise=True).double()(layers), normal.mean(dim=1))


def test_without_labels_a_word_is_the_mean_of_its_layers_or_the_top_one():
    layers = by_hand(made(), SENTENCES)
    torch.testing.assert_close(made()(characters()), layers.mean(dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(made(mix="top")(characters()), layers[:, -1], rtol=0, atol=1e-12)
    with pytest.raises(InputError, match=r"no labels to choose from.*tagger or classifier"):
        made().logits(layers[:, 0])
    with pytest.raises(InputError, match="no segments"):
        made()(characters(), torch.zeros(4, 4, dtype=torch.long))


@pytest.mark.parametrize("mix", ["all", "top"])
@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("reader", [0, 3])
@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_the_labels_of_words_and_of_texts_are_the_equations(mix, own, reader, pooling):
    options = {"labels": 3, "mix": mix, "own_words": own, "reader_hidden": reader, "task_dropout": 0.0}
    tagger, classifier = made(head="tagger", **options), made(head="classifier", pooling=pooling, **options)
    for model in (tagger, classifier):
        layers, task = by_hand(model, SENTENCES), model.task
        used = layers[:, -1:] if mix == "top" else layers
        shares = task.mix.weights.exp() / task.mix.weights.exp().sum()
        said = model.say(characters(), torch.tensor([len(words) for words in SENTENCES]))
        for row, words in enumerate(SENTENCES):
            states = task.mix.scale * sum(share * one for share, one in zip(shares, used[row], strict=True))
            states = states[: len(words)]
            if own and words:
                states = torch.cat((states, task.own(characters([words])[0])), dim=-1)
            if reader and words:
                sides = ((task.reader.ahead, states), (task.reader.back, states.flip(0)))
                ahead, back = (side.rnn(x[None])[0][0] for side, x in sides)
                states = torch.cat((ahead, back.flip(0)), dim=-1)
            if model is tagger and words:
                torch.testing.assert_close(said[row, : len(words)], task.label(states), rtol=0, atol=1e-12)
            elif words:
                weights = torch.full((len(words),), 1 / len(words), dtype=torch.float64)
                if pooling == "attention":
                    scores = torch.stack([task.pool.query @ torch.tanh(task.pool.key(state)) for state in states])
                    weights = scores.exp() / scores.exp().sum()
                torch.testing.assert_close(said[row], task.label(weights @ states), rtol=0, atol=1e-12)
            assert said[row].isfinite().all()


def test_a_frozen_model_teaches_its_task_alone_and_is_not_dropped():
    frozen = made(head="tagger", frozen=True, dropout=0.5, task_dropout=0.0, reader_hidden=2).train()
    found = frozen.say(characters(), torch.tensor([4, 1, 0, 2]))
    assert torch.equal(found, frozen.say(characters(), torch.tensor([4, 1, 0, 2])))
    found.sum().backward()
    learned = {name for name, p in frozen.named_parameters() if p.grad is not None}
    assert learned == {name for name, _ in frozen.named_parameters() if name.startswith("task.")}
    assert learned == {name for name, p in frozen.named_parameters() if p.requires_grad}


def test_a_model_that_is_tuned_learns_everywhere_and_is_dropped():
    tuned = made(head="classifier", dropout=0.5).train()
    found = tuned.say(characters(), torch.tensor([4, 1, 0, 2]))
    assert (found - tuned.say(characters(), torch.tensor([4, 1, 0, 2]))).abs().max() > 0
    (found * torch.tensor([1.0, -2.0])).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in tuned.parameters())


@pytest.mark.parametrize("head", LABELLED)
def test_gradients_of_the_whole_model_are_those_of_finite_differences(head):
    own = {"own_words": 2, "reader_hidden": 2, "pooling": "attention", "task_dropout": 0.0}
    model = made(head=head, filters=((1, 1), (2, 2)), highway_layers=1, dim=2, hidden=2, layers=2, **own)
    tables = {"words.embed.weight", "task.own.table.weight"}  # whose rows are many, and one of which learns nothing
    weights = [weight for name, weight in model.named_parameters() if name not in tables]
    lengths = torch.tensor([2, 1])
    assert torch.autograd.gradcheck(
        lambda *_: model.say(characters([["the", "cat"], ["a"]]), lengths), tuple(weights), fast_mode=True
    )


@pytest.mark.parametrize("head", HEADS)
def test_a_model_with_a_head_is_saved_and_loaded_bit_for_bit(head, tmp_path):
    own = {"own_words": 2, "reader_hidden": 2, "pooling": "attention"} if head in LABELLED else {"vocabulary_size": 6}
    model = made(head=head, **own).float()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    for one, other in zip(outputs(again), outputs(model), strict=True):
        assert one.equal(other)


def outputs(model: Elmo) -> tuple[Tensor, ...]:
    """What the head says."""
    if model.readout is not None:
        return model.predict(characters())
    return (model.say(characters(), torch.tensor([4, 1, 0, 2])),)


def test_what_fills_a_batch_up_changes_nothing_that_is_said():
    model = made(head="classifier", reader_hidden=2, pooling="attention")
    lengths = torch.tensor([4, 1, 0, 2])
    padded = F.pad(characters(), (0, 0, 0, 3, 0, 1))
    found = model.say(padded, F.pad(lengths, (0, 1), value=1))
    torch.testing.assert_close(found[:4], model.say(characters(), lengths), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "millions"), [("small", 13.6), ("medium", 28.0), ("original", 93.6)])
def test_the_released_sizes_have_as_many_parameters_as_published(name, millions):
    with torch.device("meta"):
        model = Elmo(Config(**PRESETS[name]))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_under_autocast_it_gives_nearly_the_same():
    model = made(vocabulary_size=6, head="language_model").float()
    expected, (logits, _) = model(characters()), model.predict(characters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, (short, _) = model(characters()), model.predict(characters())
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(short.float(), logits, rtol=0, atol=0.1)


def test_in_half_precision_the_cells_stay_in_float32():
    model = made().float()
    expected, state = model.read(characters(), model.start(4))
    short, after = model.bfloat16().read(characters(), model.start(4))
    assert short.dtype == torch.bfloat16
    assert after.cell.dtype == torch.float32
    torch.testing.assert_close(short.float(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(after.cell, state.cell, rtol=0, atol=0.05)


def test_words_of_another_length_are_told_so():
    with pytest.raises(ShapeError, match="words of 50 characters, where this model reads 7"):
        made()(Characters()([["a"]]))


def test_a_config_comes_back_from_plain_data():
    config = Config(**SIZES)
    assert build(Config, json.loads(json.dumps(asdict(config))), "config.json") == config


def test_a_small_model_learns_a_language_of_two_sentences():
    torch.manual_seed(0)
    wider = {"filters": ((1, 8), (3, 8)), "dim": 16, "hidden": 32, "layers": 1, "projection_clip": 3.0}
    model = Elmo(Config(**{**SIZES, **wider, "vocabulary_size": 6, "head": "language_model"}))
    rows, words = characters([["the", "cat", "sat"], ["a", "dog", "sat"]]), torch.tensor([[2, 3, 4], [0, 5, 4]])
    ahead_targets, back_targets = F.pad(words, (0, 1), value=1), F.pad(words, (1, 0), value=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        ahead, back = model.predict(rows)
        losses = F.cross_entropy(ahead.mT, ahead_targets), F.cross_entropy(back.mT, back_targets)
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    # Ahead only the first word is a surprise; back the second is, for both sentences end alike.
    assert losses[0] < 0.69315 / 4 + 0.03
    assert losses[1] < 0.69315 / 4 + 0.03


def taught(head: str, steps: int, rate: float) -> dict[str, float]:
    """How well a model knows eight sentences that it learned, unfrozen, by what its task measures."""
    kind = {"language_model": TwoWayLanguageModelTask, "tagger": TaggingTask, "classifier": ClassificationTask}[head]
    texts = [Pair(" ".join(words), str(row % 2)) for row, words in enumerate(EIGHT)]
    tagged = [Tagged(words, tuple(str((row + place) % 3) for place in range(3))) for row, words in enumerate(EIGHT)]
    both = ("train", "valid")
    data = LoadedData(dict.fromkeys(both, texts), tagged=dict.fromkeys(both, tagged))
    read: Any = Characters(SIZES["max_characters"])
    if head == "language_model":
        read = kind.learn_vocabulary(data, DataConfig(name="labelled", vocabulary="word"), None)
    wider = {"filters": ((1, 8), (3, 8)), "dim": 16, "hidden": 32, "projection_clip": 3.0, "task_dropout": 0.0}
    config = Config(**{**SIZES, **wider, "layers": 2, **kind.sizes(data, read)})
    task = kind.prepare(data, read, config, TrainConfig(batch_tokens=64, length=10), 0)
    torch.manual_seed(0)
    model = Elmo(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        loss = task.loss(model, task.batch(range(8)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return task.validate(model.eval())


@pytest.mark.parametrize("head", GOLDEN)
def test_after_twenty_steps_the_loss_is_what_it_was_when_this_was_written(head):
    assert taught(head, 20, 3e-3)["loss"] == pytest.approx(GOLDEN[head], rel=2e-3)


@pytest.mark.parametrize("head", LABELLED)
def test_a_head_learns_eight_sentences_by_heart(head):
    found = taught(head, 60, 1e-2)
    assert found["accuracy"] == 1.0
    assert found["loss"] < 0.05


def test_both_language_models_learn_eight_sentences_by_heart():
    # Each begins and ends with a word of its own: nothing but the first of them, one of eight, is a surprise.
    assert taught("language_model", 150, 2e-2)["loss"] == pytest.approx(math.log(8) / 4, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filters": ()}, "filters"),
        ({"filters": ((8, 4),)}, "width"),
        ({"filters": ((1, 4, 2),)}, "pairs"),
        ({"filters": ((1, 2**20),) * 1000}, "too many features"),
        ({"hidden": 2**20, "dim": 2**20}, "too large together"),
        ({"max_characters": 2}, "max_characters"),
        ({"cell_clip": 0.0}, "cell_clip"),
        ({"projection_clip": float("nan")}, "projection_clip"),
        ({"layers": 0}, "layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"head": "taggr"}, "did you mean tagger"),
        ({"head": "language_model"}, "vocabulary_size"),
        ({"head": "tagger", "label_names": ("a",)}, "1 label_names for 2 labels"),
        ({"head": "tagger", "labels": 2**24, "reader_hidden": 2**14}, "too large"),
        ({"frozen": True}, "nothing would be left to learn"),
        ({"reader_hidden": -1}, "reader_hidden"),
        ({"own_words": -1}, "own_words"),
    ],
)
def test_a_config_that_makes_no_sense_is_told_so(unchecked, changes, words):
    with pytest.raises(InputError, match=words):
        Config(**{**SIZES, **changes})
