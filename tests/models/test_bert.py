"""BERT: its equations, its heads, and rows of different lengths."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.attention import Prefix
from qkv.errors import InputError
from qkv.models.bert import HEADS, OF_THE_WHOLE, PRESETS, Bert, Config, Pretraining

SIZES = {"vocabulary_size": 13, "dim": 12, "heads": 3, "layers": 2, "feedforward": 20, "max_length": 16}
POSITIONS = ["learned", "sinusoidal", "rotary", "alibi", "relative"]


def made(dtype: torch.dtype = torch.float64, **changes: Any) -> Bert:
    torch.manual_seed(3)
    model = Bert(Config(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
            parameter.normal_(std=0.4)
    return model


def some_tokens(batch: int = 3, length: int = 9, below: int = SIZES["vocabulary_size"]) -> Tensor:
    return torch.randint(below, (batch, length), generator=torch.Generator().manual_seed(5))


def by_the_equations(model: Bert, tokens: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    """h_L by the equations of the module's docstring, one token, head and other token at a time."""
    c = model.config

    def norm(h: Tensor, by: torch.nn.LayerNorm) -> Tensor:
        return (h - h.mean()) / (h.var(unbiased=False) + c.eps).sqrt() * by.weight + by.bias

    rows = []
    for row, row_segments, length in zip(tokens, segments, lengths.tolist(), strict=True):
        embed = model.embed
        x = [embed.tokens.weight[token] + embed.segments.weight[segment] + embed.positions.weight[place]
             for place, (token, segment) in enumerate(zip(row, row_segments, strict=True))]  # fmt: skip
        x = [norm(h, embed.norm) for h in x]
        for block in model.encoder:
            project = block.attention.project
            parts = [(project.weight @ h + project.bias).view(3, c.heads, -1) for h in x]
            for t, h in enumerate(x):
                read = []
                for head in range(c.heads):
                    scores = [parts[t][0, head] @ parts[s][1, head] / math.sqrt(c.head_dim) for s in range(length)]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read.append(sum(weights[s] * parts[s][2, head] for s in range(length)))
                x[t] = norm(h + block.attention.output(torch.cat(read)), block.attention_norm)
            for t, h in enumerate(x):
                wide = block.feedforward.widen(h)
                wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
                x[t] = norm(h + block.feedforward.narrow(wide), block.feedforward_norm)
        rows.append(torch.stack(x))
    return torch.stack(rows)


