"""Linformer: equations, shared projections, padding and long texts."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import qkv
from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.models.linformer import LengthProjection, Linformer, LinformerConfig, LowRankAttention, Sharing
from qkv.nn.multi_head import MultiHeadAttention
from qkv.tasks.text_classification import TextClassificationTask
from qkv.tokenizers import WordTokenizer
from tests.tasks.settings import prepare

SIZES = {"vocab_size": 13, "dim": 12, "heads": 3, "layers": 2, "ffn_dim": 20, "max_length": 16, "rank": 5}


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> Linformer:
    torch.manual_seed(3)
    model = (
        Linformer(LinformerConfig(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1, which could hide a mistake
            parameter.normal_(std=0.4)
    return model


def random_tokens(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(5))


def reference_forward(model: Linformer, tokens: Tensor, lengths: Tensor) -> Tensor:
    """h_L from the equations of the docstrings, one token, head and projected key at a time."""
    c = model.config

    def norm(h: Tensor, by: torch.nn.LayerNorm) -> Tensor:
        return (h - h.mean()) / (h.var(unbiased=False) + c.layer_norm_eps).sqrt() * by.weight + by.bias

    rows = []
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        x = [norm(model.embed.tokens.weight[token] + model.embed.positions.weight[position], model.embed.norm)
             for position, token in enumerate(row)]  # fmt: skip
        for block in model.encoder:
            layer = block.attention
            parts = [(layer.qkv_proj.weight @ h + layer.qkv_proj.bias).view(3, c.heads, -1) for h in x]
            read: list[list[Tensor]] = [[] for _ in x]
            for head in range(c.heads):
                of_head = head if c.sharing == "none" else 0
                e, f = layer.key_projection.weight[of_head], layer.value_projection.weight[of_head]
                keys = [sum(e[k, i] * parts[i][1, head] for i in range(length)) for k in range(c.rank)]
                values = [sum(f[k, i] * parts[i][2, head] for i in range(length)) for k in range(c.rank)]
                for t in range(len(x)):
                    scores = torch.stack([parts[t][0, head] @ key / math.sqrt(c.dim // c.heads) for key in keys])
                    weights = scores.exp() / scores.exp().sum()
                    read[t].append(sum(weights[k] * values[k] for k in range(c.rank)))
            for t, h in enumerate(x):
                h = norm(h + layer.out_proj(torch.cat(read[t])), block.attention_norm)
                wide = block.ffn.up_proj(h)
                wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
                x[t] = norm(h + block.ffn.down_proj(wide), block.ffn_norm)
        rows.append(torch.stack(x))
    return torch.stack(rows)


@pytest.mark.parametrize("sharing", get_args(Sharing))
def test_outputs_and_gradients_match_the_equations(sharing):
    model, tokens, lengths = make_model(sharing=sharing), random_tokens(2, 5), torch.tensor([5, 3])
    actual, expected = model(tokens, lengths=lengths), reference_forward(model, tokens, lengths)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    direction = torch.randn(actual.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad((actual * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_gradients_of_every_head_match_finite_differences(head):
    model = make_model(head=head, labels=3, layers=1, dim=6, ffn_dim=5)

    def value() -> Tensor:
        logits = model.predict(random_tokens(2, 4), torch.tensor([4, 2]))
        return (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()

    value().backward()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * direction
            above = value()
            parameter -= 2e-5 * direction
            below = value()
            parameter += 1e-5 * direction
        expected = float(above - below) / 2e-5
        assert float((parameter.grad * direction).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    ("sharing", "matrices", "heads"), [("none", 4, 3), ("headwise", 4, 1), ("key_value", 2, 1), ("layerwise", 1, 1)]
)
def test_projections_are_shared_as_configured_also_after_loading(sharing, matrices, heads, tmp_path: Path):
    model = make_model(torch.float32, sharing=sharing, head="classifier")
    projections = [module for module in model.modules() if isinstance(module, LengthProjection)]
    assert [projection.weight.shape for projection in projections] == [(heads, 5, 16)] * matrices
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert len([module for module in again.modules() if isinstance(module, LengthProjection)]) == matrices
    tokens, lengths = random_tokens(), torch.tensor([9, 4, 1])
    assert again.predict(tokens, lengths).equal(model.predict(tokens, lengths))


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_rows_alone_match_a_padded_batch_of_any_length(position):
    model, tokens, lengths = make_model(position=position), random_tokens(), torch.tensor([9, 4, 1])
    together = model(tokens, lengths=lengths)
    longer = model(torch.cat((tokens, random_tokens(3, 7)), dim=1), lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=0, atol=1e-11)
        torch.testing.assert_close(longer[row, :length], alone, rtol=0, atol=1e-11)


def test_an_empty_row_is_finite_and_affects_no_other_row():
    model, tokens = make_model(), random_tokens()
    actual = model(tokens, lengths=torch.tensor([9, 0, 4]))
    assert actual.isfinite().all()
    torch.testing.assert_close(actual[2, :4], model(tokens[2:, :4])[0], rtol=0, atol=1e-11)


def test_watched_weights_are_over_the_projected_keys():
    model = make_model()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(random_tokens(), lengths=torch.tensor([9, 4, 1]))
    weights = seen["encoder.1"].weights
    assert weights.shape == (3, 1, 9, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 9, dtype=torch.float64))


def test_a_text_of_65536_tokens_fits_into_little_memory():
    model = Linformer(
        LinformerConfig(vocab_size=13, head="tagger", dim=8, heads=2, layers=1, ffn_dim=8, max_length=2**16, rank=4)
    ).eval()
    with torch.inference_mode():  # one matrix of all pairs of tokens would take 16 GiB
        assert model.predict(random_tokens(1, 2**16), torch.tensor([2**16])).shape == (1, 2**16, 2)


def test_autocast_stays_close_and_every_weight_gets_a_gradient():
    model, tokens, lengths = (
        make_model(torch.float32, head="classifier"),
        random_tokens(length=16),
        torch.tensor([16, 5, 2]),
    )
    exact = model.predict(tokens, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.predict(tokens, lengths)
    assert (logits.float() - exact).abs().mean() < 0.05 * exact.abs().mean()
    logits.float().square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.compiled
def test_the_training_loss_compiles_into_one_graph():
    model, tokens = make_model(torch.float32, head="classifier"), random_tokens()

    def loss(tokens: Tensor, lengths: Tensor) -> Tensor:
        return model.predict(tokens, lengths).square().mean()

    expected = loss(tokens, torch.tensor([9, 4, 1]))
    actual = torch.compile(loss, fullgraph=True, backend="aot_eager")(tokens, torch.tensor([9, 4, 1]))
    torch.testing.assert_close(actual, expected)
    actual.backward()


GOOD, BAD = "a fine film with a warm heart .", "a dull film with a cold heart ."
TEXTS = [Pair(" ".join([text] * times), label) for times in (1, 2, 3, 4) for text, label in ((GOOD, "+"), (BAD, "-"))]


def trained(steps: int, **changes: Any) -> tuple[float, float]:
    """Loss and accuracy after training on eight synthetic texts, in padded batches as on a GPU."""
    tokenizer = WordTokenizer.train([pair.source for pair in TEXTS])
    torch.manual_seed(0)
    sizes = TextClassificationTask.sizes(LabeledTextDataset({"train": TEXTS}), tokenizer) | {"head": "classifier"}
    config = LinformerConfig(**{**sizes, "dim": 16, "heads": 2, "layers": 2, "max_length": 48, "rank": 8, **changes})
    model = Linformer(config).eval()  # without dropout
    data = LabeledTextDataset({"train": TEXTS, "valid": TEXTS})
    task = prepare(TextClassificationTask, data, tokenizer, config, batch_size=400)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = task.loss(model, task.batch(range(8), padded_to_shape=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = task.validate(model)
    return scores["loss"], scores["accuracy"]


def test_the_loss_after_20_steps_is_unchanged():
    assert trained(20)[0] == pytest.approx(0.30827, rel=1e-3)


@pytest.mark.parametrize("sharing", ["none", "layerwise"])
def test_it_overfits_eight_texts(sharing):
    loss, accuracy = trained(60, sharing=sharing)
    assert accuracy == 1.0
    assert loss < 0.05


def test_a_missing_head_segments_or_too_many_tokens_raise():
    model = make_model()
    with pytest.raises(InputError, match="no head"):
        model.logits(model(random_tokens()))
    with pytest.raises(InputError, match="segments"):
        model(random_tokens(), random_tokens())
    with pytest.raises(InputError, match="position"):
        model(random_tokens(length=17))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 0}, "rank must be"),
        ({"rank": 17}, "rank 17"),
        ({"heads": 5}, "dim 12 must be divisible by heads 5"),
        ({"sharing": "layers"}, r"sharing = 'layers' \(did you mean layerwise\?\)"),
        ({"position": "relative"}, "projected keys have no position"),
        ({"align": "local_m"}, "projected keys have no position"),
        ({"head": "masked_lm"}, "head = 'masked_lm'"),
        ({"max_length": 2**24, "rank": 2**20, "dim": 3}, "too large"),
        ({"label_names": ("a",)}, "label_names must name all 2 labels"),
        ({"dropout": 1.0}, "dropout must be"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        LinformerConfig(**{**SIZES, **changes})


def low_rank_attention(rank: int = 5, **changes: Any) -> LowRankAttention:
    return make_model(rank=rank, layers=1, **changes).encoder[0].attention


def random_states(length: int = 16, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_an_identity_projection_gives_full_attention():
    layer, full = low_rank_attention(rank=16), MultiHeadAttention(12, 3).double()
    full.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        for projection in (layer.key_projection, layer.value_projection):
            projection.weight[0] = torch.eye(16)
    torch.testing.assert_close(layer(random_states()), full(random_states())[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("positions", "rank"), [(12, 4), (10, 4), (5, 5), (7, 1)])
def test_the_projection_is_initialised_to_scaled_means_of_neighbours(positions, rank):
    weight = LengthProjection(LinformerConfig(heads=2, sharing="none", max_length=positions, rank=rank)).weight
    assert weight.shape == (2, rank, positions)
    nonzero = weight > 0
    assert nonzero.sum(dim=1).eq(1).all()  # each position is in one projection,
    row_of = nonzero[0].int().argmax(dim=0)
    assert row_of.diff().ge(0).all()  # which it shares with its neighbours,
    assert int(row_of.bincount().max()) - int(row_of.bincount().min()) <= 1
    assert row_of.bincount(minlength=rank).min() >= 1
    torch.testing.assert_close(weight.square().sum(dim=2).mean(), torch.tensor(1.0))


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_a_length_projection_is_a_weighted_sum_over_positions(sharing):
    projection = low_rank_attention(sharing=sharing).key_projection
    heads = len(projection.weight)
    x = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    expected = torch.zeros(2, 3, 5, 4, dtype=torch.float64)
    for head in range(3):
        for k in range(5):
            for position in range(7):
                expected[:, head, k] += projection.weight[head % heads, k, position] * x[:, head, position]
    torch.testing.assert_close(projection(x), expected)


def test_padding_does_not_affect_the_attention():
    layer, x, lengths = low_rank_attention(), random_states(), torch.tensor([6, 3])
    inside = torch.arange(16) < lengths[:, None]
    actual, other = layer(x, lengths), layer(torch.where(inside[..., None], x, x + 1e3), lengths)
    torch.testing.assert_close(actual[inside], other[inside], rtol=0, atol=1e-11)
    assert not layer(x)[inside].allclose(actual[inside], atol=1e-3)


def test_attention_over_an_empty_row_is_zero():
    layer = low_rank_attention()
    actual = layer(random_states(), torch.tensor([10, 0]))
    torch.testing.assert_close(actual[1], layer.out_proj.bias.expand_as(actual[1]))


def test_attention_over_more_than_max_length_tokens_raises():
    with pytest.raises(InputError, match="max_length"):
        low_rank_attention()(random_states(17))
