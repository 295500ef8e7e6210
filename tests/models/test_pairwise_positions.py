"""Relative positions in models: along the sentence (Shaw et al. 2018) and along trees (Wang et al. 2019).

Every self-attention of a model is recomputed from its input by the papers' equations, one pair of words at a time:

    e_ij = q_i . (k_j + a^K_ij) / sqrt(d),   z_i = sum_j softmax_j(e_i) (v_j + a^V_ij)
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.attention import TreePositions, Trees
from qkv.attention.relative import RelativeEmbeddings
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.hub.families import marian
from qkv.hub.families.bert import FAMILY
from qkv.hub.released import write_released
from qkv.models import bert, transformer
from qkv.nn.multi_head import MultiHeadAttention

LENGTHS = torch.tensor([6, 4])
TOKENS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 4, 3, 0, 0]])
WORD_LIST = torch.tensor([[0, 1, 1, 2, 3, 0], [0, 1, 2, 0, 0, 0]])  # word of each token; the first word has two tokens
HEADS = torch.tensor([[2, 0, 2], [0, 1, 0]])


def trees() -> TreePositions:
    return TreePositions.from_tokens(Trees.from_heads(HEADS, torch.tensor([3, 2])), WORD_LIST)


def make_bert(**changes: Any) -> bert.Bert:
    torch.manual_seed(3)
    sizes = {"dim": 12, "heads": 3, "layers": 2, "ffn_dim": 20, "max_length": 16}
    config = bert.BertConfig(vocab_size=13, **{**sizes, "dropout": 0.0, "attention_dropout": 0.0, **changes})
    return randomised(bert.Bert(config))


def make_transformer(**changes: Any) -> transformer.Transformer:
    torch.manual_seed(5)
    sizes = {"dim": 12, "heads": 3, "encoder_layers": 2, "decoder_layers": 1, "ffn_dim": 20, "max_length": 16}
    return randomised(
        transformer.Transformer(
            transformer.TransformerConfig(
                source_vocab_size=13, target_vocab_size=13, **{**sizes, "dropout": 0.0, **changes}
            )
        )
    )


def randomised(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return model.double().eval()


@contextmanager
def recorded(layer: MultiHeadAttention) -> Iterator[list[Tensor]]:
    """Record the input and output of a layer."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, inputs, outputs: seen.extend((inputs[0], outputs[0])))
    yield seen
    handle.remove()


def by_pairs(
    layer: MultiHeadAttention,
    term: RelativeEmbeddings,
    x: Tensor,
    distance: Callable[[int, int, int], int],
    visible: Callable[..., bool],
) -> Tensor:
    heads = layer.heads
    rows = []
    for b, row in enumerate(x):
        parts = [(layer.qkv_proj.weight @ h + layer.qkv_proj.bias).view(3, heads, -1) for h in row]
        for i in range(len(row)):
            read = []
            for head in range(heads):
                keys = [j for j in range(len(row)) if visible(b, i, j)]
                at = [max(-16, min(16, distance(b, i, j))) + 16 for j in keys]
                scores = torch.stack([
                    parts[i][0, head] @ (parts[j][1, head] + term.key[r]) / math.sqrt(layer.head_dim)
                    for j, r in zip(keys, at, strict=True)
                ])  # fmt: skip
                values = torch.stack([parts[j][2, head] + term.value[r] for j, r in zip(keys, at, strict=True)])
                read.append(scores.softmax(dim=0) @ values)
            rows.append(layer.out_proj(torch.cat(read)))
    return torch.stack(rows).view_as(x)


def not_padding(b: int, i: int, j: int) -> bool:
    return j < int(LENGTHS[b])


def sequence_distance(b: int, i: int, j: int) -> int:
    return j - i


def tree_distance(b: int, i: int, j: int) -> int:
    return DISTANCES[b][i][j]


def test_relative_positions_of_a_transformer_match_shaw():
    torch.manual_seed(1)
    sizes = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 8}
    model = randomised(
        transformer.Transformer(
            transformer.TransformerConfig(
                source_vocab_size=10, target_vocab_size=10, position="relative", dropout=0.0, **sizes
            )
        )
    )
    source = torch.randint(10, (2, 20))  # longer than the maximum relative distance
    encoder_layer, decoder_layer = model.encoder[0].attention, model.decoder[0].self_attention
    with recorded(encoder_layer) as encoded, recorded(decoder_layer) as decoded:
        model(source, TOKENS, torch.tensor([20, 4]))
    actual = by_pairs(
        encoder_layer, encoder_layer.attend.position, encoded[0], sequence_distance, lambda b, i, j: j < (20, 4)[b]
    )
    torch.testing.assert_close(encoded[1], actual, rtol=0, atol=1e-10)
    actual = by_pairs(
        decoder_layer, decoder_layer.attend.position, decoded[0], sequence_distance, lambda b, i, j: j <= i
    )
    torch.testing.assert_close(decoded[1], actual, rtol=0, atol=1e-10)


