"""Observers: the tokens that were read, and the weights with which each was, of every model that reads."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from qkv.attention import TreePlaces, Trees, watch
from qkv.cli.main import app
from qkv.data.characters import Characters
from qkv.data.tagged import Tagged
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.models.elmo import Config as ElmoConfig
from qkv.models.elmo import Elmo
from qkv.models.gpt2 import GPT2
from qkv.models.gpt2 import Config as GPT2Config
from qkv.models.linformer import Config as LinformerConfig
from qkv.models.linformer import Linformer
from qkv.models.lstmn import LSTMN
from qkv.models.lstmn import Config as LSTMNConfig
from qkv.models.rnn_lm import RNNLM
from qkv.models.rnn_lm import Config as RNNConfig
from qkv.models.vit import Config as ViTConfig
from qkv.models.vit import ViT
from qkv.tasks import observer as observer_module
from qkv.tasks.observer import Observer
from qkv.tasks.picture_observer import CLASS, MEAN, PictureObserver
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

TEXT = "The cat sat  on a mat!"
VOCABULARY = Vocabulary.train([TEXT], "char")


def by_hand(block, x):
    """softmax(q k^T / sqrt(d)) of each head."""
    query, key, _ = block.attention.project(x).chunk(3, dim=-1)
    heads = 2
    query, key = (part.unflatten(-1, (heads, -1)).movedim(-2, 0).double() for part in (query, key))
    return query @ key.mT / math.sqrt(query.shape[-1])


def test_a_text_encoder_is_seen_between_its_marks_in_every_layer_and_head(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    model = tiny_bert("classifier", labels=2, label_names=("bad", "good"))
    observer = Observer(saved(model, tokenizer, tmp_path / "model"), device="cpu")
    answer = observer(TEXT)
    tokens = torch.tensor([tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        first = by_hand(model.encoder[0], model.embed(tokens, None)[0]).softmax(dim=-1)
        log_p = model.logits(model(tokens))[0].log_softmax(dim=-1)
    assert [one.layer for one in answer.maps] == ["encoder.0", "encoder.1"]
    assert answer.maps[0].rows == answer.maps[0].columns
    assert answer.maps[0].rows == ("[CLS]", "The", "cat", "sat", "on", "a", "mat", "!", "[SEP]")
    np.testing.assert_allclose(answer.maps[0].weights, first, atol=1e-5)
    assert answer.text == ("bad", "good")[int(log_p.argmax())]
    assert answer.score == pytest.approx(float(log_p.max()), abs=1e-5)
    plain = Observer(tiny_bert("masked_lm"), tokenizer)(TEXT)
    assert plain.text == ""
    assert math.isnan(plain.score)


def test_a_language_model_is_seen_looking_back():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(len(VOCABULARY), dim=16, heads=2, layers=2, max_length=64)).eval()
    answer = Observer(model, VOCABULARY)(TEXT)
    tokens = torch.tensor([VOCABULARY.encode(TEXT).ids])
    with torch.no_grad():
        block = model.blocks[0]
        scores = by_hand(block, block.attention_norm(model._embedded(tokens, 0))[0])
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        log_p = model(tokens)[0].log_softmax(dim=-1)
    assert answer.maps[0].rows == answer.maps[0].columns == tuple(TEXT)
    np.testing.assert_allclose(answer.maps[0].weights, scores.masked_fill(future, -torch.inf).softmax(-1), atol=1e-5)
    following = [float(log_p[place, token]) for place, token in enumerate(tokens[0, 1:].tolist())]
    assert answer.score == pytest.approx(sum(following) / len(following), abs=1e-5)
    assert math.isnan(Observer(model, VOCABULARY)("c").score)


@pytest.mark.parametrize("span", [0, 5])
def test_a_model_that_reads_token_by_token_has_its_weights_where_the_tokens_are(span):
    torch.manual_seed(0)
    model = LSTMN(LSTMNConfig(len(VOCABULARY), embedding=8, hidden=8, span=span)).eval()
    weights = Observer(model, VOCABULARY)(TEXT).maps[0].weights[0]
    length = len(TEXT)
    assert weights.shape == (length, length)
    for row in range(length):
        seen = range(max(0, row - span) if span else 0, row)
        assert [*np.flatnonzero(weights[row])] == [*seen]
    np.testing.assert_allclose(weights[1:].sum(axis=1), 1.0, atol=1e-5)
    assert Observer(model, VOCABULARY)("c").maps[0].weights.tolist() == [[[0.0]]]


def test_where_a_text_is_made_one_vector_of_it_is_the_text_that_reads():
    torch.manual_seed(0)
    config = ElmoConfig(
        head="classifier", labels=2, label_names=("bad", "good"), pooling="attention", dim=8, hidden=8, layers=1,
        max_characters=8, filters=((1, 4),), highway_layers=1, character_dim=4,
    )  # fmt: skip
    model = Elmo(config).eval()
    answer = Observer(model, Characters(8))("A good film, isn't it?")
    (only,) = answer.maps
    assert only.rows == ("[text]",)
    assert only.columns == ("A", "good", "film", ",", "is", "n't", "it", "?")
    pool = model.task.pool
    with torch.no_grad():
        hidden = model(Characters(8)([["A", "good", "film", ",", "is", "n't", "it", "?"]]))[0]
        wanted = (pool.key(hidden).tanh() @ pool.query).softmax(dim=0)
    np.testing.assert_allclose(only.weights[0, 0], wanted, atol=1e-5)
    assert answer.text in ("bad", "good")


def test_a_linformer_is_seen_reading_mixtures_of_tokens():
    torch.manual_seed(0)
    config = LinformerConfig(len(VOCABULARY), head="classifier", dim=8, heads=2, layers=1, max_length=40, rank=5)
    seen = Observer(Linformer(config), VOCABULARY, device="cpu").observe([TEXT])[0]
    (shown,) = seen.maps
    assert shown.columns == tuple(f"mixture {number}" for number in range(1, 6))
    assert shown.weights.shape == (2, len(shown.rows), 5)
    np.testing.assert_allclose(shown.weights.sum(-1), 1.0, rtol=1e-5)


def test_texts_are_read_to_the_last_place_and_no_further(tmp_path):
    observer = Observer(tiny_bert(None, max_length=6), tiny_tokenizer(tmp_path))
    assert observer.room == 4
    assert observer.too_long(["a cat", TEXT]) == [2]
    assert observer(TEXT).maps[0].rows == ("[CLS]", "The", "cat", "sat", "on", "[SEP]")


def test_of_too_many_weights_the_first_layers_are_kept_and_the_one_that_was_named(tmp_path, monkeypatch):
    observer = Observer(tiny_bert(None), tiny_tokenizer(tmp_path))
    monkeypatch.setattr(observer_module, "MOST_WEIGHTS", 2 * 2 * 4**2)  # a layer of two heads and 4 tokens, twice over
    assert [len(one.maps) for one in observer.observe(["a cat"])] == [2]
    kept = observer.observe(["a cat", "a dog"])
    assert [[one.layer for one in answer.maps] for answer in kept] == [["encoder.0"]] * 2
    kept = observer.observe(["a cat", "a dog"], "encoder.1")
    assert [[one.layer for one in answer.maps] for answer in kept] == [["encoder.1"]] * 2
    with pytest.raises(InputError, match=r"no attention layer 'encoder\.2'; there is: encoder\.0, encoder\.1"):
        observer.observe(["a cat"], "encoder.2")


def test_what_cannot_be_seen_is_said(tmp_path):
    with pytest.raises(InputError, match="RNNLM: holds RNNLM, which has no attention to look at"):
        Observer(RNNLM(RNNConfig(9)), VOCABULARY)
    with pytest.raises(InputError, match="takes a tokenizer"):
        Observer(tiny_bert(None))
    vit = ViT(ViTConfig(height=4, width=4, patch=4, dim=8, layers=1, heads=1, feedforward=8))
    with pytest.raises(InputError, match="holds ViT, which is no text encoder or language model"):
        Observer(saved(vit, None, tmp_path / "vit"), device="cpu")
    observer = Observer(tiny_bert(None), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match="input 2 is empty"):
        observer.observe(["a", " "])
    assert observer.observe([]) == []


def test_a_vision_transformer_is_seen_looking_at_patches(tmp_path: Path):
    torch.manual_seed(0)
    config = ViTConfig(
        2, ("cat", "dog"), height=8, width=12, channels=1, patch=4, dim=16, layers=2, heads=2, feedforward=8
    )
    model = ViT(config).eval()
    grey = np.arange(8 * 12, dtype=np.uint8).reshape(8, 12)
    Image.fromarray(grey).save(tmp_path / "a.png")
    answer = PictureObserver(model)(tmp_path / "a.png")
    images = torch.from_numpy(grey)[None, None].float() / 127.5 - 1
    with torch.no_grad():
        patches, _ = model.patch_embed(images)
        z = torch.cat((model.class_token, patches), dim=1) + model.positions
        weights = by_hand(model.encoder[0], model.encoder[0].attention_norm(z)[0]).softmax(dim=-1)
        log_p = model(images)[0].log_softmax(dim=-1)
    first = answer.maps[0]
    assert first.columns == (CLASS, "1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    assert first.rows == (*first.columns, MEAN)
    np.testing.assert_allclose(first.weights[:, :-1], weights, atol=1e-5)
    np.testing.assert_allclose(first.weights[:, -1], weights.mean(dim=1), atol=1e-5)
    assert (answer.source, answer.text) == ("a.png", config.label_names[int(log_p.argmax())])
    assert answer.score == pytest.approx(float(log_p.max()), abs=1e-5)
    assert answer.grid == (2, 3)
    assert answer.pixels.shape == (8, 12, 3)
    assert (answer.pixels == grey[:, :, None]).all()


def test_a_model_of_trees_is_seen_with_the_heads_of_a_sentence(tmp_path):
    model, tokenizer = tiny_bert("tagger", labels=2, tree="both"), tiny_tokenizer(tmp_path)
    observer = Observer(model, tokenizer)
    words = ("the", "cats", "sat")
    seen = {heads: observer(Tagged(words, ("", "", ""), heads)) for heads in ((2, 3, 0), (3, 1, 0))}
    pieces = ("[CLS]", "the", "cat", "s", "sat", "[SEP]")
    for heads, answer in seen.items():
        assert (answer.source, answer.maps[0].rows, answer.maps[0].columns) == ("the cats sat", pieces, pieces)
        ids = torch.tensor([tokenizer.encode("the cats sat").ids])
        trees = Trees.of_heads(torch.tensor([heads]))
        with torch.no_grad(), watch(model) as record:
            model(ids, tree=TreePlaces.of_tokens(trees, torch.tensor([[0, 1, 2, 2, 3, 0]])))
        for one in answer.maps:
            torch.testing.assert_close(torch.from_numpy(one.weights), record[one.layer].weights[0])
    assert not np.allclose(*(answer.maps[0].weights for answer in seen.values()))
    with pytest.raises(InputError, match="input 1 has no head for each of its words"):
        observer("the cats sat")
    parsed = tmp_path / "x.conllu"
    parsed.write_text("".join(f"{n}\t{word}\t_\t_\t_\t_\t{head}\t_\t_\t_\n" for n, word, head in
                              ((1, "the", 2), (2, "cats", 3), (3, "sat", 0))))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "model")
    page = ["view", str(folder), "--document", str(parsed), "--out", str(tmp_path / "page.html"), "--device", "cpu"]
    assert "cat" in CliRunner().invoke(app, page, catch_exceptions=False).stdout
