"""Products with packed weights inside models that have their own step."""

import pytest
import torch
from torch.nn import functional as F

from qkv.generation import DecodingConstraints, GenerationConfig, PackedWeights, generate
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from tests.generation.kernels import require_kernels

MOST_ERROR = {"float32": 1e-6, "bfloat16": 6e-3, "int8": 1.5e-2}


@pytest.fixture(autouse=True)
def _kernels():
    require_kernels()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_products(dtype):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(200, 150), torch.randn(2, 7, 200)
    base, weight = torch.randn(7, 150), layer.weight.detach().double()
    packed = PackedWeights(layer, dtype)
    with torch.inference_mode():
        truths = [
            F.linear(x.double(), weight, layer.bias.double()),
            torch.addmm(base.double(), x[0].double(), weight.t()),
            F.linear(x[..., 30:180].double(), weight[10:140, 30:180]),
        ]
        with packed:
            part = layer.weight[10:140, 30:180]  # a part of a matrix, as in a layer applied step by step
            results = [layer(x), torch.addmm(base, x[0], layer.weight.t()), F.linear(x[..., 30:180], part)]
    assert len(packed._packed) == 2  # nothing was left to PyTorch
    for result, truth in zip(results, truths, strict=True):
        assert ((result - truth).norm() / truth.norm()).item() < MOST_ERROR[dtype]


def test_other_products_are_left_alone():
    torch.manual_seed(0)
    layer, other = torch.nn.Linear(200, 150), torch.nn.Linear(200, 150)
    x = torch.randn(3, 200)
    packed = PackedWeights(layer, "int8")
    with packed:
        assert torch.equal(other(x), F.linear(x, other.weight, other.bias))
        assert layer(x).requires_grad  # training is not affected
    assert not packed._packed
    with torch.inference_mode(), packed:
        values = torch.randn(4, 2000)
        assert torch.equal(values.topk(5)[0], values.sort(descending=True)[0][:, :5])


@pytest.mark.parametrize("decoder", ["bahdanau", "luong", "plain"])
def test_search_in_float32_is_the_same(decoder):
    torch.manual_seed(0)
    config = RNNSeq2SeqConfig(
        source_vocab_size=2000, target_vocab_size=2000, embedding_dim=64, hidden_dim=128, decoder=decoder,
        score="additive",
    )  # fmt: skip
    model = RNNSeq2Seq(config).eval()
    source = torch.randint(3, 2000, (6, 9))
    constraints = DecodingConstraints(6, 2, 1, 15)

    @torch.inference_mode()
    def search():
        return generate(model, model.init_state(model.encode(source)), constraints, GenerationConfig(num_beams=3))

    expected = search()
    packed = PackedWeights(model, "float32")
    with packed:
        results = search()
    assert packed._packed
    assert results == expected or [[h.tokens for h in row] for row in results] == [
        [h.tokens for h in row] for row in expected
    ]
