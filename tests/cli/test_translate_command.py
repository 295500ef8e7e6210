"""`qkv translate`: beam search, sampling, constraints and alignments."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.cli.texts import is_repetitive
from qkv.hub import save_model
from qkv.models import rnn_seq2seq
from qkv.pipelines.translator import Translator
from qkv.tokenizers import BPETokenizer

from .command import Ended

Command = Callable[..., Ended]
TEXTS = ["two dogs play", "a man rides a bicycle ."]


def saved(folder: Path, std: float = 0.7, languages: tuple[str, ...] = (), **changes: Any) -> Path:
    tokenizer = BPETokenizer.train([*TEXTS, "zwei hunde spielen", "ein mann fährt rad ."], vocab_size=60)
    tokenizer = tokenizer.with_tokens(languages)
    size = len(tokenizer)
    torch.manual_seed(5)
    model = rnn_seq2seq.RNNSeq2Seq(
        rnn_seq2seq.RNNSeq2SeqConfig(
            source_vocab_size=size, target_vocab_size=size, embedding_dim=8, hidden_dim=8, max_length=40, **changes
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    folder.mkdir()
    save_model(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "attending")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "plain", decoder="plain")


def objects(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_pharaoh_pairs_follow_the_text_and_index_words(qkv: Command, attending: Path) -> None:
    ended = qkv("translate", attending, *TEXTS, "--align", "pharaoh", "--num-beams", 2)
    expected = Translator(attending, device="cpu")(TEXTS, num_beams=2)
    for line, source, answer in zip(ended.out.splitlines(), TEXTS, expected, strict=True):
        text, pairs = line.split("\t")
        indices = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        assert text == answer.text
        assert [target for _, target in indices] == list(range(len(text.split())))
        weights = answer.words().average
        assert [source_word for source_word, _ in indices] == weights.argmax(axis=1).tolist()
        assert all(source_word < len(source.split()) for source_word, _ in indices)


def test_a_threshold_prints_all_pairs_above_it(qkv: Command, attending: Path) -> None:
    def pairs(*arguments: object) -> set[str]:
        ended = qkv("translate", attending, TEXTS[1], "--align", "pharaoh", *arguments)
        return set(ended.out.rstrip("\n").split("\t")[1].split())

    best, low, high = pairs(), pairs("--alignment-threshold", 0.02), pairs("--alignment-threshold", 0.5)
    assert high <= best <= low
    assert len(low) > len(best) >= 1


def test_json_alignment_formats_and_levels(qkv: Command, attending: Path) -> None:
    (tokens,) = objects(qkv("translate", attending, TEXTS[1], "--json"))
    assert tokens == objects(qkv("translate", attending, TEXTS[1], "--json", "--align", "json"))[0]
    (words,) = objects(qkv("translate", attending, TEXTS[1], "--json", "--align-level", "word"))
    assert words["source_words"] == TEXTS[1].split()
    assert words["target_words"] == words["text"].split()
    assert np.shape(words["alignment"]) == (len(words["target_words"]), len(words["source_words"]))
    np.testing.assert_allclose(np.sum(words["alignment"], axis=1), 1.0, atol=1e-3)
    (pharaoh,) = objects(qkv("translate", attending, TEXTS[1], "--json", "--align", "pharaoh"))
    assert [int(pair.split("-")[0]) for pair in pharaoh["alignment"].split()] == np.argmax(
        words["alignment"], 1
    ).tolist()
    (by_tokens,) = objects(
        qkv("translate", attending, TEXTS[1], "--json", "--align", "pharaoh", "--align-level", "token")
    )
    assert [int(pair.split("-")[0]) for pair in by_tokens["alignment"].split()] == np.argmax(
        tokens["alignment"], 1
    ).tolist()
    (none,) = objects(qkv("translate", attending, TEXTS[1], "--json", "--align", "none"))
    assert none["alignment"] is None
    assert {key: none[key] for key in ("text", "score")} == {key: tokens[key] for key in ("text", "score")}
    text, weights = qkv("translate", attending, TEXTS[1], "--align", "json").out.rstrip("\n").split("\t")
    assert (text, json.loads(weights)) == (tokens["text"], tokens["alignment"])


def test_an_empty_line_has_an_empty_alignment(qkv: Command, attending: Path) -> None:
    ended = qkv("translate", attending, "--align", "pharaoh", stdin=f"{TEXTS[0]}\n\n{TEXTS[1]}\n".encode())
    assert [line.count("\t") for line in ended.out.splitlines()] == [1, 1, 1]
    assert ended.out.splitlines()[1] == "\t"


def test_n_best_output_ends_with_the_alignment(qkv: Command, attending: Path) -> None:
    ended = qkv("translate", attending, TEXTS[0], "--num-beams", 3, "--num-return-sequences", 2, "--align", "pharaoh")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"]]
    assert all(len(row) == 5 and len(row[4].split()) == len(row[3].split()) for row in rows)


def test_a_model_without_attention_translates_without_alignment(qkv: Command, plain: Path, tmp_path: Path) -> None:
    ended = qkv("translate", plain, TEXTS[0], "--num-beams", 2, "--page", tmp_path / "page.html", "--json")
    (answer,) = objects(ended)
    assert (answer["alignment"], answer["source_tokens"], answer["target_tokens"]) == (None, None, None)
    assert (tmp_path / "page.html").exists()
    for arguments in (["--align", "pharaoh"], ["--align", "json"], ["--json", "--align", "pharaoh"]):
        assert "attention" in qkv("translate", plain, TEXTS[0], *arguments).error
    assert qkv("translate", plain, TEXTS[0], "--align", "none").code == 0
    ended = qkv("translate", plain, TEXTS[0], "--num-beams", 2, "--coverage-penalty", 0.2)
    assert "coverage penalty" in ended.error


def test_samples_depend_on_the_seed_and_their_number_on_n_best(qkv: Command, attending: Path) -> None:
    def sample(*arguments: object) -> list[str]:
        ended = qkv("translate", attending, *TEXTS, "--do-sample", "--num-return-sequences", 4, *arguments)
        assert ended.code == 0, ended.err
        return [line.split("\t")[3] for line in ended.out.splitlines()]

    first = sample()
    assert len(first) == 8
    assert len(set(first)) > 4
    assert sample("--seed", 0) == first
    assert sample("--seed", 1) != first
    greedy = qkv("translate", attending, *TEXTS).out.splitlines()
    for narrow in (["--top-k", 1], ["--top-p", 1e-6], ["--temperature", 1e-4]):
        assert sample(*narrow) == [text for text in greedy for _ in range(4)]


def test_samples_do_not_depend_on_preceding_blank_lines(qkv: Command, attending: Path) -> None:
    def sample(text: str) -> list[list[str]]:
        ended = qkv("translate", attending, "--do-sample", "--num-return-sequences", 3, stdin=text.encode())
        return [line.split("\t") for line in ended.out.splitlines()]

    whole = sample(f"{TEXTS[0]}\n{TEXTS[1]}\n{TEXTS[1]}\n")
    assert sample(f"\n{TEXTS[1]}\n{TEXTS[1]}\n") == whole[3:]
    assert sample(f"{TEXTS[0]}\n\n{TEXTS[1]}\n") == whole[:3] + whole[6:]


def test_exact_search_finds_a_better_hypothesis_than_early_stopping(qkv: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", std=3.0)
    arguments = ["translate", model, TEXTS[1], "--num-beams", 2, "--length-penalty", 2.0, "--json"]
    (hasty,), (exact,) = objects(qkv(*arguments)), objects(qkv(*arguments, "--exact"))
    expected = Translator(model, device="cpu")(TEXTS[1], num_beams=2, length_penalty=2.0, exact=True)
    assert (exact["text"], exact["score"]) == (expected.text, pytest.approx(expected.score, abs=1e-5))
    assert exact["score"] > hasty["score"] + 0.01


def test_length_limits_and_prefix_are_respected(qkv: Command, attending: Path) -> None:
    for strategy in (["--num-beams", 3], ["--do-sample"], []):
        arguments = ["--min-new-tokens", 6, "--max-new-tokens", 9, "--prefix", "ein mann", "--json"]
        for answer in objects(qkv("translate", attending, *TEXTS, *arguments, *strategy)):
            assert answer["text"].startswith("ein mann")
            assert 6 <= len(answer["target_tokens"]) <= 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--align", "pharao"], "--align"),
        (["--align", "xml"], "--align"),
        (["--align", "json", "--align-level", "words"], "--align-level"),
        (["--align-level", "word"], "--align-level"),
        (["--alignment-threshold", 0.5], "--alignment-threshold"),
        (["--align", "pharaoh", "--alignment-threshold", 0], "threshold"),
        (["--coverage-penalty", 0.2], "--coverage-penalty"),
        (["--exact"], "--exact"),
        (["--exact", "--do-sample"], "--exact"),
        (["--num-beams", 2, "--coverage-penalty", -1], "--coverage-penalty"),
        (["--min-new-tokens", 5, "--max-new-tokens", 4], "--min-new-tokens"),
        (["--min-new-tokens", -1], "--min-new-tokens"),
        (["--max-new-tokens", 0], "--max-new-tokens"),
        (["--min-new-tokens", 41], "--min-new-tokens"),
        (["--prefix", "☃"], "prefix"),
        (["--temperature", 0.5], "--temperature"),
        (["--top-k", 5], "--top-k"),
        (["--top-p", 0.5], "--top-p"),
        (["--seed", 5], "--seed"),
        (["--do-sample", "--num-beams", 2], "--num-beams"),
        (["--do-sample", "--temperature", -1], "--temperature"),
        (["--do-sample", "--top-k", 0], "--top-k"),
        (["--do-sample", "--top-p", 2], "--top-p"),
        (["--do-sample", "--seed", -1], "--seed"),
    ],
)
def test_invalid_arguments_are_one_line_errors(
    qkv: Command, attending: Path, arguments: list[object], words: str
) -> None:
    assert words in qkv("translate", attending, TEXTS[0], *arguments).error


def test_the_target_language_of_a_multilingual_model_is_an_option(qkv: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "multilingual", languages=("<2de>", "<2fr>"))
    translator = Translator(model, device="cpu")
    for language in ("de", "fr"):
        ended = qkv("translate", model, *TEXTS, "--target", language)
        assert ended.out.splitlines() == [answer.text for answer in translator(TEXTS, target=language)]
    assert "de, fr" in qkv("translate", model, *TEXTS).error
    assert "'xx'" in qkv("translate", model, *TEXTS, "--target", "xx").error
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([TEXTS[0], "", TEXTS[1]]) + "\n")
    assert qkv("translate", model, "--input", lines, "--output", tmp_path / "out.txt", "--target", "fr").code == 0
    written = (tmp_path / "out.txt").read_text().splitlines()
    assert written == [translator(TEXTS[0], target="fr").text, "", translator(TEXTS[1], target="fr").text]


def test_a_model_of_one_language_takes_no_target(qkv: Command, plain: Path) -> None:
    assert "target" in qkv("translate", plain, TEXTS[0], "--target", "de").error


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "copying", coverage=True, copying=True)


def test_copied_words_are_marked_by_brackets(qkv: Command, copying: Path) -> None:
    ended = qkv("translate", copying, *TEXTS, "--mark-copied", "--align", "pharaoh")
    answers = Translator(copying, device="cpu")(TEXTS)
    assert ended.out == "".join(f"{answer.mark_copied()}\t{answer.words().pharaoh()}\n" for answer in answers)
    assert "[" in ended.out


@pytest.mark.parametrize("level", ["token", "word"])
def test_json_has_the_probability_of_each_copy(qkv: Command, copying: Path, level: str) -> None:
    answers = Translator(copying, device="cpu")(TEXTS)
    for row, answer in zip(
        objects(qkv("translate", copying, *TEXTS, "--json", "--align-level", level)), answers, strict=True
    ):
        expected = (answer.attention[0] if level == "token" else answer.words()).copied
        np.testing.assert_allclose(row["copied"], expected, atol=1e-4)
        assert len(row["copied"]) == len(row[f"target_{level}s"])


def test_marking_requires_a_model_that_copies(qkv: Command, attending: Path, copying: Path) -> None:
    assert "copying" in qkv("translate", attending, "two dogs", "--mark-copied").error
    assert "copied" not in objects(qkv("translate", attending, "two dogs", "--json"))[0]
    assert "--json" in qkv("translate", copying, "two dogs", "--mark-copied", "--json").error


@pytest.mark.parametrize(
    ("text", "repetitive"),
    [("Hallo " * 20, True), ("Guten Morgen " * 8, True), ("no no no", False), ("one two three four " * 3, False)],
)
def test_outputs_with_few_different_words_are_repetitive(text: str, repetitive: bool) -> None:
    assert is_repetitive(text) == repetitive
