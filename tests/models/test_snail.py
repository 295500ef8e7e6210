"""SNAIL: equations, causality, learning and saving."""

import math

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.errors import InputError, ShapeError
from qkv.hub.model_folder import save_model
from qkv.models.snail import (
    SNAIL,
    AttentionBlock,
    DenseBlock,
    SNAILConfig,
    SNAILPolicy,
    SNAILPolicyConfig,
    TemporalConvolution,
    dilated_layers,
)

CONFIG = SNAILConfig(
    ways=3, shots=2, height=8, width=9, conv_channels=4, conv_layers=2, image_dim=5, key_dims=(4, 6), value_dims=(3, 5),
    filters=4,
)  # fmt: skip
GOLDEN = 0.3093  # the loss after 20 steps, on a CPU
POLICY = SNAILPolicyConfig(actions=3, length=6, key_dims=(4, 5), value_dims=(3, 4), filters=4)


def model_with(**changes: object) -> SNAIL:
    torch.manual_seed(0)
    model = SNAIL(CONFIG.replace(**changes)).double().eval()
    for parameter in (
        model.norm.weight,
        model.norm.bias,
        *(b.project.weight for b in model.trunk if hasattr(b, "project")),
    ):
        torch.nn.init.normal_(parameter, std=0.5)  # away from their initial values, which could hide a mistake
    return model


def policy_with_weights(**changes: object) -> SNAILPolicy:
    torch.manual_seed(0)
    policy = SNAILPolicy(POLICY.replace(**changes)).double().eval()
    torch.nn.init.normal_(policy.readout.weight)
    return policy