def test_relative_positions_of_bert_match_shaw():
    model = make_bert(position="relative")
    for block in model.encoder:
        with recorded(block.attention) as seen:
            model(TOKENS, lengths=LENGTHS)
        expected = by_pairs(block.attention, block.attention.attend.position, seen[0], sequence_distance, not_padding)
        torch.testing.assert_close(seen[1], expected, rtol=0, atol=1e-10)


# Of the sentence "a|a b c", where b is the root, and of "a b", where a is: steps from the marks above the root; and in
# the paper's words, depth(i) - depth(j) where one word is above the other, else depth(i) + depth(j) and a sign.
DEPTHS = [[0, 2, 2, 1, 2, 0], [0, 1, 2, 0, 0, 0]]
DISTANCES = [
    [[0, -2, -2, -1, -2, 0],
     [2, 0, 0, 1, -2, 2],
     [2, 0, 0, 1, -2, 2],
     [1, -1, -1, 0, -1, 1],
     [2, 2, 2, 1, 0, 2],
     [0, -2, -2, -1, -2, 0]],
    [[0, -1, -2, 0, 0, 0],
     [1, 0, -1, 1, 1, 1],
     [2, 1, 0, 2, 2, 2],
     [0, -1, -2, 0, 0, 0],
     [0, -1, -2, 0, 0, 0],
     [0, -1, -2, 0, 0, 0]],
]  # fmt: skip


def test_tokens_have_the_tree_positions_of_their_words():
    assert trees().depth.tolist() == DEPTHS
    assert trees().distance.tolist() == DISTANCES


@pytest.mark.parametrize("tree", ["distance", "both"])
@pytest.mark.parametrize("position", ["learned", "none"])
def test_tree_distances_of_bert_match_wang(tree, position):
    model = make_bert(position=position, tree=tree)
    for block in model.encoder:
        with recorded(block.attention) as seen:
            model(TOKENS, lengths=LENGTHS, tree=trees())
        expected = by_pairs(block.attention, block.distances.relative, seen[0], tree_distance, not_padding)
        torch.testing.assert_close(seen[1], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tree", ["depth", "both"])
@pytest.mark.parametrize("position", ["learned", "none"])
def test_depths_are_added_to_the_embeddings(tree, position):
    model, layer_inputs = make_bert(position=position, tree=tree), []
    model.embed.norm.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    model(TOKENS, lengths=LENGTHS, tree=trees())
    embed = model.embed
    expected = embed.tokens.weight[TOKENS] + embed.segments.weight[0] + embed.depths.embed.weight[torch.tensor(DEPTHS)]
    if position == "learned":
        expected = expected + embed.positions.weight[:6]
    torch.testing.assert_close(layer_inputs[0], expected)


def test_tree_depths_are_clipped():
    model = make_bert(tree="depth", max_length=64)
    chain = TreePositions.from_tokens(Trees.from_heads(torch.arange(50)[None]), torch.arange(1, 51)[None])
    assert int(chain.depth.max()) == 50
    flat = TreePositions(chain.depth.clamp(max=32), chain.distance)
    tokens = torch.randint(13, (1, 50))
    assert model(tokens, tree=chain).equal(model(tokens, tree=flat))


def test_gradients_of_tree_positions_match_finite_differences():
    model = make_bert(tree="both", head="tagger", labels=3, layers=1)

    def value() -> Tensor:
        logits = model.logits(model(TOKENS, lengths=LENGTHS, tree=trees()))
        return (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()

    value().backward()
    new = {name: weight for name, weight in model.named_parameters() if "depths" in name or "distances" in name}
    assert len(new) == 3
    for name, parameter in new.items():
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * direction
            above = value()
            parameter -= 2e-5 * direction
            below = value()
            parameter += 1e-5 * direction
        assert parameter.grad.abs().max() > 0
        assert float((parameter.grad * direction).sum()) == pytest.approx(float(above - below) / 2e-5, rel=1e-4), name


def test_without_positions_bert_ignores_the_order():
    model = make_bert(position="none")
    torch.testing.assert_close(model(TOKENS[:1]), model(TOKENS[:1].flip(1)).flip(1))


def test_a_bert_with_trees_is_saved_and_loaded_bit_for_bit(tmp_path: Path):
    model = make_bert(tree="both", position="none", head="tagger").float()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again(TOKENS, lengths=LENGTHS, tree=trees()).equal(model(TOKENS, lengths=LENGTHS, tree=trees()))


def test_a_bert_with_trees_cannot_be_exported_to_transformers(tmp_path: Path):
    with pytest.raises(InputError, match="tree"):
        write_released(make_bert(tree="depth", head="tagger"), FAMILY, tmp_path)
    assert not any(tmp_path.iterdir())


def test_attention_with_trees_can_be_watched():
    model = make_bert(tree="distance")
    with qkv.watch(model, layers=[0]) as seen:
        model(TOKENS, lengths=LENGTHS, tree=trees())
    weights = seen["encoder.0"].weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 6, dtype=torch.float64))
    assert weights[1, ..., 4:].abs().max() == 0


