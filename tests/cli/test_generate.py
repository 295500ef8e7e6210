"""`qkv generate`: prompts, sampling options and errors."""

import json
import wave
from pathlib import Path

import pytest
import torch

from qkv.cli.commands import generate
from qkv.hub import save_model
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.tokenizers import CharTokenizer

TEXT = "To be, or not to be,\nthat is the question"
TUNE = "X:1\nT:to be\nK:G\n|:ebbe:|\n\n"  # after an empty line, there is another tune


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model; its outputs are meaningless but deterministic."""
    path = tmp_path_factory.mktemp("language-model")
    tokenizer = CharTokenizer.train([TEXT])
    torch.manual_seed(0)
    save_model(RNNLM(RNNLMConfig(vocab_size=len(tokenizer), layers=1, embedding_dim=8, hidden_dim=16)), tokenizer, path)
    return path


def test_a_prompt_is_continued(qkv, folder):
    done = qkv("generate", folder, "To be", "--max-new-tokens", 12)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("To be")
    assert len(done.out) == len("To be") + 12 + len("\n")


@pytest.mark.parametrize("more", [[], ["--temperature", 0], ["--top-k", 3, "--seed", 4]])
def test_on_a_terminal_one_prompt_is_streamed(qkv, folder, monkeypatch, more):
    arguments = ["generate", folder, "To bé", "--max-new-tokens", 12, *more]
    expected, pieces = qkv(*arguments), []
    monkeypatch.setattr(generate, "on_terminal", lambda: True)
    monkeypatch.setattr(generate, "result_piece", lambda piece: pieces.append(piece))
    done = qkv(*arguments)
    assert (done.code, done.out, done.err) == (0, "\n", expected.err)
    assert "".join(pieces) + "\n" == expected.out
    assert len(pieces) == 1 + 12
    pieces.clear()
    assert "--max-new-tokens" in qkv(*arguments, "--max-new-tokens", 0).error
    for other in (["--json"], ["--num-return-sequences", 2], ["or not"]):
        assert qkv(*arguments, *other).code == 0
    assert not pieces


def test_a_tune_is_played(qkv, folder, tmp_path):
    path = tmp_path / "tune.wav"
    done = qkv("generate", folder, TUNE, "--max-new-tokens", 3, "--wav", path)
    assert (done.code, done.out[: len(TUNE)]) == (0, TUNE)
    assert "to be, 8 notes, 2.0 s" in done.err
    with wave.open(str(path)) as file:
        assert file.getnframes() == 2 * file.getframerate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["To be"], "line 1 of the tune: a tune needs a key"),
        (["To be", "or not"], "--wav plays one tune"),
        ([TUNE, "--num-return-sequences", 2], "--wav plays one tune"),
    ],
)
def test_what_cannot_be_played_is_an_error(qkv, folder, tmp_path, arguments, words):
    done = qkv("generate", folder, *arguments, "--max-new-tokens", 3, "--wav", tmp_path / "tune.wav")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "tune.wav").exists()
    assert "is a folder" in qkv("generate", folder, TUNE, "--wav", tmp_path).error


def test_a_document_is_one_prompt(qkv, folder, tmp_path):
    (tmp_path / "prompt.txt").write_text("To be,\nor not")
    by_file = qkv("generate", folder, "--document", tmp_path / "prompt.txt", "--max-new-tokens", 5)
    by_stdin = qkv("generate", folder, "--document", "-", "--max-new-tokens", 5, stdin=b"To be,\nor not")
    by_argument = qkv("generate", folder, "--max-new-tokens", 5, "To be,\nor not")
    assert by_file.out == by_stdin.out == by_argument.out
    assert by_file.out.startswith("To be,\nor not")


def test_each_line_of_a_file_or_of_stdin_is_a_prompt(qkv, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("To be\nor not\n")
    by_lines = qkv("generate", folder, "--input", tmp_path / "prompts.txt", "--max-new-tokens", 5, "--json")
    by_stdin = qkv("generate", folder, "--max-new-tokens", 5, "--json", stdin=b"To be\nor not\n")
    by_arguments = qkv("generate", folder, "To be", "or not", "--max-new-tokens", 5, "--json")
    assert by_lines.out == by_stdin.out == by_arguments.out
    assert by_lines.out.count("\n") == 2
    (tmp_path / "prompts.txt").write_text("To be\n\nor not\n")
    assert "input 2 is empty" in qkv("generate", folder, "--input", tmp_path / "prompts.txt").error
    (tmp_path / "prompts.txt").write_text("")
    assert qkv("generate", folder, "--input", tmp_path / "prompts.txt").error.endswith("is empty")


def test_seed_temperature_top_k_and_top_p_affect_the_text(qkv, folder):
    def text(*more: object) -> str:
        return qkv("generate", folder, "To", "--max-new-tokens", 40, *more).out

    assert text() == text("--seed", 0) != text("--seed", 1)
    assert text("--temperature", 0.0001) == text("--top-k", 1) == text("--top-p", 0.0001) != text()


def test_several_prompts_and_samples_as_json(qkv, folder):
    done = qkv("generate", folder, "To", "or", "--num-return-sequences", 2, "--max-new-tokens", 3, "--json")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [(record["input"], record["rank"], record["prompt"]) for record in records] == [
        (1, 1, "To"), (1, 2, "To"), (2, 1, "or"), (2, 2, "or"),
    ]  # fmt: skip
    for record in records:
        assert record["text"] == record["prompt"] + record["continuation"]
        assert len(record["continuation"]) == 3
        assert record["score"] < 0
        assert record["unknown"] == []


def test_out_of_vocabulary_characters_are_noted(qkv, folder):
    done = qkv("generate", folder, "Sein é", "--max-new-tokens", 2)
    assert done.code == 0
    assert done.err.startswith("note: input 1: ")
    assert "'é' (U+00E9)" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "input 1 "),
        (["be", "--temperature", "-1"], "--temperature"),
        (["be", "--top-k", "0"], "--top-k"),
        (["be", "--top-p", "1.5"], "--top-p"),
        (["be", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["be", "--num-return-sequences", "0"], "--num-return-sequences"),
        (["be", "--max-new-tokens", "9999999", "--num-return-sequences", "9"], "--max-new-tokens"),
        (["be", "--document", "x.txt"], "--document"),
        (["--input", "x.txt", "--document", "x.txt"], "--document"),
        (["--input", "none.txt"], "none.txt: no such file"),
        (["--document", "none.txt"], "none.txt: no such file"),
        ([], "standard input"),
        (["be", "--device", "tpu"], "'tpu'"),
    ],
)
def test_invalid_arguments_are_errors(arguments, words, qkv, folder):
    assert words in qkv("generate", folder, *arguments).error


def test_a_folder_without_a_language_model_is_an_error(qkv, run, folder, tmp_path):
    assert qkv("generate", tmp_path / "none", "a").error == f"{tmp_path / 'none'}: no such folder"
    assert "qkv translate" in qkv("generate", run, "a").error
    assert "qkv generate" in qkv("translate", folder, "be").error


def test_trailing_newlines_of_a_prompt_file_are_kept(qkv, folder, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"to be\n\n")
    done = qkv("generate", folder, "--document", prompt, "--max-new-tokens", 1, "--json")
    assert '"prompt": "to be\\n\\n"' in done.out