def test_the_model_is_its_equations_and_so_are_its_gradients():
    model, tokens, segments = made(pooler=False), some_tokens(2, 5), some_tokens(2, 5, below=2)
    lengths = torch.tensor([5, 3])
    found, expected = model(tokens, segments, lengths), by_the_equations(model, tokens, segments, lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    direction = torch.randn(found.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((found * direction).sum(), parameters),
        torch.autograd.grad((expected * direction).sum(), parameters),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_every_head_are_those_of_finite_differences(head):
    model = made(head=head, labels=3, layers=1, dim=6, feedforward=5, pooler=head in OF_THE_WHOLE)
    tokens, segments = some_tokens(2, 4), some_tokens(2, 4, below=2)

    def value() -> Tensor:
        logits = model.logits(model(tokens, segments))
        parts = logits if isinstance(logits, Pretraining) else (logits,)
        return sum((part * torch.linspace(-1, 2, part.numel(), dtype=part.dtype).view_as(part)).sum() for part in parts)

    value().backward()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        way = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * way
            above = value()
            parameter -= 2e-5 * way
            below = value()
            parameter += 1e-5 * way
        expected = float(above - below) / 2e-5
        assert float((parameter.grad * way).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-5), name


def test_heads_say_what_their_equations_say():
    tokens = some_tokens()
    for head in HEADS:
        model = made(head=head, labels=5)
        hidden = model(tokens)
        pooled = torch.tanh(hidden[:, 0] @ model.pooler.weight.T + model.pooler.bias)
        torch.testing.assert_close(model.pooled(hidden), pooled)
        logits = model.logits(hidden)
        if head in ("masked_lm", "pretraining"):
            words = F.gelu(model.words.transform(hidden))
            words = F.layer_norm(words, (12,), *model.words.norm.parameters(), 1e-12)
            words = words @ model.embed.tokens.weight.T + model.words.readout.bias
            torch.testing.assert_close(logits.words if head == "pretraining" else logits, words)
            masked = hidden[:, [2, 4]]
            torch.testing.assert_close(model.word_logits(masked), words[:, [2, 4]])
        if head == "pretraining":
            logits = logits.next_sentence
        if head != "masked_lm":
            of_the_whole = head in ("next_sentence", "pretraining", "classifier")
            torch.testing.assert_close(logits, model.label(pooled if of_the_whole else hidden))
            assert logits.shape[-1] == (5 if head in ("classifier", "tagger") else 2)


def test_without_a_head_or_a_pooler_it_says_so():
    model = made(pooler=False)
    hidden = model(some_tokens())
    with pytest.raises(InputError, match="has no head, so it has no logits"):
        model.logits(hidden)
    with pytest.raises(InputError, match="no head for words"):
        model.word_logits(hidden)
    with pytest.raises(InputError, match="has no pooler"):
        model.pooled(hidden)


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_of_a_batch_are_read_as_if_they_were_alone(position):
    model, tokens, lengths = made(position=position), some_tokens(), torch.tensor([9, 4, 1])
    together = model(tokens, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=0, atol=1e-11)


def test_a_row_without_any_token_is_finite_and_changes_no_other():
    model, tokens = made(), some_tokens()
    found = model(tokens, lengths=torch.tensor([9, 0, 4]))
    assert found.isfinite().all()
    torch.testing.assert_close(found[2, :4], model(tokens[2:, :4])[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_rows_that_are_filled_up_on_the_left_are_read_alike_where_only_distances_count(position):
    model, tokens, padding = made(position=position), some_tokens(), torch.tensor([0, 3, 8])
    found = model(tokens, mask=~Prefix(padding))
    for row, left in enumerate(padding.tolist()):
        torch.testing.assert_close(found[row, left:], model(tokens[row : row + 1, left:])[0], rtol=0, atol=1e-11)


def test_lengths_and_a_mask_hide_what_either_hides():
    model, tokens, lengths = made(), some_tokens(), torch.tensor([9, 6, 5])
    both = model(tokens, lengths=lengths, mask=~Prefix(2))
    tokens[:, :2] = (tokens[:, :2] + 1) % 13
    tokens[2, 5:] = (tokens[2, 5:] + 1) % 13
    torch.testing.assert_close(model(tokens, lengths=lengths, mask=~Prefix(2))[2, 2:5], both[2, 2:5])
    assert not model(tokens, lengths=lengths)[2, 2:5].allclose(both[2, 2:5])


@pytest.mark.parametrize("position", POSITIONS)
def test_the_order_of_tokens_matters(position):
    model = made(position=position, layers=1)
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])
    assert (model(there) - model(back))[0, -1].abs().max() > 1e-3


def test_segments_are_0_unless_they_are_given():
    model, tokens = made(), some_tokens()
    assert model(tokens, torch.zeros_like(tokens)).equal(model(tokens))
    assert not model(tokens, torch.ones_like(tokens)).allclose(model(tokens))


def test_sines_are_added_to_embeddings_that_are_not_small_beside_them():
    model, tokens, entered = made(position="sinusoidal"), some_tokens(), []
    model.embed.norm.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model(tokens)
    sines = [
        [(math.sin, math.cos)[i % 2](place / 10000 ** ((i - i % 2) / 12)) for i in range(12)] for place in range(9)
    ]
    embedded = model.embed.tokens.weight[tokens] + model.embed.segments.weight[0]
    torch.testing.assert_close(entered[0], math.sqrt(12) * embedded + torch.tensor(sines, dtype=torch.float64))


def test_there_is_nothing_beyond_the_last_learned_position():
    assert made()(some_tokens(length=16)).shape == (3, 16, 12)
    with pytest.raises(InputError, match="position 16"):
        made()(some_tokens(length=17))
    assert made(position="rotary")(some_tokens(length=17)).isfinite().all()


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "bilinear", "low_rank", "concat", "location"])
def test_any_score_can_take_the_place_of_the_scaled_dot_product(score):
    tokens = some_tokens()
    assert not made(score=score)(tokens).allclose(made()(tokens), atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("tiny", 4_385_920), ("mini", 11_170_560), ("base", 109_482_240), ("large", 335_141_888)],
)
def test_released_sizes_have_the_published_numbers_of_parameters(preset, parameters):
    with torch.device("meta"):
        model = Bert(Config(30522, **PRESETS[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_weights_begin_as_berts_do():
    torch.manual_seed(0)
    model = Bert(Config(500, dim=128, heads=4, layers=2, head="pretraining"))
    assert model.words.readout.weight is model.embed.tokens.weight
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0
        elif "norm" in name:
            assert parameter.min() == parameter.max() == 1
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_an_untied_head_has_a_matrix_of_its_own():
    tied, untied = made(head="masked_lm"), made(head="masked_lm", tie=False)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 13 * 12


def test_something_is_dropped_in_training_and_nothing_outside_of_it():
    tokens, expected = some_tokens(), made(head="tagger")
    for changes in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = made(head="tagger", **changes)
        assert model(tokens).equal(expected(tokens))
        assert not model.train()(tokens).allclose(expected(tokens))
    hidden = expected(tokens)
    assert not made(head="tagger", dropout=0.5).train().logits(hidden).allclose(expected.logits(hidden))


def test_in_training_embeddings_and_what_each_layer_adds_are_dropped():
    model, entered = made(dropout=0.5).train(), []
    model.encoder[0].register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    model(some_tokens())
    (x,) = entered
    assert 0.4 < (x == 0).double().mean() < 0.6
    dropped, _ = model.encoder[0](x)
    whole, _ = model.eval().encoder[0](x)
    assert not dropped.allclose(whole)


def test_under_autocast_it_stays_close_and_every_weight_learns():
    model, tokens = made(torch.float32, head="pretraining"), some_tokens()
    exact = model.logits(model(tokens, tokens % 2, torch.tensor([9, 5, 2])))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(model(tokens, tokens % 2, torch.tensor([9, 5, 2])))
    for one, other in zip(logits, exact, strict=True):
        assert (one.float() - other).abs().mean() < 0.05 * other.abs().mean()
    sum(part.float().square().sum() for part in logits).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_what_it_looks_at_can_be_watched_by_name():
    model, tokens = made(), some_tokens()
    with qkv.watch(model, layers=[1], heads=[2]) as seen:
        model(tokens, lengths=torch.tensor([9, 4, 1]))
    weights = seen["encoder.1"].weights
    assert weights.shape == (3, 1, 9, 9)
    assert weights[1, :, :, 4:].abs().max() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 9, dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 0}, "dim must lie between"),
        ({"labels": 0}, "labels must lie between"),
        ({"segments": 2**25}, "segments must lie between"),
        ({"feedforward": 0}, "feedforward must lie between"),
        ({"layers": 2000}, "layers must be 1,024 at most"),
        ({"dim": 13}, "dim 13 must be a multiple of heads 3"),
        ({"labels": 2**24, "dim": 3 * 2**20}, "a matrix of 3145728 by 16777216 numbers is too large"),
        ({"position": "sinusoid"}, r"did you mean sinusoidal\?"),
        ({"dim": 3 * 2**16, "feedforward": 1}, "a matrix of 196608 by 589824 numbers is too large"),
        ({"position": "rotary", "dim": 9}, "a head has 3"),
        ({"head": "taggr"}, r"did you mean tagger\?"),
        ({"head": "classifier", "pooler": False}, "head 'classifier' reads what the pooler says"),
        ({"label_names": ("yes", "no", "maybe")}, "there are 3 label_names for 2 labels"),
        ({"activation": "gelo"}, r"did you mean gelu\?"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"eps": float("nan")}, r"eps must lie in"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Config(**{**SIZES, **changes})


@pytest.mark.compiled
@pytest.mark.parametrize("position", ["learned", "rotary", "relative"])
def test_one_graph_computes_the_same_and_shows_the_same_attention(position):
    model, tokens = made(torch.float32, position=position), some_tokens()
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
def test_training_all_of_it_is_one_graph():
    model, tokens = made(torch.float32, head="pretraining"), some_tokens()

    def loss(tokens: Tensor, lengths: Tensor) -> Tensor:
        words, following = model.logits(model(tokens, lengths=lengths))
        return F.cross_entropy(words.flatten(0, 1), tokens.flatten()) + following.square().mean()

    expected = loss(tokens, torch.tensor([9, 4, 1]))
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(tokens, torch.tensor([9, 4, 1]))
    torch.testing.assert_close(found, expected)
    found.backward()
    assert all(p.grad is not None for name, p in model.named_parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.inference_mode()
def test_a_cuda_graph_replays_with_new_inputs():
    model, tokens = made(torch.float32, head="pretraining").cuda(), some_tokens().cuda()
    lengths = torch.tensor([9, 4, 1]).cuda()
    model.logits(model(tokens, tokens % 2, lengths))  # lets libraries set themselves up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model.logits(model(tokens, tokens % 2, lengths))
    tokens.copy_(tokens.flip(0))
    lengths.copy_(lengths.flip(0))
    graph.replay()
    for one, other in zip(captured, model.logits(model(tokens, tokens % 2, lengths)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
