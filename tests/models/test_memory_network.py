"""Memory networks: the hops against plain loops in float64, gradients, temporal encoding and bad shapes."""

import math

import pytest
import torch
from torch.func import functional_call

import qkv
from qkv.errors import ConfigError, ShapeError
from qkv.models.memory.memory_network import MemoryNetwork, MemoryNetworkConfig

TYINGS = pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
SENTENCES = [[[3, 4, 5, 6], [7, 3], [8, 5, 3]], [[9, 4, 4]], []]  # word ids of three stories; one has no sentence
QUESTIONS = [[5, 3], [4], [10, 3, 6]]


def build(**config: object) -> MemoryNetwork:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "labels": 4, "dim": 5, "max_memories": 4}
    model = MemoryNetwork(MemoryNetworkConfig(**(sizes | config))).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model.eval()


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    story = torch.zeros(3, 3, 4, dtype=torch.long)
    question = torch.zeros(3, 3, dtype=torch.long)
    for row, sentences in enumerate(SENTENCES):
        for number, words in enumerate(sentences):
            story[row, number, : len(words)] = torch.tensor(words)
        question[row, : len(QUESTIONS[row])] = torch.tensor(QUESTIONS[row])
    return story, question, torch.tensor([len(sentences) for sentences in SENTENCES])


def encoded(words: list[int], matrix: list[list[float]], positions: bool) -> list[float]:
    """sum_j l_j * X x_j, with j and k from 1."""
    size, count = len(matrix[0]), len(words)
    vector = [0.0] * size
    for j, word in enumerate(words, start=1):
        for k in range(1, size + 1):
            weight = (1 - j / count) - (k / size) * (1 - 2 * j / count) if positions else 1.0
            vector[k - 1] += weight * matrix[word][k - 1]
    return vector


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def added(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def answered(
    model: MemoryNetwork, story: list[list[int]], question: list[int]
) -> tuple[list[float], list[list[float]]]:
    """Logits and the weights of each hop, in plain Python."""
    config, d = model.config, model.config.dim
    adjacent, positions = config.tying == "adjacent", config.position_encoding
    matrices = [part.tolist() for part in model.embed.weight.split(d, dim=1)]
    times = [part.tolist() for part in model.temporal.weight.split(d, dim=1)]
    u = encoded(question, matrices[0 if adjacent else 2], positions)
    hop_weights = []
    for hop in range(config.hops):
        keys, values = (
            [
                added(encoded(words, matrices[number], positions), times[number][len(story) - i])
                for i, words in enumerate(story, start=1)
            ]
            for number in ((hop, hop + 1) if adjacent else (0, 1))
        )
        exponentials = [math.exp(dot(u, key)) for key in keys]
        p = [value / sum(exponentials) for value in exponentials]
        hop_weights.append(p)
        if not adjacent:
            u = [dot(row, u) for row in model.state_proj.weight.tolist()]
        for weight, value in zip(p, values, strict=True):
            u = added(u, [weight * x for x in value])
    return [dot(row, u) for row in model.readout.weight.tolist()], hop_weights


@TYINGS
@pytest.mark.parametrize("positions", [True, False])
def test_logits_and_weights_equal_plain_loops(tying, positions):
    model = build(tying=tying, position_encoding=positions, hops=3)
    with qkv.watch(model) as records:
        logits = model(*padded())
    assert [*records] == ["hops.0", "hops.1", "hops.2"]
    for row, (story, question) in enumerate(zip(SENTENCES, QUESTIONS, strict=True)):
        expected, weights = answered(model, story, question)
        assert logits[row].tolist() == pytest.approx(expected, rel=1e-9)
        for record, hop in zip(records.values(), weights, strict=True):
            assert record.weights[row, 0, 0].tolist() == pytest.approx(hop + [0.0] * (3 - len(story)), abs=1e-9)


@TYINGS
def test_gradients_equal_finite_differences(tying):
    model, batch = build(tying=tying, hops=2), padded()
    names = [name for name, _ in model.named_parameters()]

    def run(*values: torch.Tensor) -> torch.Tensor:
        return functional_call(model, dict(zip(names, values, strict=True)), batch)

    values = tuple(parameter.detach().requires_grad_() for parameter in model.parameters())
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_adjacent_tying_shares_embeddings_and_layerwise_tying_is_independent_of_the_hops():
    sizes = {tying: build(tying=tying, hops=3).embed.weight.shape[1] for tying in ("adjacent", "layerwise")}
    assert sizes == {"adjacent": 4 * 5, "layerwise": 3 * 5}
    assert build(tying="layerwise", hops=9).embed.weight.shape[1] == 3 * 5


def test_word_order_matters_only_with_position_encoding():
    story, question, lengths = padded()
    swapped = story.clone()
    swapped[0, 0, :2] = story[0, 0, [1, 0]]
    with_order, without = build(), build(position_encoding=False)
    assert not torch.allclose(with_order(story, question, lengths)[0], with_order(swapped, question, lengths)[0])
    torch.testing.assert_close(without(story, question, lengths), without(swapped, question, lengths))


def test_gaps_in_time_do_not_depend_on_padding():
    model = build(time_noise=0.9, max_memories=20).train()  # 0.9: nearly every sentence has a gap
    lengths = torch.tensor([1, 2, 12])
    for seed in range(20):
        torch.manual_seed(seed)
        ages = model._ages(lengths, 12)
        for row, length in enumerate(lengths.tolist()):
            assert ages[row, length - 1] <= 1  # at most the gap after the latest sentence
            assert ages[row, 0] <= 2 * length - 1


def test_time_noise_leaves_gaps_in_training_only():
    model, lengths = build(time_noise=0.5), torch.tensor([3, 1])
    exact = model._ages(lengths, 3)
    assert exact[0].tolist() == [2, 1, 0]
    assert exact[1, 0] == 0
    torch.manual_seed(0)
    noisy = torch.stack([model.train()._ages(lengths, 3)[0] for _ in range(50)])
    assert (noisy >= exact[0]).all()
    assert (noisy[:, :-1] > noisy[:, 1:]).logical_or(noisy[:, :-1] == 3).all()  # ordered, up to max_memories - 1
    assert noisy.unique(dim=0).shape[0] > 2
    assert build(time_noise=0.0).train()._ages(lengths, 3).equal(exact)


@pytest.mark.parametrize(
    ("story", "question"), [((2, 3), (2, 3)), ((2, 3, 4), (1, 3)), ((2, 5, 4), (2, 3)), ((2, 3, 4), (2,))]
)
def test_wrong_shapes_are_rejected(story, question):
    with pytest.raises((ShapeError, TypeError)):  # the latter of the run-time check of annotations
        build()(torch.ones(story, dtype=torch.long), torch.ones(question, dtype=torch.long))


@pytest.mark.parametrize("options", [{"tying": "none"}, {"hops": 0}, {"label_names": ("a",)}, {"time_noise": 1.0}])
def test_invalid_configs_are_rejected(options):
    with pytest.raises(ConfigError):
        MemoryNetworkConfig(**options)
