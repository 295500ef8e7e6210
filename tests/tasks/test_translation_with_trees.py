"""Translation with dependency trees: tree positions of tokens in batches and answers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.hub import save_model
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.pipelines.inputs.tree_inputs import ParsedBatch, ParsedSentence, parsed_encoding, parsed_ids
from qkv.pipelines.translator import Translator
from qkv.tasks.translation import TranslationTask, encode
from qkv.tokenizers import BPETokenizer, CharTokenizer, TrainedTokenizer, WordPieceTokenizer, WordTokenizer
from tests.tasks.settings import prepare, tokenizer_of

HEADS = [(0, 1, 1), (0, 1, 2), (0, 3, 1), (2, 0, 2), (2, 0, 1), (3, 0, 2), (3, 3, 0), (3, 1, 0)]


def pair(heads: tuple[int, ...], words: tuple[str, ...] = ("a", "b", "c")) -> Pair:
    """The target is the head of each word, "-" for the root: it depends on the tree only."""
    target = " ".join(words[head - 1] if head else "-" for head in heads)
    return Pair(" ".join(words), target, parsed=Tagged(words, ("",) * len(words), heads))


PAIRS = [pair(heads) for heads in HEADS]
MIXED = [*PAIRS, pair((2, 0), ("a", "b")), pair((0,), ("c",)), pair((2, 3, 4, 5, 0), tuple("abcab"))]
TOKENIZER = WordTokenizer.train(["a b c -"])


def build(pairs: list[Pair] = PAIRS, tokenizer: TrainedTokenizer = TOKENIZER, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"dim": 16, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 32, "max_length": 32}
    sizes |= dict.fromkeys(("source_vocab_size", "target_vocab_size"), len(tokenizer))
    config = TransformerConfig(**{**sizes, "dropout": 0.0, "tree": "both", "tie_embeddings": False, **changes})
    data = PairDataset({"train": pairs, "valid": pairs})
    task = prepare(TranslationTask, data, tokenizer, config, batch_size=64)
    return task, Transformer(config).eval()


def spread(model: Transformer) -> Transformer:
    """Spread the weights so that answers differ between texts and trees."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


TEXTS = ["An übergroße cafe\u0301, l'été 1 000 <s> U.S.", "the cat's hat - 10 000 of them", "日本 ▁ e\u0301."]
SENTENCES = [  # with spaces, special characters, accents and unknown words
    ParsedSentence(("An", "u\u0308ber", "'s", "10 000", "<s>", "ca\u0301t", "▁"), (0, 1, 1, 1, 1, 1, 1)),
    ParsedSentence(("\u0301x", "日本", ".", "hat", "--", "QQQ"), (0, 1, 2, 3, 4, 5)),
    ParsedSentence(("U.S.",), (0,)),
]


@pytest.mark.parametrize("kind", [("char",), ("word",), ("word", 12), ("bpe", 50), ("bpe", 120)], ids=str)
@pytest.mark.parametrize("lowercase", [False, True])
def test_encoding_word_by_word_equals_encoding_the_text(kind, lowercase):
    tokenizer = tokenizer_of(TEXTS, *kind, lowercase=lowercase)
    texts = [" ".join(sentence.words) for sentence in SENTENCES]
    assert [ids for ids, _ in parsed_ids(tokenizer, SENTENCES)] == tokenizer.encode(texts)
    for sentence, text in zip(SENTENCES, texts, strict=True):
        (tokens, tree), (whole,) = parsed_encoding(tokenizer, sentence), tokenizer.encode_with_offsets([text])
        assert tokens == whole
        words = [
            "".join(piece for piece, word in zip(tokens.pieces, tree.words, strict=True) if word == number)
            for number in range(1, len(sentence.words) + 1)
        ]
        assert [word.removeprefix(" ") for word in words] == list(sentence.words)


def test_the_space_before_a_word_belongs_to_it():
    ((_, tree),) = parsed_ids(CharTokenizer.train(["ab c"]), [ParsedSentence(("ab", "c"), (2, 0))])
    assert tree.words == [1, 1, 2, 2]
    assert tree.heads == (2, 0)