def test_bert_requires_trees_only_if_configured():
    with pytest.raises(InputError, match="needs dependency trees"):
        make_bert(tree="depth")(TOKENS)
    with pytest.raises(InputError, match="does not take"):
        make_bert()(TOKENS, tree=trees())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tree": "deep"}, "tree = 'deep'"),
        (
            {"tree": "depth", "head": "classifier"},
            "tree 'depth' needs",
        ),
        ({"tree": "both", "position": "relative"}, "tree 'both' cannot be combined"),
    ],
)
def test_invalid_tree_configs_raise(changes, words):
    with pytest.raises(InputError, match=words):
        make_bert(**changes)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_tree_positions_of_a_transformer_match_wang(norm):
    model = make_transformer(tree="both", position="learned", norm=norm)
    embed = model.source_embed
    x = math.sqrt(12) * embed.tokens.weight[TOKENS] + embed.positions.weight[:6]
    x = x + embed.depths.embed.weight[torch.tensor(DEPTHS)]
    for block in model.encoder:
        before, after = (block.attention_norm, block.ffn_norm), (lambda y: y, lambda y: y)
        if norm == "post":
            before, after = after, before
        x = after[0](x + by_pairs(block.attention, block.distances.relative, before[0](x), tree_distance, not_padding))
        wide = (block.ffn.up_proj.weight @ before[1](x)[..., None])[..., 0] + block.ffn.up_proj.bias
        x = after[1](x + block.ffn.down_proj(wide.clamp(min=0)))
    actual = model.encode(TOKENS, LENGTHS, tree=trees()).hidden
    torch.testing.assert_close(actual, model.encoder_norm(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("tree", "tables"), [("none", 0), ("depth", 1), ("distance", 4), ("both", 5)])
def test_tree_embeddings_exist_in_the_encoder_only(tree, tables):
    plain = {name: weight.shape for name, weight in make_transformer().state_dict().items()}
    actual = {name: weight.shape for name, weight in make_transformer(tree=tree).state_dict().items()}
    assert actual.items() >= plain.items()
    new = actual.keys() - plain.keys()
    assert len(new) == tables
    assert all(name.startswith(("source_embed.depths.", "encoder.")) for name in new)


def test_gradients_of_a_transformer_with_trees_match_finite_differences():
    model = make_transformer(tree="both", encoder_layers=1, tie_embeddings=False)

    def value() -> Tensor:
        logits = model(TOKENS, TOKENS, LENGTHS, tree=trees())
        return (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()

    value().backward()
    parameters = dict(model.named_parameters())
    assert all(parameter.grad.abs().max() > 0 for parameter in parameters.values())
    new = [name for name in parameters if "depths" in name or "distances" in name]
    assert len(new) == 3
    for names in ([new[0]], [new[1]], [new[2]], parameters.keys() - {*new}):
        directions = {name: torch.randn_like(parameters[name]) for name in names}
        values = []
        for step in (1e-5, -2e-5, 1e-5):
            with torch.no_grad():
                for name, direction in directions.items():
                    parameters[name] += step * direction
                values.append(value())
        actual = sum(float((parameters[name].grad * direction).sum()) for name, direction in directions.items())
        assert actual == pytest.approx(float(values[0] - values[1]) / 2e-5, rel=1e-4)


def test_a_transformer_with_trees_is_saved_and_loaded_bit_for_bit(tmp_path: Path):
    model = make_transformer(tree="both").float()
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again(TOKENS, TOKENS, LENGTHS, tree=trees()).equal(model(TOKENS, TOKENS, LENGTHS, tree=trees()))


def test_a_config_without_the_tree_key_still_loads(tmp_path: Path):
    model = make_transformer().float()
    save_model(model, None, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("tree") == "none"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path)(TOKENS, TOKENS, LENGTHS).equal(model(TOKENS, TOKENS, LENGTHS))


def test_a_transformer_with_trees_cannot_be_exported_to_marian(tmp_path: Path):
    model = make_transformer(tree="depth", norm="post", position="sinusoidal_halves", begin_token=2)
    with pytest.raises(InputError, match="tree"):
        write_released(model, marian.FAMILY, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_transformer_requires_trees_only_if_configured():
    with pytest.raises(InputError, match="needs dependency trees"):
        make_transformer(tree="distance")(TOKENS, TOKENS)
    with pytest.raises(InputError, match="does not take"):
        make_transformer()(TOKENS, TOKENS, tree=trees())
    with pytest.raises(InputError, match="tree = 'deep'"):
        make_transformer(tree="deep")
    with pytest.raises(InputError, match="cannot be combined"):
        make_transformer(tree="both", position="relative")


@pytest.mark.compiled
def test_compiled_model_with_trees_matches_eager():
    model = make_bert(tree="both").float()
    positions = trees()
    expected = model(TOKENS, lengths=LENGTHS, tree=positions)

    def run(tokens: Tensor, depth: Tensor, distance: Tensor) -> Tensor:
        return model(tokens, lengths=LENGTHS, tree=TreePositions(depth, distance))

    actual = torch.compile(run, fullgraph=True, backend="aot_eager")(TOKENS, positions.depth, positions.distance)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
