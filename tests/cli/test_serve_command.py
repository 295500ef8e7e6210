"""Errors of `qkv serve` before it listens."""

import pytest


def test_a_model_that_does_not_exist(qkv, tmp_path):
    assert "no such folder" in qkv("serve", tmp_path / "missing", "--port", 0).error


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--max-batch", 0], "--max-batch"), (["--timeout", -1], "--timeout"), (["--max-tokens", 1], "--max-tokens"),
     (["--port", 70000], "--port"), (["--host", "256.0.0.1"], "256.0.0.1")],
)  # fmt: skip
def test_options_out_of_range(qkv, run, options, word):
    assert word in qkv("serve", run, *options).error


def test_short_keys_are_refused(qkv, run, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    error = qkv("serve", run, "--api-keys", tmp_path / "keys").error
    assert "16" in error
    assert "secret" not in error


def test_two_models_of_one_name(qkv, run):
    assert "NAME=" in qkv("serve", run, run, "--port", 0).error
