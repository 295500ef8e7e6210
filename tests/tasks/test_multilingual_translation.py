"""One model with several target languages, chosen by the first token of the source (Johnson et al. 2017)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from sacrebleu import corpus_bleu, corpus_chrf

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair, language_token, target_language
from qkv.errors import ConfigError, InputError
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.pipelines.output import Answer
from qkv.pipelines.translator import Translator
from qkv.tasks.base.task import train_tokenizer
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.translation import TranslationConfig, TranslationTask, score_languages
from qkv.tokenizers import BPETokenizer, CharTokenizer, Tokenizer, WordPieceTokenizer, WordTokenizer, load_tokenizer
from qkv.training import job
from qkv.training.recipe import read_recipe
from qkv.visualize.evaluation_table import evaluation_text
from tests.datasets.build import dataset, load
from tests.datasets.test_corpora import real, write  # noqa: F401 (a fixture)

TEXTS = ["a man walks", "two dogs run <s>", "ein mann geht", "un homme marche", "zwei hunde"] * 3
TOKENS = ("<2de>", "<2fr>")


def model_of(tokenizer: Tokenizer) -> RNNSeq2Seq:
    torch.manual_seed(0)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer)}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, embedding_dim=8, hidden_dim=8, max_length=20)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    model.tokenizer = tokenizer
    return model


@pytest.fixture(scope="module")
def model() -> RNNSeq2Seq:
    return model_of(BPETokenizer.train(TEXTS, vocab_size=60).with_tokens(TOKENS))


@pytest.mark.parametrize("kind", [BPETokenizer, CharTokenizer, WordTokenizer])
def test_added_tokens_are_single_tokens_and_the_rest_of_a_text_is_unchanged(kind, tmp_path: Path) -> None:
    plain = kind.train(TEXTS)
    tokenizer = plain.with_tokens(TOKENS)
    assert len(tokenizer) == len(plain) + 2
    (encoding,) = tokenizer.encode_with_offsets(["<2fr> a man <s>"])
    assert encoding.ids == [len(plain) + 1, *plain.encode(" a man <s>")]  # "<s>" is still three characters
    assert encoding.pieces[0] == "<2fr>"
    assert "".join(encoding.pieces) == "<2fr> a man <s>"
    assert tokenizer.encode("<2fr> a man <s>") == encoding.ids
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("<2fr> a man <s>") == encoding.ids


def test_bpe_dropout_does_not_split_added_tokens() -> None:
    tokenizer = BPETokenizer.train(TEXTS, lowercase=True).with_tokens(TOKENS)
    texts = ["<2de> A man", "  <2fr>two  dogs <2d> <2de>", "<2fr>", " ", ""]
    assert tokenizer.encode(texts, dropout=1e-30) == tokenizer.encode(texts)
    characters = tokenizer.encode("<2de> a man", dropout=1.0)
    assert characters[0] == tokenizer.vocab["<2de>"]
    assert len(characters) == 1 + len("_a_man")


def test_tokens_cannot_be_added_to_every_tokenizer() -> None:
    with pytest.raises(InputError, match="WordPieceTokenizer"):
        WordPieceTokenizer.train(TEXTS).with_tokens(TOKENS)


def test_the_language_of_a_source_is_that_of_its_first_token() -> None:
    assert target_language(f"{language_token('cs')} a <2de> b") == "cs"
    assert [target_language(text) for text in ("a <2de> b", "<de> a", "<2DE> a", "")] == [""] * 4


def test_translations_of_a_caption_follow_each_other(
    write: Callable[[str, str, str], None],  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language in ("en", "de", "fr", "cs"):
            if (name, language) != ("test_2017_flickr", "cs"):
                write("multi30k", f"{name}.{language}", f"{language} 1\n{language} 2\n")
    loaded = load("multi30k_multilingual", folder=str(tmp_path))
    expected = [Pair(f"<2{name}> en {row}", f"{name} {row}") for row in (1, 2) for name in ("de", "fr", "cs")]
    assert loaded.splits["train"] == loaded.splits["valid"] == loaded.splits["test_2016_flickr"] == expected
    assert loaded.splits["test_2017_flickr"] == [pair for pair in expected if pair.target[:2] != "cs"]
    assert loaded.notes == ("multi30k: test_2017_flickr does not exist in Czech: skipped",)
    assert len(load("multi30k_multilingual", folder=str(tmp_path), size=4).splits["train"]) == 4
    config = dataset("multi30k_multilingual", source="de", targets=("en", "fr"), tokenizer="char")
    assert config.languages == "de-en, fr"
    assert {"<2de>", "<2fr>", "<2cs>"} <= train_tokenizer(loaded, config).vocab.keys()


@pytest.mark.parametrize("targets", [(), ("en", "de"), ("de", "de"), ("de", "xx")])
def test_target_languages_must_be_distinct_and_differ_from_the_source(targets: tuple[str, ...]) -> None:
    with pytest.raises((ConfigError, ValueError), match="targets"):
        dataset("multi30k_multilingual", targets=targets)


@real
def test_the_real_dataset_has_every_caption_in_three_languages() -> None:
    splits = load("multi30k_multilingual").splits
    sizes = {"train": 87_000, "valid": 3_042, "test_2016_flickr": 3_000, "test_2017_flickr": 2_000}
    assert {split: len(pairs) for split, pairs in splits.items()} == sizes
    for language in ("de", "fr", "cs"):
        own = [pair for pair in splits["test_2016_flickr"] if target_language(pair.source) == language]
        pairs = load("multi30k", target=language).splits["test_2016_flickr"]
        assert [(pair.source.removeprefix(f"<2{language}> "), pair.target) for pair in own] == [
            (pair.source, pair.target) for pair in pairs
        ]


def test_a_target_language_is_the_first_token_of_the_source(model: RNNSeq2Seq) -> None:
    translator = Translator(model)
    assert translator.languages == ["de", "fr"]
    german, french = (translator(TEXTS, target=language) for language in ("de", "fr"))
    for language, answers in (("de", german), ("fr", french)):
        by_prefix = translator([f"<2{language}> {text}" for text in TEXTS])
        assert [answer.text for answer in answers] == [answer.text for answer in by_prefix]
        assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in by_prefix])
    assert [answer.text for answer in german] != [answer.text for answer in french]
    assert german[0].attention[0].columns[0] == "<2de>"


@pytest.mark.parametrize(
    ("text", "target", "word"),
    [("a man", None, "de, fr"), ("a man", "cs", "'cs'"), ("<2de> a man", "fr", "<2de>"), ("<2cs> a man", None, "set")],
)
def test_a_missing_unknown_or_second_target_language_is_an_error(model, text, target, word) -> None:
    translator = Translator(model)
    with pytest.raises(InputError, match=word):
        translator(text, target=target)
    with pytest.raises(InputError, match=word):
        translator.check([text], target=target)


def test_a_model_of_one_language_takes_no_target() -> None:
    translator = Translator(model_of(CharTokenizer.train(TEXTS)))
    assert translator.languages == []
    with pytest.raises(InputError, match="single"):
        translator("a man", target="de")


def test_every_target_language_is_scored_on_its_own(model: RNNSeq2Seq) -> None:
    references = {
        "de": ["Ein Mann geht über die Straße.", "Zwei Hunde laufen im Schnee."],
        "fr": ["Un homme traverse la rue.", "Deux chiens courent dans la neige."],
    }
    outputs = {
        "de": ["Ein Mann geht über die Wiese.", "Zwei Hunde laufen dort."],
        "fr": ["Un homme traverse la rue.", "Deux chiens courent dans la rue"],
    }
    pairs = [Pair(f"<2{name}> {row}", references[name][row]) for row in (0, 1) for name in ("de", "fr")]

    def translate(sources: list[str]) -> list[Answer]:
        return [Answer(source, outputs[source[2:4]][int(source[-1])], 0.0, (), (), 1) for source in sources]

    evaluation = replace(score_languages(translate, pairs), seconds=1.0)
    assert (evaluation.size, len(evaluation.mistakes)) == (4, 3)
    for language, texts in outputs.items():
        expected = corpus_bleu(texts, [references[language]]).score
        assert evaluation.scores[f"bleu_{language}"] == pytest.approx(expected)
        assert 20 < expected < 95
        expected = corpus_chrf(texts, [references[language]]).score
        assert evaluation.scores[f"chrf_{language}"] == pytest.approx(expected)
        assert evaluation.signatures[f"bleu_tokenised_{language}"].endswith(f"moses-{language}")
    for name in ("bleu", "bleu_tokenised", "chrf"):
        own = [evaluation.scores[f"{name}_{language}"] for language in ("de", "fr")]
        assert evaluation.scores[name] == pytest.approx(fmean(own))
    data = PairDataset({"test": pairs}, source_tokens=TOKENS)
    task = TranslationTask.for_evaluation(data, model, TranslationConfig(), TrainConfig(), 0)
    assert task.evaluate(model, data, "test").scores.keys() == evaluation.scores.keys()
    printed = evaluation_text(replace(evaluation, metrics={name: task.metric(name) for name in evaluation.scores}))
    assert "BLEU, lowercased, tokenized, fr" in printed
    assert "chrF, de" in printed


def test_a_run_of_the_recipe_has_three_target_languages(
    write: Callable[[str, str, str], None],  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language in ("en", "de", "fr", "cs"):
            if (name, language) != ("test_2017_flickr", "cs"):
                write("multi30k", f"{name}.{language}", "".join(f"{language} {row}\n" for row in range(8)))
    small = ["model.dim=8", "model.ffn_dim=8", "model.heads=2", "train.epochs=1", f"data.folder={tmp_path}"]
    job.begin(read_recipe("multi30k-multilingual", small), tmp_path / "run", "cpu")
    assert Translator(tmp_path / "run", device="cpu").languages == ["de", "fr", "cs"]
