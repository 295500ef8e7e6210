"""ELMo: equations, both directions, states, the scalar mix, and the heads."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.config import Term, build
from qkv.datasets.dataset import LabeledTextDataset, TaggedDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError, ShapeError
from qkv.hub import load, save_model
from qkv.models.elmo import LABEL_HEADS, PRESETS, Elmo, ElmoConfig, ScalarMix
from qkv.nn.interfaces import select
from qkv.tasks.bilm import BiLMTask
from qkv.tasks.tagging import TaggingTask
from qkv.tasks.text_classification import TextClassificationTask
from qkv.tokenizers.characters import CHARACTERS, CharacterIds
from qkv.training.recipe import TrainConfig

SIZES: dict[str, Any] = {
    "max_characters": 7, "character_dim": 3, "filters": ((1, 2), (3, 4)), "highway_layers": 2,
    "dim": 4, "hidden_dim": 5, "layers": 3, "cell_clip": 0.6, "projection_clip": 0.4, "dropout": 0.0,
}  # fmt: skip
EIGHT = [
    ("the", "cat", "sat"), ("a", "dog", "ran"), ("one", "cat", "slept"), ("no", "bird", "sang"),
    ("any", "dog", "saw"), ("some", "bird", "ate"), ("my", "cat", "hid"), ("her", "bird", "flew"),
]  # fmt: skip
GOLDEN = {"language_model": 2.61582, "tagger": 0.85838, "classifier": 0.27484}  # losses after 20 steps
SENTENCES = [["the", "cat", "sat", "on"], ["schön"], [], ["a", "b"]]


def make_model(**changes: Any) -> Elmo:
    torch.manual_seed(3)
    model = Elmo(ElmoConfig(**{**SIZES, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.9, 0.9)
        model.word_encoder.embed.weight[0] = 0.0
    return model


def characters(sentences: list[list[str]] = SENTENCES) -> Tensor:
    return CharacterIds(SIZES["max_characters"])(sentences)


def word_by_hand(model: Elmo, word: Tensor) -> Tensor:
    """x of one word, by loops over positions and features."""
    words = model.word_encoder
    embedded = [words.embed.weight[number] for number in word]
    actual = []
    for convolution in words.convolutions:
        width = convolution.weight.shape[2]
        for kernel, bias in zip(convolution.weight, convolution.bias, strict=True):
            sums = [
                bias + sum(kernel[:, offset] @ embedded[position + offset] for offset in range(width))
                for position in range(len(embedded) - width + 1)
            ]
            actual.append(getattr(torch, model.config.activation)(torch.stack(sums)).max())
    u = torch.stack(actual)
    if model.config.normalize_words:
        u = (u - u.mean()) / (u.var(correction=0) + 1e-5).sqrt()
    for highway in words.highways:
        gate = torch.sigmoid(highway.gate.weight @ u + highway.gate.bias)
        u = gate * torch.relu(highway.transform.weight @ u + highway.transform.bias) + (1 - gate) * u
    return words.project.weight @ u + words.project.bias


def clip(x: Tensor, limit: float | None) -> Tensor:
    if limit is None:
        return x
    bound = torch.full_like(x, limit)
    return torch.where(x.abs() > bound, bound * x.sign(), x)


def lstm_by_hand(model: Elmo, layer: int, direction: int, inputs: list[Tensor], h: Tensor, c: Tensor) -> Any:
    """Run one sentence through one direction of one layer; h of every word, and the final h and c."""
    module, outputs = model.layers[layer], []
    weight, bias, project = module.gates[direction], module.bias[direction], module.project[direction]
    for x in inputs:
        i, g, f, o = (torch.cat((x, h)) @ weight + bias).split(model.config.hidden_dim)
        c = clip(torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g), model.config.cell_clip)
        h = clip((torch.sigmoid(o) * torch.tanh(c)) @ project, model.config.projection_clip)
        outputs.append(h)
    return outputs, h, c


def sentence_by_hand(model: Elmo, words: list[str]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """y of all positions for every layer, forward and backward, including begin and end."""
    rows = torch.cat((model.markers[:1], characters([words])[0], model.markers[1:]))
    x = [word_by_hand(model, row) for row in rows]
    directions = []
    for direction in (0, 1):
        y, layers = (x[::-1] if direction else x), [x]
        for number in range(model.config.layers):
            zeros = (torch.zeros(model.config.dim).double(), torch.zeros(model.config.hidden_dim).double())
            h, _, _ = lstm_by_hand(model, number, direction, y, *zeros)
            y = [a + b for a, b in zip(h, y, strict=True)] if number and model.config.skip_connections else h
            layers.append(y[::-1] if direction else y)
        directions.append(layers)
    return directions[0], directions[1]


def by_hand(model: Elmo, sentences: list[list[str]]) -> Tensor:
    longest = max(map(len, sentences))
    actual = torch.zeros(len(sentences), 1 + model.config.layers, longest, 2 * model.config.dim, dtype=torch.float64)
    for row, words in enumerate(sentences):
        forward, backward = sentence_by_hand(model, words)
        for layer in range(1 + model.config.layers):
            for position in range(len(words)):
                actual[row, layer, position] = torch.cat((forward[layer][position + 1], backward[layer][position + 1]))
    return actual


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"skip_connections": False, "activation": "tanh", "highway_layers": 0},
        {"normalize_words": True},
        {"cell_clip": None, "projection_clip": None, "layers": 1},
        {"projection_clip": None},
    ],
)
def test_layers_and_gradients_match_the_equations(changes):
    model = make_model(**changes)
    actual, expected = model.representations(characters()), by_hand(model, SENTENCES)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    direction = torch.randn_like(actual)
    parameters = list(model.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-10)


def test_clipping_changes_the_result():
    clipped, free = make_model(), make_model(cell_clip=None, projection_clip=None)
    actual = clipped.representations(characters())[:, 1]
    assert actual.abs().max() == SIZES["projection_clip"]
    assert (actual - free.representations(characters())[:, 1]).abs().max() > 0.1


def test_gradients_match_finite_differences():
    model = make_model(layers=2, cell_clip=0.9, projection_clip=None)
    layer = model.layers[1]
    x = torch.randn(2, 4, 2, 4, dtype=torch.float64, requires_grad=True)
    hidden, cell = torch.randn(2, 2, 4).double().requires_grad_(), torch.rand(2, 2, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *inputs: layer(inputs[0], torch.tensor([4, 2]), *inputs[1:]), (x, hidden, cell)
    )


def test_padding_characters_have_no_effect_and_no_gradient():
    model = make_model()
    model.representations(characters()).sum().backward()
    assert model.word_encoder.embed.weight.grad[0].abs().max() == 0
    assert model.word_encoder.embed.weight.grad[1:].abs().max() > 0
    assert model.word_encoder.embed.num_embeddings == CHARACTERS


def test_a_sentence_alone_matches_a_padded_batch():
    model = make_model()
    full = model.representations(characters())
    for row, words in enumerate(SENTENCES):
        alone = model.representations(characters([words]))
        torch.testing.assert_close(full[row : row + 1, :, : len(words)], alone, rtol=0, atol=1e-14)
        assert (full[row, :, len(words) :] == 0).all()


def test_words_beyond_the_length_are_ignored():
    model, rows = make_model(), characters([["the", "cat", "sat"], ["a", "b", "c"]])
    actual = model.representations(rows, torch.tensor([3, 1]))
    torch.testing.assert_close(actual[1:, :, :1], model.representations(characters([["a"]])), rtol=0, atol=1e-14)
    assert (actual[1, :, 1:] == 0).all()


def test_an_empty_batch_gives_an_empty_output():
    assert make_model().representations(characters([[], []])).shape == (2, 4, 0, 8)


def test_a_state_carries_over_in_both_directions():
    model, before, after = make_model(layers=1), ["the", "cat"], ["sat"]
    _, state = model.representations_from(characters([before]), model.init_state(1))
    layers, _ = model.representations_from(characters([after]), state)
    for direction in (0, 1):
        h, c = torch.zeros(4).double(), torch.zeros(5).double()
        for words in (before, after):
            rows = torch.cat((model.markers[:1], characters([words])[0], model.markers[1:]))
            x = [word_by_hand(model, row) for row in rows]
            outputs, h, c = lstm_by_hand(model, 0, direction, x[::-1] if direction else x, h, c)
        torch.testing.assert_close(layers[0, 1, 0].chunk(2)[direction], outputs[1], rtol=0, atol=1e-12)
    assert (layers - model.representations(characters([after]))).abs().max() > 0.01


def test_rows_keep_their_own_state_also_for_empty_sentences():
    model = make_model()
    _, state = model.representations_from(characters(), model.init_state(4))
    for row, words in enumerate(SENTENCES):
        _, alone = model.representations_from(characters([words]), model.init_state(1))
        picked = select(state, torch.tensor([row]))
        torch.testing.assert_close(picked.hidden, alone.hidden, rtol=0, atol=1e-14)
        torch.testing.assert_close(picked.cell, alone.cell, rtol=0, atol=1e-14)
    assert state.hidden[2].abs().max() == 0
    _, after = model.representations_from(characters([[]] * 4), state)
    assert torch.equal(after.hidden, state.hidden)
    assert torch.equal(after.cell, state.cell)


def test_both_language_models_predict_from_their_context_only():
    model, words = make_model(vocab_size=6, head="language_model"), ["the", "cat", "sat"]
    forward, backward = model.bilm_logits(characters([words]))
    assert forward.shape == backward.shape == (1, 4, 6)
    y_forward, y_backward = (side[-1] for side in sentence_by_hand(model, words))
    for t in range(4):
        torch.testing.assert_close(forward[0, t], model.readout(y_forward[t]), rtol=0, atol=1e-12)
        torch.testing.assert_close(backward[0, t], model.readout(y_backward[t + 1]), rtol=0, atol=1e-12)
    for position in range(3):  # a word affects later predictions forward and earlier ones backward
        changed = [*words[:position], "other", *words[position + 1 :]]
        new_forward, new_backward = model.bilm_logits(characters([changed]))
        assert [(new_forward[0, t] - forward[0, t]).abs().max() > 0 for t in range(4)] == [
            t > position for t in range(4)
        ]
        assert [(new_backward[0, t] - backward[0, t]).abs().max() > 0 for t in range(4)] == [
            t <= position for t in range(4)
        ]


def test_only_a_language_model_predicts_words():
    with pytest.raises(InputError, match="language_model"):
        make_model(vocab_size=6).bilm_logits(characters())


def test_the_mix_is_gamma_times_the_weighted_sum_of_the_layers():
    layers = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(layers), layers.mean(dim=1))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.scale.fill_(1.7)
    e = torch.exp(torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64))
    expected = 1.7 * sum(e[j] / e.sum() * layers[:, j] for j in range(3))
    torch.testing.assert_close(mix(layers), expected)
    assert torch.autograd.gradcheck(lambda x, *_: mix(x), (layers.requires_grad_(), mix.weights, mix.scale))


def test_a_normalised_mix_layer_normalises_each_layer():
    layers = torch.randn(2, 3, 5, 8, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.1]).double()[:, None, None] + 3
    normal = (layers - layers.mean(-1, keepdim=True)) / (layers.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(ScalarMix(3, normalize=True).double()(layers), normal.mean(dim=1))


def test_without_a_label_head_it_returns_the_mean_or_top_layer():
    layers = by_hand(make_model(), SENTENCES)
    torch.testing.assert_close(make_model()(characters()), layers.mean(dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(make_model(mix="top")(characters()), layers[:, -1], rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="no label head"):
        make_model().logits(layers[:, 0])
    with pytest.raises(InputError, match="segments"):
        make_model()(characters(), torch.zeros(4, 4, dtype=torch.long))


@pytest.mark.parametrize("mix", ["all", "top"])
@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("rnn", [0, 3])
@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_tagger_and_classifier_match_their_equations(mix, own, rnn, pooling):
    options = {"labels": 3, "mix": mix, "task_embedding_dim": own, "task_hidden_dim": rnn, "task_dropout": 0.0}
    tagger, classifier = make_model(head="tagger", **options), make_model(head="classifier", pooling=pooling, **options)
    for model in (tagger, classifier):
        layers, task = by_hand(model, SENTENCES), model.task
        used = layers[:, -1:] if mix == "top" else layers
        shares = task.mix.weights.exp() / task.mix.weights.exp().sum()
        logits = model.predict(characters(), torch.tensor([len(words) for words in SENTENCES]))
        for row, words in enumerate(SENTENCES):
            states = task.mix.scale * sum(share * layer for share, layer in zip(shares, used[row], strict=True))
            states = states[: len(words)]
            if own and words:
                states = torch.cat((states, task.word_embedding(characters([words])[0])), dim=-1)
            if rnn and words:
                sides = ((task.rnn.forward_rnn, states), (task.rnn.backward_rnn, states.flip(0)))
                forward, backward = (side.rnn(x[None])[0][0] for side, x in sides)
                states = torch.cat((forward, backward.flip(0)), dim=-1)
            if model is tagger and words:
                torch.testing.assert_close(logits[row, : len(words)], task.label(states), rtol=0, atol=1e-12)
            elif words:
                weights = torch.full((len(words),), 1 / len(words), dtype=torch.float64)
                if pooling == "attention":
                    scores = torch.stack([task.pool.query @ torch.tanh(task.pool.key(state)) for state in states])
                    weights = scores.exp() / scores.exp().sum()
                torch.testing.assert_close(logits[row], task.label(weights @ states), rtol=0, atol=1e-12)
            assert logits[row].isfinite().all()


def test_a_frozen_backbone_trains_the_head_only_and_has_no_dropout():
    frozen = make_model(head="tagger", frozen=True, dropout=0.5, task_dropout=0.0, task_hidden_dim=2).train()
    actual = frozen.predict(characters(), torch.tensor([4, 1, 0, 2]))
    assert torch.equal(actual, frozen.predict(characters(), torch.tensor([4, 1, 0, 2])))
    actual.sum().backward()
    learned = {name for name, p in frozen.named_parameters() if p.grad is not None}
    assert learned == {name for name, _ in frozen.named_parameters() if name.startswith("task.")}
    assert learned == {name for name, p in frozen.named_parameters() if p.requires_grad}


def test_fine_tuning_trains_all_weights_with_dropout():
    tuned = make_model(head="classifier", dropout=0.5).train()
    actual = tuned.predict(characters(), torch.tensor([4, 1, 0, 2]))
    assert (actual - tuned.predict(characters(), torch.tensor([4, 1, 0, 2]))).abs().max() > 0
    (actual * torch.tensor([1.0, -2.0])).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in tuned.parameters())


@pytest.mark.parametrize("head", LABEL_HEADS)
def test_gradients_of_the_whole_model_match_finite_differences(head):
    own = {"task_embedding_dim": 2, "task_hidden_dim": 2, "pooling": "attention", "task_dropout": 0.0}
    model = make_model(head=head, filters=((1, 1), (2, 2)), highway_layers=1, dim=2, hidden_dim=2, layers=2, **own)
    tables = {
        "word_encoder.embed.weight",
        "task.word_embedding.table.weight",
    }  # large, with a padding row
    weights = [weight for name, weight in model.named_parameters() if name not in tables]
    lengths = torch.tensor([2, 1])
    assert torch.autograd.gradcheck(
        lambda *_: model.predict(characters([["the", "cat"], ["a"]]), lengths), tuple(weights), fast_mode=True
    )


@pytest.mark.parametrize("head", ["language_model", *LABEL_HEADS])
def test_a_model_with_a_head_is_saved_and_loaded_bit_for_bit(head, tmp_path):
    own = (
        {"task_embedding_dim": 2, "task_hidden_dim": 2, "pooling": "attention"}
        if head in LABEL_HEADS
        else {"vocab_size": 6}
    )
    model = make_model(head=head, **own).float()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    for a, b in zip(outputs(again), outputs(model), strict=True):
        assert a.equal(b)


def outputs(model: Elmo) -> tuple[Tensor, ...]:
    """Logits of the head."""
    if model.readout is not None:
        return model.bilm_logits(characters())
    return (model.predict(characters(), torch.tensor([4, 1, 0, 2])),)


def test_padding_a_batch_does_not_change_the_logits():
    model = make_model(head="classifier", task_hidden_dim=2, pooling="attention")
    lengths = torch.tensor([4, 1, 0, 2])
    padded = F.pad(characters(), (0, 0, 0, 3, 0, 1))
    actual = model.predict(padded, F.pad(lengths, (0, 1), value=1))
    torch.testing.assert_close(actual[:4], model.predict(characters(), lengths), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "millions"), [("small", 13.6), ("medium", 28.0), ("original", 93.6)])
def test_presets_have_the_published_parameter_counts(name, millions):
    with torch.device("meta"):
        model = Elmo(ElmoConfig(**PRESETS[name]))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_autocast_stays_close():
    model = make_model(vocab_size=6, head="language_model").float()
    expected, (logits, _) = model(characters()), model.bilm_logits(characters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, (short, _) = model(characters()), model.bilm_logits(characters())
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(short.float(), logits, rtol=0, atol=0.1)


def test_in_half_precision_the_cells_stay_in_float32():
    model = make_model().float()
    expected, state = model.representations_from(characters(), model.init_state(4))
    short, after = model.bfloat16().representations_from(characters(), model.init_state(4))
    assert short.dtype == torch.bfloat16
    assert after.cell.dtype == torch.float32
    torch.testing.assert_close(short.float(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(after.cell, state.cell, rtol=0, atol=0.05)


def test_words_of_another_length_raise():
    with pytest.raises(ShapeError, match="characters"):
        make_model()(CharacterIds()([["a"]]))


def test_a_config_round_trips_through_json():
    config = ElmoConfig(**SIZES)
    assert build(ElmoConfig, json.loads(json.dumps(config.to_dict())), "config.json") == config


def test_a_small_model_learns_a_language_of_two_sentences():
    torch.manual_seed(0)
    sizes = {"filters": ((1, 8), (3, 8)), "dim": 16, "hidden_dim": 32, "layers": 1, "projection_clip": 3.0}
    model = Elmo(ElmoConfig(**{**SIZES, **sizes, "vocab_size": 6, "head": "language_model"}))
    rows, words = characters([["the", "cat", "sat"], ["a", "dog", "sat"]]), torch.tensor([[2, 3, 4], [0, 5, 4]])
    forward_targets, backward_targets = F.pad(words, (0, 1), value=1), F.pad(words, (1, 0), value=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        forward, backward = model.bilm_logits(rows)
        losses = F.cross_entropy(forward.mT, forward_targets), F.cross_entropy(backward.mT, backward_targets)
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    # Forward, only the first word is uncertain; backward only the second, since both sentences end alike.
    assert losses[0] < 0.69315 / 4 + 0.03
    assert losses[1] < 0.69315 / 4 + 0.03


def train_and_validate(head: str, steps: int, rate: float) -> dict[str, float]:
    """Train on eight sentences and return the validation scores."""
    kind = {"language_model": BiLMTask, "tagger": TaggingTask, "classifier": TextClassificationTask}[head]
    texts = [Pair(" ".join(words), str(row % 2)) for row, words in enumerate(EIGHT)]
    tagged = [
        Tagged(words, tuple(str((row + position) % 3) for position in range(3))) for row, words in enumerate(EIGHT)
    ]
    both = ("train", "valid")
    data = (
        TaggedDataset(dict.fromkeys(both, tagged))
        if head == "tagger"
        else LabeledTextDataset(dict.fromkeys(both, texts))
    )
    sizes = {"filters": ((1, 8), (3, 8)), "dim": 16, "hidden_dim": 32, "projection_clip": 3.0, "task_dropout": 0.0}
    config = ElmoConfig(**{**SIZES, **sizes, "layers": 2, "head": head})
    tokenizer = None
    if head == "language_model":
        options = SimpleNamespace(tokenizer=Term("tokenizer", "word"), lowercase=False)
        tokenizer = kind.train_tokenizer(data, options, config)
    config = config.replace(**kind.sizes(data, tokenizer))
    task = kind(data, tokenizer, config, kind.config_class(), TrainConfig(batch_size=64), 0)
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
def test_the_loss_after_20_steps_is_unchanged(head):
    assert train_and_validate(head, 20, 3e-3)["loss"] == pytest.approx(GOLDEN[head], rel=2e-3)


@pytest.mark.parametrize("head", LABEL_HEADS)
def test_a_head_overfits_eight_sentences(head):
    actual = train_and_validate(head, 60, 1e-2)
    assert actual["accuracy"] == 1.0
    assert actual["loss"] < 0.05


def test_both_language_models_overfit_eight_sentences():
    # First and last words are unique: only the first prediction, one of eight, is uncertain.
    assert train_and_validate("language_model", 150, 2e-2)["loss"] == pytest.approx(math.log(8) / 4, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filters": ()}, "filters"),
        ({"filters": ((8, 4),)}, "wider"),
        ({"filters": ((1, 4, 2),)}, "pairs"),
        ({"filters": ((1, 2**20),) * 1000}, "features"),
        ({"max_characters": 2}, "max_characters"),
        ({"cell_clip": 0.0}, "cell_clip"),
        ({"projection_clip": float("nan")}, "projection_clip"),
        ({"layers": 0}, "layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"head": "taggr"}, "did you mean tagger"),
        ({"head": "tagger", "label_names": ("a",)}, "1 label_names for 2 labels"),
        ({"frozen": True}, "frozen"),
        ({"task_hidden_dim": -1}, "task_hidden_dim"),
        ({"task_embedding_dim": -1}, "task_embedding_dim"),
    ],
)
def test_invalid_configs_raise(unchecked, changes, words):
    with pytest.raises(InputError, match=words):
        ElmoConfig(**{**SIZES, **changes})
