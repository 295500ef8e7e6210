"""BERT: equations, heads and padding."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.attention import Prefix
from qkv.errors import InputError
from qkv.models.bert import PRESETS, SEQUENCE_HEADS, Bert, BertConfig, Head, Pretraining

HEADS = get_args(Head)
SIZES = {"vocab_size": 13, "dim": 12, "heads": 3, "layers": 2, "ffn_dim": 20, "max_length": 16}
POSITIONS = ["learned", "sinusoidal", "rotary", "alibi", "relative"]


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> Bert:
    torch.manual_seed(3)
    model = Bert(BertConfig(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1, which could hide a mistake
            parameter.normal_(std=0.4)
    return model


def random_tokens(batch: int = 3, length: int = 9, below: int = SIZES["vocab_size"]) -> Tensor:
    return torch.randint(below, (batch, length), generator=torch.Generator().manual_seed(5))


def reference_forward(model: Bert, tokens: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    """h_L from the equations of the module's docstring, one token, head and key at a time."""
    c = model.config

    def norm(h: Tensor, by: torch.nn.LayerNorm) -> Tensor:
        return (h - h.mean()) / (h.var(unbiased=False) + c.layer_norm_eps).sqrt() * by.weight + by.bias

    rows = []
    for row, row_segments, length in zip(tokens, segments, lengths.tolist(), strict=True):
        embed = model.embed
        x = [embed.tokens.weight[token] + embed.segments.weight[segment] + embed.positions.weight[position]
             for position, (token, segment) in enumerate(zip(row, row_segments, strict=True))]  # fmt: skip
        x = [norm(h, embed.norm) for h in x]
        for block in model.encoder:
            project = block.attention.qkv_proj
            parts = [(project.weight @ h + project.bias).view(3, c.heads, -1) for h in x]
            for t, h in enumerate(x):
                read = []
                for head in range(c.heads):
                    scores = [parts[t][0, head] @ parts[s][1, head] / math.sqrt(c.sizes.query) for s in range(length)]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read.append(sum(weights[s] * parts[s][2, head] for s in range(length)))
                x[t] = norm(h + block.attention.out_proj(torch.cat(read)), block.attention_norm)
            for t, h in enumerate(x):
                wide = block.ffn.up_proj(h)
                wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
                x[t] = norm(h + block.ffn.down_proj(wide), block.ffn_norm)
        rows.append(torch.stack(x))
    return torch.stack(rows)


def test_outputs_and_gradients_match_the_equations():
    model, tokens, segments = make_model(pooler=False), random_tokens(2, 5), random_tokens(2, 5, below=2)
    lengths = torch.tensor([5, 3])
    actual, expected = model(tokens, segments, lengths), reference_forward(model, tokens, segments, lengths)
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


@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_every_head_match_finite_differences(head):
    model = make_model(head=head, labels=3, layers=1, dim=6, ffn_dim=5, pooler=head in SEQUENCE_HEADS)
    tokens, segments = random_tokens(2, 4), random_tokens(2, 4, below=2)

    def value() -> Tensor:
        logits = model.logits(model(tokens, segments))
        parts = logits if isinstance(logits, Pretraining) else (logits,)
        return sum((part * torch.linspace(-1, 2, part.numel(), dtype=part.dtype).view_as(part)).sum() for part in parts)

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


def test_heads_match_their_equations():
    tokens = random_tokens()
    for head in HEADS:
        model = make_model(head=head, labels=5)
        hidden = model(tokens)
        pooled = torch.tanh(hidden[:, 0] @ model.pooler.weight.T + model.pooler.bias)
        torch.testing.assert_close(model.pooled(hidden), pooled)
        logits = model.logits(hidden)
        if head in ("masked_lm", "pretraining"):
            words = F.gelu(model.mlm_head.transform(hidden))
            words = F.layer_norm(words, (12,), *model.mlm_head.norm.parameters(), 1e-12)
            words = words @ model.embed.tokens.weight.T + model.mlm_head.readout.bias
            torch.testing.assert_close(logits.masked_lm if head == "pretraining" else logits, words)
            masked = hidden[:, [2, 4]]
            torch.testing.assert_close(model.mlm_logits(masked), words[:, [2, 4]])
        if head == "pretraining":
            logits = logits.next_sentence
        if head != "masked_lm":
            of_the_whole = head in ("next_sentence", "pretraining", "classifier")
            torch.testing.assert_close(logits, model.label(pooled if of_the_whole else hidden))
            assert logits.shape[-1] == (5 if head in ("classifier", "tagger") else 2)