def episode(rows: int = 4, shown: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(rows, shown + 1, 1, 8, 9, dtype=torch.float64, generator=generator)
    return images, torch.randint(3, (rows, shown), generator=generator)


def attended(block: AttentionBlock, x: list[list[float]]) -> list[list[float]]:
    """[x_t ; sum_{s <= t} a_ts V x_s], one number at a time."""
    weight, bias = block.project.weight.tolist(), block.project.bias.tolist()
    key, _, _ = block.sizes
    y = [
        [sum(w * v for w, v in zip(row, item, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        for item in x
    ]
    result = []
    for t, query in enumerate(y):
        scores = [sum(query[n] * past[key + n] for n in range(key)) / math.sqrt(key) for past in y[: t + 1]]
        total = sum(math.exp(score) for score in scores)
        shares = [math.exp(score) / total for score in scores]
        read = [sum(a * past[2 * key + n] for a, past in zip(shares, y, strict=False)) for n in range(block.sizes[2])]
        result.append([*x[t], *read])
    return result


def test_outputs_match_the_equations():
    model = model_with()
    images, labels = episode(1)
    x = images[0]
    for stage in model.embed.stages:
        convolved = F.conv2d(x, stage.convolve.weight, stage.convolve.bias, padding=1)
        centred = convolved - convolved.mean(dim=(1, 2, 3), keepdim=True)  # four maps: one group
        normed = centred / (centred.square().mean(dim=(1, 2, 3), keepdim=True) + 1e-5).sqrt()
        x = F.max_pool2d(normed.clamp(min=0), 2)
    f = x.flatten(1) @ model.embed.project.weight.T + model.embed.project.bias
    f = f - f[:6].mean(dim=0)  # of the labelled images
    f = (f - f.mean(dim=1, keepdim=True)) / (f.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
    features = (f * model.norm.weight + model.norm.bias).tolist()
    one_hot = [[float(label == n) for n in range(3)] for label in labels[0].tolist()] + [[0.0] * 3]
    h = [[*f, *label] for f, label in zip(features, one_hot, strict=True)]
    first, convolution, second = model.trunk
    h = attended(first, h)
    h = convolution(torch.tensor([h], dtype=torch.float64))[0].tolist()
    h = attended(second, h)
    expected = torch.tensor(h[-1], dtype=torch.float64) @ model.readout.weight.T + model.readout.bias
    torch.testing.assert_close(model(images, labels)[0], expected)


def test_gradients_match_finite_differences():
    model = model_with(conv_channels=2, image_dim=2, key_dims=(2, 2), value_dims=(2, 2), filters=2)
    images, labels = episode(2)
    assert torch.autograd.gradcheck(lambda x: model(x, labels), images.requires_grad_(), fast_mode=True)
    policy = policy_with_weights()
    rewards = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    actions = torch.tensor([[0, 1, 2], [2, 2, 1]])
    assert torch.autograd.gradcheck(lambda r: policy(actions, r), rewards)


TINY = {"key_dims": (2, 1), "value_dims": (1, 2), "filters": 2}
TAKEN = torch.tensor([[0, 1, 2], [2, 2, 1]]), torch.tensor([[1.0, 0, 1], [0, 1, 0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: model_with(conv_channels=2, image_dim=2, **TINY), episode(2)),
        (lambda: policy_with_weights(length=3, **TINY), TAKEN),
    ],
    ids=["SNAIL", "SNAILPolicy"],
)
def test_gradients_of_every_weight_match_finite_differences(build, inputs):
    model = build()
    names, weights = zip(*model.named_parameters(), strict=True)

    def actual(*weights: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return functional_call(model, dict(zip(names, weights, strict=True)), inputs)

    assert torch.autograd.gradcheck(actual, weights, fast_mode=True)


def test_an_episode_alone_matches_a_batch():
    model = model_with()
    images, labels = episode()
    together = model(images, labels)
    for row in range(4):
        torch.testing.assert_close(model(images[row : row + 1], labels[row : row + 1])[0], together[row])
    assert model(images[:0], labels[:0]).shape == (0, 3)


def test_the_prediction_depends_on_every_label():
    model = model_with()
    images, labels = episode(1)
    before = model(images, labels)
    for position in range(6):
        other = labels.clone()
        other[0, position] = (other[0, position] + 1) % 3
        assert not torch.allclose(model(images, other), before)


def test_an_episode_without_examples_works():
    images, labels = episode(2, shown=0)
    assert model_with()(images, labels).shape == (2, 3)


def test_actions_do_not_depend_on_the_future():
    policy = policy_with_weights()
    actions, rewards = torch.tensor([[0, 1, 2, 1, 0]]), torch.tensor([[1.0, 0, 0, 1, 1]], dtype=torch.float64)
    logits, expected = policy(actions, rewards)
    assert logits.shape == (1, 6, 3)
    for taken in range(6):
        fewer, less = policy(actions[:, :taken], rewards[:, :taken])
        torch.testing.assert_close(fewer, logits[:, : taken + 1])
        torch.testing.assert_close(less, expected[:, : taken + 1])
    assert not torch.allclose(policy(actions, 1 - rewards)[0][:, -1], logits[:, -1])


def test_queries_and_keys_start_equal():
    query, key, value = SNAIL(CONFIG).trunk[0].project.weight.split((4, 4, 3))
    assert query.equal(key)
    assert not torch.equal(key[:3], value)


def test_a_new_policy_is_uniform():
    logits, expected = SNAILPolicy(POLICY)(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3))
    assert not logits.any()
    assert not expected.any()


def test_watched_attention_is_causal():
    model = model_with()
    with qkv.watch(model) as seen:
        model(*episode())
    assert list(seen) == ["trunk.0", "trunk.2"]
    for record in seen.values():
        assert record.weights.shape == (4, 1, 7, 7)
        assert not record.weights.triu(1).any()
        torch.testing.assert_close(record.weights.sum(dim=-1), torch.ones(4, 1, 7, dtype=torch.float64))


def test_uniform_attention_averages_the_past():
    policy = policy_with_weights(align="uniform")
    x = torch.randn(2, 5, 5, dtype=torch.float64)
    *_, values = policy.trunk[0].project(x).split((4, 4, 3), dim=-1)
    means = values.cumsum(dim=1) / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(policy.trunk[0](x)[..., 5:], means)


def test_the_default_config_has_the_sizes_of_the_paper():
    with torch.device("meta"):
        model = SNAIL(SNAILConfig())
    widths = [block.project.in_features for block in model.trunk if isinstance(block, AttentionBlock)]
    assert widths == [69, 69 + 32 + 3 * 128, 69 + 32 + 2 * 3 * 128 + 128]
    assert model.readout.in_features == 69 + 32 + 2 * 3 * 128 + 128 + 256


def learn(steps: int, rows: int) -> tuple[SNAIL, list[float]]:
    torch.manual_seed(0)
    model = SNAIL(CONFIG)
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(rows, 7, 1, 8, 9, generator=generator)
    labels = torch.arange(3).repeat(2)[torch.rand(rows, 6, generator=generator).argsort()]
    answers = torch.randint(3, (rows,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images, labels), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_the_loss_after_20_steps_is_unchanged():
    assert learn(20, 8)[1][-1] == pytest.approx(GOLDEN, abs=2e-3)


def test_it_overfits_eight_episodes():
    assert learn(120, 8)[1][-1] < 0.05


@pytest.mark.parametrize("build", [lambda: SNAIL(CONFIG), lambda: SNAILPolicy(POLICY)])
def test_it_is_saved_and_loaded_bit_for_bit(build, tmp_path):
    model = build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_model(model, None, tmp_path)
    again = qkv.load(tmp_path)
    assert again.config == model.config
    assert all(a.equal(b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ways": 0}, "ways must be"),
        ({"conv_layers": 4}, "too large"),
        ({"key_dims": (1, 2, 3)}, "value_dims must have 3 entries"),
        ({"key_dims": (), "value_dims": ()}, "key_dims must have"),
        ({"value_dims": (0, 1)}, "value_dims must be"),
        ({"filters": 0}, "filters must be"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        CONFIG.replace(**changes)


@pytest.mark.usefixtures("unchecked")
def test_inputs_of_invalid_shape_raise():
    model = model_with()
    images, labels = episode()
    for wrong in (labels[:, 1:], labels[:2], torch.zeros(4, 7, dtype=torch.long)):
        with pytest.raises(ShapeError, match="labels"):
            model(images, wrong)
    with pytest.raises(ShapeError, match=r"\[1, 8, 9\], not \[1, 8, 8\]"):
        model(images[..., :8], labels)
    with pytest.raises(ShapeError, match="rewards"):
        policy_with_weights()(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2))


def test_bfloat16_autocast_matches_float32_up_to_rounding():
    model, (images, labels) = model_with().float(), episode()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(images.float(), labels)
    torch.testing.assert_close(rounded.float(), model(images.float(), labels), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dilation", [1, 2, 7])
def test_a_dense_block_matches_its_equation_at_each_position(dilation):
    torch.manual_seed(0)
    block = DenseBlock(3, dilation, 2).double()
    torch.nn.init.normal_(block.linear.bias)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    actual = block(x)
    weight, bias = block.linear.weight.tolist(), block.linear.bias.tolist()
    for row in range(2):
        for t in range(5):
            before = x[row, t - dilation].tolist() if t >= dilation else [0.0] * 3
            read = [*before, *x[row, t].tolist()]
            z = [sum(w * r for w, r in zip(line, read, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
            gated = [math.tanh(z[n]) / (1 + math.exp(-z[n + 2])) for n in range(2)]
            assert actual[row, t].tolist() == pytest.approx([*x[row, t].tolist(), *gated])


@pytest.mark.parametrize("length", [1, 2, 3, 6, 8, 9])
def test_the_receptive_field_is_causal_and_covers_the_length(length):
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, length, 3).double()
    x = torch.randn(1, length, 2, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(convolution(x)[0, -1].sum(), x, retain_graph=True)
    assert (seen != 0).any(dim=-1).all()
    for position in range(length):
        (seen,) = torch.autograd.grad(convolution(x)[0, position].sum(), x)
        assert not seen[0, position + 1 :].any()


def test_the_depth_is_the_ceiling_of_log2():
    assert [dilated_layers(length) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)] == [
        math.ceil(math.log2(length)) for length in (1, 2, 3, 4, 5, 6, 21, 64, 101)
    ]


def test_gradients_of_a_temporal_convolution_match_finite_differences():
    torch.manual_seed(0)
    convolution = TemporalConvolution(2, 4, 2).double()
    assert torch.autograd.gradcheck(convolution, torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True))
