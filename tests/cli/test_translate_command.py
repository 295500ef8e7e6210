"""`qkv translate`: searches, samples, constraints and alignments from the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.vocabulary import Vocabulary
from qkv.interop import save_model
from qkv.models import rnn_seq2seq
from qkv.tasks.translator import Search, Translator

from .command import Ended

Command = Callable[..., Ended]
TEXTS = ["two dogs play", "a man rides a bicycle ."]


def saved(folder: Path, std: float = 0.7, **changes: Any) -> Path:
    vocabulary = Vocabulary.train([*TEXTS, "zwei hunde spielen", "ein mann fährt rad ."], "bpe:60")
    size = len(vocabulary)
    torch.manual_seed(5)
    model = rnn_seq2seq.RNNSeq2Seq(rnn_seq2seq.Config(size, size, embedding=8, hidden=8, max_length=40, **changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    folder.mkdir()
    save_model(model, vocabulary, folder)
    return folder


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "attending")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "plain", attention="none")


def objects(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_pharaoh_pairs_come_after_the_text_and_point_at_words(qkv: Command, attending: Path) -> None:
    ended = qkv("translate", attending, *TEXTS, "--align", "pharaoh", "--beam", 2)
    expected = Translator(attending, device="cpu").translate(TEXTS, Search(2), attention=True)
    for line, source, (answer,) in zip(ended.out.splitlines(), TEXTS, expected, strict=True):
        text, pairs = line.split("\t")
        found = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        assert text == answer.text
        assert [target for _, target in found] == list(range(len(text.split())))
        weights = answer.words().average
        assert [source_word for source_word, _ in found] == weights.argmax(axis=1).tolist()
        assert all(source_word < len(source.split()) for source_word, _ in found)


def test_a_threshold_prints_every_pair_that_reaches_it(qkv: Command, attending: Path) -> None:
    def pairs(*arguments: object) -> set[str]:
        ended = qkv("translate", attending, TEXTS[1], "--align", "pharaoh", *arguments)
        return set(ended.out.rstrip("\n").split("\t")[1].split())

    best, low, high = pairs(), pairs("--alignment-threshold", 0.02), pairs("--alignment-threshold", 0.5)
    assert high <= best <= low
    assert len(low) > len(best) >= 1


def test_json_has_the_alignment_in_the_form_and_at_the_level_that_is_asked_for(qkv: Command, attending: Path) -> None:
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


def test_several_answers_have_their_alignments_last(qkv: Command, attending: Path) -> None:
    ended = qkv("translate", attending, TEXTS[0], "--beam", 3, "--n-best", 2, "--align", "pharaoh")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"]]
    assert all(len(row) == 5 and len(row[4].split()) == len(row[3].split()) for row in rows)


def test_a_model_without_attention_translates_but_has_no_alignment_to_give(
    qkv: Command, plain: Path, tmp_path: Path
) -> None:
    ended = qkv("translate", plain, TEXTS[0], "--beam", 2, "--attention", tmp_path / "page.html", "--json")
    (answer,) = objects(ended)
    assert (answer["alignment"], answer["source_tokens"], answer["target_tokens"]) == (None, None, None)
    assert (tmp_path / "page.html").exists()
    words = (
        f"{plain}: an alignment requires attention over the source, which this model lacks; models that have it: "
        'rnn_seq2seq with model.attention = "bahdanau" or "luong", conv_seq2seq, transformer'
    )
    for arguments in (["--align", "pharaoh"], ["--align", "json"], ["--json", "--align", "pharaoh"]):
        assert qkv("translate", plain, TEXTS[0], *arguments).error == words
    assert qkv("translate", plain, TEXTS[0], "--align", "none").code == 0
    ended = qkv("translate", plain, TEXTS[0], "--beam", 2, "--coverage-penalty", 0.2)
    assert ended.error == words.replace("an alignment", "a coverage penalty")


def test_samples_are_the_same_for_a_seed_and_many_where_many_are_asked_for(qkv: Command, attending: Path) -> None:
    def drawn(*arguments: object) -> list[str]:
        ended = qkv("translate", attending, *TEXTS, "--sample", "--n-best", 4, *arguments)
        assert ended.code == 0, ended.err
        return [line.split("\t")[3] for line in ended.out.splitlines()]

    first = drawn()
    assert len(first) == 8
    assert len(set(first)) > 4
    assert drawn("--seed", 0) == first
    assert drawn("--seed", 1) != first
    greedy = qkv("translate", attending, *TEXTS).out.splitlines()
    for narrow in (["--top-k", 1], ["--top-p", 1e-6], ["--temperature", 1e-4]):
        assert drawn(*narrow) == [text for text in greedy for _ in range(4)]


def test_a_sample_is_that_of_its_line_whatever_blank_lines_come_before(qkv: Command, attending: Path) -> None:
    def drawn(text: str) -> list[list[str]]:
        ended = qkv("translate", attending, "--sample", "--n-best", 3, stdin=text.encode())
        return [line.split("\t") for line in ended.out.splitlines()]

    whole = drawn(f"{TEXTS[0]}\n{TEXTS[1]}\n{TEXTS[1]}\n")
    assert drawn(f"\n{TEXTS[1]}\n{TEXTS[1]}\n") == whole[3:]
    assert drawn(f"{TEXTS[0]}\n\n{TEXTS[1]}\n") == whole[:3] + whole[6:]


def test_an_exact_search_finds_what_a_beam_gives_up_too_early(qkv: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", std=3.0)
    arguments = ["translate", model, TEXTS[1], "--beam", 2, "--length-penalty", 2.0, "--json"]
    (hasty,), (exact,) = objects(qkv(*arguments)), objects(qkv(*arguments, "--exact"))
    expected = Translator(model, device="cpu")(TEXTS[1], beam=2, length_penalty=2.0, exact=True)
    assert (exact["text"], exact["score"]) == (expected.text, pytest.approx(expected.score, abs=1e-5))
    assert exact["score"] > hasty["score"] + 0.01


def test_lengths_and_beginnings_are_kept(qkv: Command, attending: Path) -> None:
    for way in (["--beam", 3], ["--sample"], []):
        arguments = ["--min-length", 6, "--max-length", 9, "--prefix", "ein mann", "--json"]
        for answer in objects(qkv("translate", attending, *TEXTS, *arguments, *way)):
            assert answer["text"].startswith("ein mann")
            assert 6 <= len(answer["target_tokens"]) <= 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--align", "pharao"], "--align pharao is not known (did you mean pharaoh?)"),
        (["--align", "xml"], "--align xml is not known (known: json, none, pharaoh)"),
        (["--align", "json", "--align-level", "words"], "--align-level words is not known (did you mean word?)"),
        (["--align-level", "word"], "--align-level needs --align pharaoh or --align json"),
        (["--alignment-threshold", 0.5], "--alignment-threshold needs --align pharaoh"),
        (["--align", "pharaoh", "--alignment-threshold", 0], "--alignment-threshold must be above 0 and at most 1"),
        (["--coverage-penalty", 0.2], "--coverage-penalty chooses between hypotheses: it needs --beam 2 or more"),
        (["--exact"], "--exact compares hypotheses: it needs --beam 2 or more"),
        (["--exact", "--sample"], "--exact compares hypotheses: it needs --beam 2 or more"),
        (["--beam", 2, "--coverage-penalty", -1], "--coverage-penalty must lie between 0 and 10.0, not -1.0"),
        (["--min-length", 5, "--max-length", 4], "--min-length 5 is more than --max-length 4"),
        (["--min-length", -1], "Invalid value for '--min-length'"),
        (["--max-length", 0], "Invalid value for '--max-length'"),
        (["--min-length", 41], "min-length requires at least 41 tokens, but a translation has at most 40"),
        (["--prefix", "☃"], "the prefix '☃' contains unknown tokens"),
        (["--temperature", 0.5], "--temperature says how to draw: it needs --sample"),
        (["--top-k", 5], "--top-k says how to draw: it needs --sample"),
        (["--top-p", 0.5], "--top-p says how to draw: it needs --sample"),
        (["--seed", 5], "--seed says how to draw: it needs --sample"),
        (["--sample", "--beam", 2], "--sample follows one hypothesis at a time"),
        (["--sample", "--temperature", 0], "temperature must be positive, not 0.0"),
        (["--sample", "--top-k", 0], "top-k must lie between 1 and 2^30, not 0"),
        (["--sample", "--top-p", 2], "top-p must be above 0 and at most 1, not 2.0"),
        (["--sample", "--seed", -1], "seed must lie between 0 and 2^64, not -1"),
    ],
)
def test_what_makes_no_sense_is_refused_on_one_line(
    qkv: Command, attending: Path, arguments: list[object], words: str
) -> None:
    assert qkv("translate", attending, TEXTS[0], *arguments).error.startswith(words)
