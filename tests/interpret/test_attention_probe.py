"""Attention probes: the tokens and the attention weights of every kind of model."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from qkv.attention import TreePositions, Trees, watch
from qkv.cli.main import app
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.interpret import attention_probe
from qkv.interpret.attention_probe import AttentionProbe
from qkv.interpret.image_probe import CLASS, MEAN, PictureProbe
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.linformer import Linformer, LinformerConfig
from qkv.models.lstmn import LSTMN, LSTMNConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.tokenizers import CharTokenizer
from qkv.tokenizers.characters import CharacterIds
from qkv.visualize import over_patches
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

TEXT = "The cat sat  on a mat!"
TOKENIZER = CharTokenizer.train([TEXT])


def by_hand(block, x):
    """softmax(q k^T / sqrt(d)) of each head."""
    query, key, _ = block.attention.qkv_proj(x).chunk(3, dim=-1)
    heads = 2
    query, key = (part.unflatten(-1, (heads, -1)).movedim(-2, 0).double() for part in (query, key))
    return query @ key.mT / math.sqrt(query.shape[-1])


def test_maps_of_a_text_encoder_include_special_tokens(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    model = tiny_bert("classifier", labels=2, label_names=("bad", "good"))
    probe = AttentionProbe(saved(model, tokenizer, tmp_path / "model"), device="cpu")
    answer = probe(TEXT)
    tokens = torch.tensor([tokenizer.encode(TEXT, add_special_tokens=True)])
    with torch.no_grad():
        first = by_hand(model.encoder[0], model.embed(tokens, None)[0]).softmax(dim=-1)
        log_p = model.logits(model(tokens))[0].log_softmax(dim=-1)
    assert [attention_map.layer for attention_map in answer.attention] == ["encoder.0", "encoder.1"]
    assert answer.attention[0].rows == answer.attention[0].columns
    assert answer.attention[0].rows == ("[CLS]", "The", "cat", "sat", "on", "a", "mat", "!", "[SEP]")
    np.testing.assert_allclose(answer.attention[0].weights, first, atol=1e-5)
    assert answer.text == ("bad", "good")[int(log_p.argmax())]
    assert answer.score == pytest.approx(float(log_p.max()), abs=1e-5)
    plain = AttentionProbe(tiny_bert("masked_lm"), tokenizer)(TEXT)
    assert plain.text == ""
    assert math.isnan(plain.score)


def test_maps_of_a_language_model_are_causal():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=len(TOKENIZER), dim=16, heads=2, layers=2, max_length=64)).eval()
    answer = AttentionProbe(model, TOKENIZER)(TEXT)
    tokens = torch.tensor([TOKENIZER.encode(TEXT)])
    with torch.no_grad():
        block = model.blocks[0]
        embedded = model.positions.add_to(model.embed(tokens), 0)
        scores = by_hand(block, block.attention_norm(embedded)[0])
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        log_p = model(tokens)[0].log_softmax(dim=-1)
    assert answer.attention[0].rows == answer.attention[0].columns == tuple(TEXT)
    np.testing.assert_allclose(
        answer.attention[0].weights, scores.masked_fill(future, -torch.inf).softmax(-1), atol=1e-5
    )
    token_log_p = [float(log_p[position, token]) for position, token in enumerate(tokens[0, 1:].tolist())]
    assert answer.score == pytest.approx(sum(token_log_p) / len(token_log_p), abs=1e-5)
    assert math.isnan(AttentionProbe(model, TOKENIZER)("c").score)


@pytest.mark.parametrize("span", [0, 5])
def test_weights_of_a_recurrent_model_are_aligned_to_tokens(span):
    torch.manual_seed(0)
    model = LSTMN(LSTMNConfig(vocab_size=len(TOKENIZER), embedding_dim=8, hidden_dim=8, span=span)).eval()
    weights = AttentionProbe(model, TOKENIZER)(TEXT).attention[0].weights[0]
    length = len(TEXT)
    assert weights.shape == (length, length)
    for row in range(length):
        expected = range(max(0, row - span) if span else 0, row)
        assert [*np.flatnonzero(weights[row])] == [*expected]
    np.testing.assert_allclose(weights[1:].sum(axis=1), 1.0, atol=1e-5)
    assert AttentionProbe(model, TOKENIZER)("c").attention[0].weights.tolist() == [[[0.0]]]


def test_attention_pooling_has_one_row():
    torch.manual_seed(0)
    config = ElmoConfig(
        head="classifier", labels=2, label_names=("bad", "good"), pooling="attention", dim=8, hidden_dim=8, layers=1,
        max_characters=8, filters=((1, 4),), highway_layers=1, character_dim=4,
    )  # fmt: skip
    model = Elmo(config).eval()
    answer = AttentionProbe(model)("A good film, isn't it?")
    (attention_map,) = answer.attention
    assert attention_map.rows == (answer.text,) == ("good",)
    assert attention_map.columns == ("A", "good", "film", ",", "is", "n't", "it", "?")
    pool = model.task.pool
    with torch.no_grad():
        hidden = model(CharacterIds(8)([["A", "good", "film", ",", "is", "n't", "it", "?"]]))[0]
        expected = (pool.key(hidden).tanh() @ pool.query).softmax(dim=0)
    np.testing.assert_allclose(attention_map.weights[0, 0], expected, atol=1e-5)
    assert answer.text in ("bad", "good")


def test_columns_of_a_linformer_are_mixtures_of_tokens():
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=len(TOKENIZER), head="classifier", dim=8, heads=2, layers=1, max_length=40, rank=5
    )
    answer = AttentionProbe(Linformer(config), TOKENIZER, device="cpu")([TEXT])[0]
    (attention_map,) = answer.attention
    assert attention_map.columns == tuple(f"mixture {number}" for number in range(1, 6))
    assert attention_map.weights.shape == (2, len(attention_map.rows), 5)
    np.testing.assert_allclose(attention_map.weights.sum(-1), 1.0, rtol=1e-5)


def test_texts_are_truncated_to_max_length(tmp_path):
    probe = AttentionProbe(tiny_bert(None, max_length=6), tiny_tokenizer(tmp_path))
    assert probe.max_tokens == 4
    assert probe.too_long(["a cat", TEXT]) == [2]
    assert probe(TEXT).attention[0].rows == ("[CLS]", "The", "cat", "sat", "on", "[SEP]")
    assert [len(answer.notes) for answer in probe(["the cat sat on", "the cat sat on the mat"])] == [0, 1]
    assert "first 4 tokens" in probe("the cat sat on the mat").notes[0]


def test_layers_beyond_the_weight_budget_are_dropped(tmp_path, monkeypatch):
    probe = AttentionProbe(tiny_bert(None), tiny_tokenizer(tmp_path))
    monkeypatch.setattr(attention_probe, "MAX_WEIGHTS", 2 * 2 * 4**2)  # two layers of two heads and 4 tokens
    assert [len(item.attention) for item in probe(["a cat"])] == [2]
    kept = probe(["a cat", "a dog"])
    assert [[item.layer for item in answer.attention] for answer in kept] == [["encoder.0"]] * 2
    kept = probe(["a cat", "a dog"], "encoder.1")
    assert [[item.layer for item in answer.attention] for answer in kept] == [["encoder.1"]] * 2
    with pytest.raises(InputError, match=r"'encoder\.2'"):
        probe(["a cat"], "encoder.2")


def test_models_and_inputs_without_attention_are_errors(tmp_path):
    with pytest.raises(InputError, match="no attention layers"):
        AttentionProbe(RNNLM(RNNLMConfig(vocab_size=9)), TOKENIZER)
    with pytest.raises(InputError, match="tokenizer"):
        AttentionProbe(tiny_bert(None))
    vit = ViT(ViTConfig(height=4, width=4, patch=4, dim=8, layers=1, heads=1, ffn_dim=8))
    with pytest.raises(InputError, match="ViT"):
        AttentionProbe(saved(vit, None, tmp_path / "vit"), device="cpu")
    probe = AttentionProbe(tiny_bert(None), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match="input 2"):
        probe(["a", " "])
    assert probe([]) == []


def test_maps_of_a_vision_transformer_are_over_patches(tmp_path: Path):
    torch.manual_seed(0)
    config = ViTConfig(
        classes=2,
        label_names=("cat", "dog"),
        height=8,
        width=12,
        channels=1,
        patch=4,
        dim=16,
        layers=2,
        heads=2,
        ffn_dim=8,
    )
    model = ViT(config).eval()
    grey = np.arange(8 * 12, dtype=np.uint8).reshape(8, 12)
    Image.fromarray(grey).save(tmp_path / "a.png")
    answer = PictureProbe(model)(tmp_path / "a.png")
    images = torch.from_numpy(grey)[None, None].float() / 127.5 - 1
    with torch.no_grad():
        patches, _ = model.patch_embed(images)
        z = torch.cat((model.class_token, patches), dim=1) + model.positions.weight
        weights = by_hand(model.encoder[0], model.encoder[0].attention_norm(z)[0]).softmax(dim=-1)
        log_p = model(images)[0].log_softmax(dim=-1)
    first = answer.attention[0]
    assert first.columns == (CLASS, "1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    assert first.rows == (*first.columns, MEAN)
    np.testing.assert_allclose(first.weights[:, :-1], weights, atol=1e-5)
    np.testing.assert_allclose(first.weights[:, -1], weights[:, 1:].mean(dim=1), atol=1e-5)
    assert (answer.source, answer.text) == ("a.png", config.label_names[int(log_p.argmax())])
    assert answer.score == pytest.approx(float(log_p.max()), abs=1e-5)
    assert answer.grid == (2, 3)
    assert answer.pixels.shape == (8, 12, 3)
    assert (answer.pixels == grey[:, :, None]).all()


def test_maps_of_a_mean_over_patches_begin_with_it(tmp_path: Path):
    torch.manual_seed(0)
    sizes = {"height": 8, "width": 12, "channels": 1, "patch": 4, "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 8}
    model = ViT(ViTConfig(classes=2, pool="mean", **sizes)).eval()
    Image.fromarray(np.arange(8 * 12, dtype=np.uint8).reshape(8, 12)).save(tmp_path / "a.png")
    answer = PictureProbe(model)(tmp_path / "a.png")
    for shown in (*answer.attention, answer.rollout):
        assert shown.rows == (MEAN, *shown.columns[1:], CLASS)
        np.testing.assert_allclose(shown.weights[:, 0], shown.weights[:, 1:-1].mean(axis=1), atol=1e-6)
        assert not np.allclose(shown.weights[:, 0], shown.weights[:, -1])
    over_grid = answer.attention[0].weights[:, 0, 1:].reshape(2, 2, 3)
    np.testing.assert_array_equal(over_patches(answer, "encoder.0").weights, over_grid)


def test_maps_of_a_tree_model_use_the_heads_of_a_sentence(tmp_path):
    model, tokenizer = tiny_bert("tagger", labels=2, tree="both"), tiny_tokenizer(tmp_path)
    probe = AttentionProbe(model, tokenizer)
    words = ("the", "cats", "sat")
    answers = {heads: probe(Tagged(words, ("", "", ""), heads)) for heads in ((2, 3, 0), (3, 1, 0))}
    pieces = ("[CLS]", "the", "cat", "s", "sat", "[SEP]")
    for heads, answer in answers.items():
        assert (answer.source, answer.attention[0].rows, answer.attention[0].columns) == (
            "the cats sat",
            pieces,
            pieces,
        )
        ids = torch.tensor([tokenizer.encode("the cats sat", add_special_tokens=True)])
        trees = Trees.from_heads(torch.tensor([heads]))
        with torch.no_grad(), watch(model) as record:
            model(ids, tree=TreePositions.from_tokens(trees, torch.tensor([[0, 1, 2, 2, 3, 0]])))
        for attention_map in answer.attention:
            torch.testing.assert_close(torch.from_numpy(attention_map.weights), record[attention_map.layer].weights[0])
    assert not np.allclose(*(answer.attention[0].weights for answer in answers.values()))
    with pytest.raises(InputError, match="input 1 has no head"):
        probe("the cats sat")
    parsed = tmp_path / "x.conllu"
    parsed.write_text("".join(f"{n}\t{word}\t_\t_\t_\t_\t{head}\t_\t_\t_\n" for n, word, head in
                              ((1, "the", 2), (2, "cats", 3), (3, "sat", 0))))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "model")
    page = ["view", str(folder), "--document", str(parsed), "--page", str(tmp_path / "page.html"), "--device", "cpu"]
    assert "cat" in CliRunner().invoke(app, page, catch_exceptions=False).stdout


def test_a_mask_is_one_token(tmp_path):
    probe = AttentionProbe(tiny_bert("masked_lm", max_length=6), tiny_tokenizer(tmp_path))
    assert probe.too_long(["the [MASK] sat on", "the [MASK] sat on the"]) == [2]
    answer = probe("the [MASK] sat on the [MASK]")  # the second mask is truncated
    assert answer.attention[0].columns == ("[CLS]", "the", "[MASK]", "sat", "on", "[SEP]")
    (prediction,) = answer.predictions
    assert prediction.part == "mask 1"
    assert answer.text.endswith(" sat on the [MASK]")