def test_bpe_dropout_equals_that_of_the_text():
    tokenizer = BPETokenizer.train(TEXTS, vocab_size=120)
    texts = [" ".join(sentence.words) for sentence in SENTENCES]
    sampled = [ids for ids, _ in parsed_ids(tokenizer, SENTENCES, dropout=0.5, seed=(1, 2))]
    assert sampled == tokenizer.encode(texts, dropout=0.5, seed=(1, 2))
    assert sampled != tokenizer.encode(texts)
    pairs = [pair((2, 0), ("the cat", "of")), pair((0,), ("hat",))]
    for encoded in encode(tokenizer, pairs, dropout=0.9, seed=(0, 1), trees=True):
        assert len(encoded.tree.words) == len(encoded.source)


def test_batches_have_the_trees_of_their_rows_and_padding_has_none():
    task, model = build(MIXED)
    spread(model)
    for rows in ([0, 8, 10], [9]):
        plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
        width = padded.source.shape[1]
        assert padded.distance.shape == (64 // width, width, width)
        assert padded.depth[len(rows) :].abs().max() == 0
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
        torch.testing.assert_close(task.loss(model, plain.to(torch.device("cpu"))), task.loss(model, plain))
    assert task.batch([8, 10]).depth.tolist() == [[2, 1, 0, 0, 0], [5, 4, 3, 2, 1]]


def test_models_without_trees_use_the_text_of_a_sentence():
    task, model = build(tree="none")
    assert not isinstance(task.batch([0]), ParsedBatch)
    translator = Translator(spread(model), TOKENIZER)
    assert translator(PAIRS[0].parsed).text == translator("a b c").text


def train(task: TranslationTask, model: Transformer, number: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(number):
        loss = task.loss(model, task.batch(range(len(PAIRS)), padded_to_shape=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("tree", ["distance", "both"])
def test_a_tree_model_learns_targets_that_depend_on_the_tree(tree):
    task, model = build(tree=tree)
    train(task, model, 100)
    assert task.validate(model)["exact"] == 1.0


def test_a_model_without_trees_cannot_learn_them():
    task, blind = build(tree="none")
    train(task, blind, 100)
    assert task.validate(blind)["exact"] <= 1 / len(PAIRS)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_depend_on_the_tree_but_not_on_the_batch(beam):
    translator = Translator(spread(build()[1]), TOKENIZER)
    sources = [example.source_input for example in MIXED]
    together = translator(sources, num_beams=beam, max_new_tokens=6)
    assert [answer.source for answer in together] == [example.source for example in MIXED]
    assert len({round(answer.score, 4) for answer in together[: len(PAIRS)]}) > 1  # for the same text
    for example, best in zip(sources, together, strict=True):
        alone = translator(example, num_beams=beam, max_new_tokens=6)
        assert alone.text == best.text
        assert alone.score == pytest.approx(best.score, abs=1e-5)
        assert [attention_map.layer for attention_map in alone.attention] == [
            "decoder.0.cross",
            "decoder.0.self",
            "encoder.0",
        ]
        assert alone.attention[2].columns == TOKENIZER.encode_with_offsets([alone.source])[0].pieces


def test_a_saved_translator_gives_the_same_answers(tmp_path: Path):
    model = spread(build()[1])
    save_model(model, TOKENIZER, tmp_path)
    sources = [example.source_input for example in MIXED]
    expected = Translator(model, TOKENIZER)(sources, max_new_tokens=6)
    assert Translator(tmp_path, device="cpu")(sources, max_new_tokens=6) == expected


def test_a_source_without_a_tree_is_an_error():
    words = "has no head for each of its words"
    with pytest.raises(InputError, match=f"train: pair 9 {words}"):
        build([*PAIRS, Pair("a b", "c")])
    translator = Translator(build()[1], TOKENIZER)
    with pytest.raises(InputError, match=f"input 2 {words}"):
        translator.check([PAIRS[0].parsed, "a b c"])
    with pytest.raises(InputError, match=f"input 1 {words}"):
        translator(Tagged(("a", "b"), ("", ""), (0,)))


def test_an_invalid_tree_is_an_error():
    with pytest.raises(InputError, match="word 3 of sentence 1 is a second root"):
        Translator(build()[1], TOKENIZER)(Tagged(("a", "b", "c"), ("",) * 3, (0, 1, 0)))


def test_a_released_tokenizer_is_an_error():
    with pytest.raises(InputError, match="tokenizer trained by qkv"):
        parsed_ids(WordPieceTokenizer.train(["a b"], vocab_size=60), [ParsedSentence(("a", "b"), (2, 0))])