def test_a_missing_head_or_pooler_raises():
    model = make_model(pooler=False)
    hidden = model(random_tokens())
    with pytest.raises(InputError, match="no head"):
        model.logits(hidden)
    with pytest.raises(InputError, match="no MLM head"):
        model.mlm_logits(hidden)
    with pytest.raises(InputError, match="has no pooler"):
        model.pooled(hidden)


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_alone_match_a_padded_batch(position):
    model, tokens, lengths = make_model(position=position), random_tokens(), torch.tensor([9, 4, 1])
    together = model(tokens, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=0, atol=1e-11)


def test_an_empty_row_is_finite_and_affects_no_other_row():
    model, tokens = make_model(), random_tokens()
    actual = model(tokens, lengths=torch.tensor([9, 0, 4]))
    assert actual.isfinite().all()
    torch.testing.assert_close(actual[2, :4], model(tokens[2:, :4])[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_left_padded_rows_match_with_relative_positions(position):
    model, tokens, padding = make_model(position=position), random_tokens(), torch.tensor([0, 3, 8])
    actual = model(tokens, mask=~Prefix(padding))
    for row, left in enumerate(padding.tolist()):
        torch.testing.assert_close(actual[row, left:], model(tokens[row : row + 1, left:])[0], rtol=0, atol=1e-11)


def test_lengths_and_mask_are_combined():
    model, tokens, lengths = make_model(), random_tokens(), torch.tensor([9, 6, 5])
    both = model(tokens, lengths=lengths, mask=~Prefix(2))
    tokens[:, :2] = (tokens[:, :2] + 1) % 13
    tokens[2, 5:] = (tokens[2, 5:] + 1) % 13
    torch.testing.assert_close(model(tokens, lengths=lengths, mask=~Prefix(2))[2, 2:5], both[2, 2:5])
    assert not model(tokens, lengths=lengths)[2, 2:5].allclose(both[2, 2:5])


@pytest.mark.parametrize("position", POSITIONS)
def test_the_order_of_tokens_matters(position):
    model = make_model(position=position, layers=1)
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])
    assert (model(there) - model(back))[0, -1].abs().max() > 1e-3


def test_segments_default_to_0():
    model, tokens = make_model(), random_tokens()
    assert model(tokens, torch.zeros_like(tokens)).equal(model(tokens))
    assert not model(tokens, torch.ones_like(tokens)).allclose(model(tokens))


def test_embeddings_are_scaled_with_sinusoidal_positions():
    model, tokens, layer_inputs = make_model(position="sinusoidal"), random_tokens(), []
    model.embed.norm.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model(tokens)
    sines = [
        [(math.sin, math.cos)[i % 2](position / 10000 ** ((i - i % 2) / 12)) for i in range(12)]
        for position in range(9)
    ]
    embedded = model.embed.tokens.weight[tokens] + model.embed.segments.weight[0]
    torch.testing.assert_close(layer_inputs[0], math.sqrt(12) * embedded + torch.tensor(sines, dtype=torch.float64))


