"""`qkv generate`: prompts in, texts out; what cannot be done is one line, with exit code 2."""

import json
from pathlib import Path

import pytest
import torch

from qkv.data.vocabulary import Vocabulary
from qkv.interop import save_model
from qkv.models.rnn_lm import RNNLM, Config

TEXT = "To be, or not to be,\nthat is the question"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was never trained: its texts are nonsense, and always the same."""
    path = tmp_path_factory.mktemp("language-model")
    vocabulary = Vocabulary.train([TEXT], "char")
    torch.manual_seed(0)
    save_model(RNNLM(Config(len(vocabulary), layers=1, embedding=8, hidden=16)), vocabulary, path)
    return path


def test_a_prompt_is_gone_on_with(qkv, folder):
    done = qkv("generate", folder, "--prompt", "To be", "--tokens", 12)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("To be")
    assert len(done.out) == len("To be") + 12 + len("\n")


def test_the_prompt_comes_from_a_file_or_standard_input_with_its_lines(qkv, folder, tmp_path):
    (tmp_path / "prompt.txt").write_text("To be,\nor not")
    by_file = qkv("generate", folder, "--file", tmp_path / "prompt.txt", "--tokens", 5)
    by_stdin = qkv("generate", folder, "--tokens", 5, stdin=b"To be,\nor not")
    by_option = qkv("generate", folder, "--tokens", 5, "--prompt", "To be,\nor not")
    assert by_file.out == by_stdin.out == by_option.out
    assert by_file.out.startswith("To be,\nor not")


def test_each_line_of_a_file_is_a_prompt(qkv, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("To be\nor not\n")
    by_lines = qkv("generate", folder, "--input", tmp_path / "prompts.txt", "--tokens", 5, "--json")
    by_option = qkv("generate", folder, "--prompt", "To be", "--prompt", "or not", "--tokens", 5, "--json")
    assert by_lines.out == by_option.out
    assert by_lines.out.count("\n") == 2
    (tmp_path / "prompts.txt").write_text("To be\n\nor not\n")
    assert "line 2 is empty" in qkv("generate", folder, "--input", tmp_path / "prompts.txt").error
    (tmp_path / "prompts.txt").write_text("")
    assert qkv("generate", folder, "--input", tmp_path / "prompts.txt").error.endswith("is empty")


def test_the_seed_the_temperature_and_the_cuts_decide_the_text(qkv, folder):
    def text(*more: object) -> str:
        return qkv("generate", folder, "--prompt", "To", "--tokens", 40, *more).out

    assert text() == text("--seed", 0) != text("--seed", 1)
    assert text("--temperature", 0.0001) == text("--top-k", 1) == text("--top-p", 0.0001) != text()


def test_several_prompts_and_samples_are_told_apart_as_json(qkv, folder):
    done = qkv("generate", folder, "--prompt", "To", "--prompt", "or", "--n", 2, "--tokens", 3, "--json")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [(one["prompt"], one["sample"], one["begins"]) for one in records] == [
        (1, 1, "To"), (1, 2, "To"), (2, 1, "or"), (2, 2, "or"),
    ]  # fmt: skip
    for one in records:
        assert one["text"] == one["begins"] + one["continuation"]
        assert len(one["continuation"]) == 3
        assert one["score"] < 0
        assert one["unknown"] == []


def test_characters_that_were_never_seen_are_noted(qkv, folder):
    done = qkv("generate", folder, "--prompt", "Sein é", "--tokens", 2)
    assert done.code == 0
    assert done.err.startswith("note: prompt 1: never seen in training, read as unknown: 'S' (U+0053), ")
    assert "'é' (U+00E9)" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", ""], "prompt 1 is empty"),
        (["--prompt", "be", "--temperature", "0"], "temperature must be positive"),
        (["--prompt", "be", "--top-k", "0"], "top-k"),
        (["--prompt", "be", "--top-p", "1.5"], "top-p must be above 0 and at most 1"),
        (["--prompt", "be", "--tokens", "0"], "Invalid value for '--tokens'"),
        (["--prompt", "be", "--n", "0"], "Invalid value for '--n'"),
        (["--prompt", "be", "--tokens", "9999999", "--n", "9"], "exceed the limit"),
        (["--prompt", "be", "--file", "x.txt"], "give --prompt, --file or --input, not two of them"),
        (["--input", "x.txt", "--file", "x.txt"], "give --prompt, --file or --input, not two of them"),
        (["--input", "none.txt"], "none.txt: no such file"),
        (["--file", "none.txt"], "none.txt: no such file"),
        ([], "prompt 1 is empty"),
        (["--prompt", "be", "--device", "tpu"], "device 'tpu' is not known"),
    ],
)
def test_what_cannot_be_generated_is_said_in_one_line(arguments, words, qkv, folder):
    assert words in qkv("generate", folder, *arguments).error


def test_a_folder_that_holds_no_language_model_is_told_apart(qkv, run, folder, tmp_path):
    assert qkv("generate", tmp_path / "none", "--prompt", "a").error == f"{tmp_path / 'none'}: no such folder"
    error = qkv("generate", run, "--prompt", "a").error
    assert error == (
        f"{run}: holds an encoder-decoder (for qkv translate), and a language model (for qkv generate) is needed here"
    )
    assert "holds a language model (for qkv generate)" in qkv("translate", folder, "be").error


def test_a_prompt_from_a_file_is_taken_whole_to_its_last_line_break(qkv, folder, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"to be\n\n")
    done = qkv("generate", folder, "--file", prompt, "--tokens", 1, "--json")
    assert '"begins": "to be\\n\\n"' in done.out