def test_inputs_beyond_the_learned_positions_raise():
    assert make_model()(random_tokens(length=16)).shape == (3, 16, 12)
    with pytest.raises(InputError, match="position"):
        make_model()(random_tokens(length=17))
    assert make_model(position="rotary")(random_tokens(length=17)).isfinite().all()


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "bilinear", "low_rank", "concat", "location"])
def test_any_score_can_replace_the_scaled_dot_product(score):
    tokens = random_tokens()
    assert not make_model(score=score)(tokens).allclose(make_model()(tokens), atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("tiny", 4_385_920), ("mini", 11_170_560), ("base", 109_482_240), ("large", 335_141_888)],
)
def test_presets_have_the_published_parameter_counts(preset, parameters):
    with torch.device("meta"):
        model = Bert(BertConfig(vocab_size=30522, **PRESETS[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_weights_are_initialised_as_in_bert():
    torch.manual_seed(0)
    model = Bert(BertConfig(vocab_size=500, dim=128, heads=4, layers=2, head="pretraining"))
    assert model.mlm_head.readout.weight is model.embed.tokens.weight
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0
        elif "norm" in name:
            assert parameter.min() == parameter.max() == 1
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_an_untied_head_has_its_own_matrix():
    tied, untied = make_model(head="masked_lm"), make_model(head="masked_lm", tie_embeddings=False)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 13 * 12


def test_dropout_acts_in_training_only():
    tokens, expected = random_tokens(), make_model(head="tagger")
    for changes in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = make_model(head="tagger", **changes)
        assert model(tokens).equal(expected(tokens))
        assert not model.train()(tokens).allclose(expected(tokens))
    hidden = expected(tokens)
    assert not make_model(head="tagger", dropout=0.5).train().logits(hidden).allclose(expected.logits(hidden))


def test_dropout_acts_on_embeddings_and_residual_branches():
    model, layer_inputs = make_model(dropout=0.5).train(), []
    model.encoder[0].register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model(random_tokens())
    (x,) = layer_inputs
    assert 0.4 < (x == 0).double().mean() < 0.6
    dropped = model.encoder[0](x)
    assert not dropped.allclose(model.eval().encoder[0](x))


def test_autocast_stays_close_and_every_weight_gets_a_gradient():
    model, tokens = make_model(torch.float32, head="pretraining"), random_tokens()
    exact = model.logits(model(tokens, tokens % 2, torch.tensor([9, 5, 2])))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(model(tokens, tokens % 2, torch.tensor([9, 5, 2])))
    for grad, expected_grad in zip(logits, exact, strict=True):
        assert (grad.float() - expected_grad).abs().mean() < 0.05 * expected_grad.abs().mean()
    sum(part.float().square().sum() for part in logits).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_watch_selects_layers_and_heads():
    model, tokens = make_model(), random_tokens()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(tokens, lengths=torch.tensor([9, 4, 1]))
    weights = seen["encoder.1"].weights
    assert weights.shape == (3, 1, 9, 9)
    assert weights[1, :, :, 4:].abs().max() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 9, dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 0}, "dim must be"),
        ({"labels": 0}, "labels must be"),
        ({"segments": 2**25}, "segments must be"),
        ({"ffn_dim": 0}, "ffn_dim must be"),
        ({"layers": 2000}, "layers must be"),
        ({"dim": 13}, "dim 13 must be divisible by heads 3"),
        ({"labels": 2**24, "dim": 3 * 2**20}, "too large"),
        ({"position": "sinusoid"}, "did you mean sinusoidal"),
        ({"dim": 3 * 2**16, "ffn_dim": 1}, "too large"),
        ({"position": "rotary", "dim": 9}, "position 'rotary': .* must be even"),
        ({"head": "taggr"}, r"did you mean tagger\?"),
        ({"head": "classifier", "pooler": False}, "needs pooler"),
        ({"label_names": ("yes", "no", "maybe")}, "label_names must name all 2 labels"),
        ({"activation": "gelo"}, r"did you mean gelu\?"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be"),
    ],
)
def test_invalid_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        BertConfig(**{**SIZES, **changes})


@pytest.mark.compiled
@pytest.mark.parametrize("position", ["learned", "rotary", "relative"])
def test_compiled_model_matches_eager_with_and_without_watch(position):
    model, tokens = make_model(torch.float32, position=position), random_tokens()
    inputs = (tokens, tokens % 2, torch.tensor([9, 4, 1]))
    with qkv.watch(model) as expected:
        hidden = model(*inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), hidden, rtol=1e-4, atol=1e-5)
    with qkv.watch(compiled) as seen:
        torch.testing.assert_close(compiled(*inputs), hidden, rtol=1e-4, atol=1e-5)
    assert set(seen) == set(expected) == {"encoder.0", "encoder.1"}
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights, rtol=1e-4, atol=1e-5)


@pytest.mark.compiled
def test_the_training_loss_compiles_into_one_graph():
    model, tokens = make_model(torch.float32, head="pretraining"), random_tokens()

    def loss(tokens: Tensor, lengths: Tensor) -> Tensor:
        words, following = model.logits(model(tokens, lengths=lengths))
        return F.cross_entropy(words.flatten(0, 1), tokens.flatten()) + following.square().mean()

    expected = loss(tokens, torch.tensor([9, 4, 1]))
    actual = torch.compile(loss, fullgraph=True, backend="aot_eager")(tokens, torch.tensor([9, 4, 1]))
    torch.testing.assert_close(actual, expected)
    actual.backward()
    assert all(p.grad is not None for name, p in model.named_parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.inference_mode()
def test_a_cuda_graph_replays_with_new_inputs():
    model, tokens = make_model(torch.float32, head="pretraining").cuda(), random_tokens().cuda()
    lengths = torch.tensor([9, 4, 1]).cuda()
    model.logits(model(tokens, tokens % 2, lengths))  # lets libraries set themselves up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model.logits(model(tokens, tokens % 2, lengths))
    tokens.copy_(tokens.flip(0))
    lengths.copy_(lengths.flip(0))
    graph.replay()
    for a, b in zip(captured, model.logits(model(tokens, tokens % 2, lengths)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
