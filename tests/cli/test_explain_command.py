"""`qkv explain`: text, JSON and HTML output for each kind of model, reports, and bad input."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from qkv.interpret import reweighting
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.han import HAN, HANConfig
from qkv.models.rnn_text import RNNText, RNNTextConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.tokenizers import WordTokenizer
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer
from tests.visualize.payloads import stored

TEXT = "the cat sat on a mat"
IMAGE = {"classes": 2, "label_names": ("boot", "bag"), "height": 8, "width": 8, "patch": 4}
SIZES = {"dim": 8, "layers": 2, "heads": 2, "ffn_dim": 8}
REVIEW = "A fine film. The cat was good, and the dog was fine. I left."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("explained")
    torch.manual_seed(0)
    words = WordTokenizer.train([REVIEW, "<b> a red circle above a small blue square"], lowercase=True)
    text = {"head": "classifier", "vocab_size": len(words), "embedding_dim": 4, "hidden_dim": 4}
    picture = {"height": 8, "width": 8, "encoder": {"name": "cnn", "filters": (4, 8)}, "feature_dim": 6}
    picture |= {"embedding_dim": 5, "hidden_dim": 7, "max_length": 6, "vocab_size": len(words)}
    models = {
        "bert": (tiny_bert("classifier", label_names=("bad", "good")), tiny_tokenizer(path)),
        "tagger": (tiny_bert("tagger"), tiny_tokenizer(path)),
        "rnn": (RNNText(RNNTextConfig(**text)), words),
        "mean": (RNNText(RNNTextConfig(pooling="mean", **text)), words),
        "han": (HAN(HANConfig(vocab_size=len(words), embedding_dim=4, hidden_dim=3, max_length=2)), words),
        "captioner": (ShowAttendTell(ShowAttendTellConfig(**picture)), words),
        "lm": (GPT2(GPT2Config(vocab_size=len(words), max_length=16, **SIZES)), words),
        "vit": (ViT(ViTConfig(**IMAGE, **SIZES)), None),
        "mean vit": (ViT(ViTConfig(pool="mean", **IMAGE, **SIZES)), None),
    }
    Image.new("RGB", (8, 8), "red").save(path / "red.png")
    return {"picture": path / "red.png"} | {
        name: saved(model.eval(), tokenizer, path / name) for name, (model, tokenizer) in models.items()
    }


def test_tokens_are_printed_in_order_with_a_number_for_each_method(qkv, folders):
    ended = qkv("explain", folders["bert"], TEXT, "--method", "attention", "--method", "gradient", "--faithfulness")
    assert ended.code == 0, ended.err
    heading, *lines = ended.out.splitlines()
    assert heading.split() == ["attention", "gradient"]
    assert [line.split()[0] for line in lines[:6]] == TEXT.split()
    assert [line.split()[0] for line in lines[-2:]] == ["attention", "gradient"]
    assert "good" in ended.err or "bad" in ended.err
    assert max(map(len, ended.out.splitlines())) <= 80


def test_all_methods_fit_into_a_line_and_those_that_do_not_apply_are_noted(qkv, folders):
    ended = qkv("explain", folders["rnn"], REVIEW, "--method", "all")
    assert ended.code == 0, ended.err
    assert "note: rollout" in ended.err
    assert len(ended.out.splitlines()[0].split()) == 6
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_long_text_shows_the_strongest_units_unless_all_are_asked_for(qkv, folders):
    few = qkv("explain", folders["rnn"], REVIEW, "--top", 3)
    assert len(few.out.splitlines()) == 5
    assert "more" in few.out.splitlines()[-1]
    everything = qkv("explain", folders["rnn"], REVIEW, "--top", 0)
    assert len(everything.out.splitlines()) > 15


def test_json_has_units_and_scores(qkv, folders):
    ended = qkv(
        "explain", folders["bert"], TEXT, "--method", "leave_one_out", "--target", "bad", "--json", "--faithfulness"
    )
    found = json.loads(ended.out)
    assert found["units"] == TEXT.split()
    assert found["method"] == "leave_one_out"
    (output,) = found["outputs"]
    assert output["output"] == "bad"
    assert len(output["scores"]) == 6
    assert len(output["comprehensiveness"]) == len(output["bins"]) == 5


def test_words_and_sentences_of_a_document(qkv, folders, tmp_path):
    (tmp_path / "review.txt").write_text(REVIEW)
    ended = qkv("explain", folders["han"], "--document", tmp_path / "review.txt", "--unit", "sentence", "--json")
    assert json.loads(ended.out)["units"] == ["A fine film.", "The cat was good, and the dog was fine."]
    assert "truncated to the model's maximum of 2 sentences" in ended.err
    words = json.loads(qkv("explain", folders["han"], REVIEW, "--json").out)
    assert words["units"][:4] == ["A", "fine", "film", "."]


def test_each_output_of_a_translator_or_one(qkv, run):
    lines = qkv("explain", run, "5 March 2026", "--top", 0)
    assert lines.code == 0, lines.err
    assert all("<-" in line for line in lines.out.splitlines()[1:])
    one = json.loads(qkv("explain", run, "5 March 2026", "--target", "0", "--json").out)
    assert len(one["outputs"]) == 1
    assert "".join(one["units"]) == "5 March 2026"


def test_regions_of_an_image(qkv, folders, tmp_path):
    page = tmp_path / "page.html"
    ended = qkv("explain", folders["captioner"], folders["picture"], "--target", "0", "--page", page)
    assert ended.code == 0, ended.err
    assert "attention" in ended.out
    (example,) = stored(page)["examples"]
    assert example["picture"]["kind"] == "explanation"
    assert len(example["explanation"]["methods"]) == 1


def test_patches_of_an_image_for_its_label(qkv, folders, tmp_path):
    page = tmp_path / "page.html"
    ended = qkv("explain", folders["vit"], folders["picture"], "--method", "all", "--target", "bag", "--page", page)
    assert ended.code == 0, ended.err
    (example,) = stored(page)["examples"]
    assert (example["picture"]["kind"], example["picture"]["grid"]) == ("explanation", [2, 2])
    assert len(example["explanation"]["methods"]) == 7
    (output,) = json.loads(qkv("explain", folders["vit"], folders["picture"], "--json").out)["outputs"]
    assert output["output"] in ("boot", "bag")
    assert len(output["scores"]) == 4


def test_tokens_of_a_prompt_for_the_next_token(qkv, folders, tmp_path):
    page = tmp_path / "page.html"
    ended = qkv("explain", folders["lm"], "a fine film", "--method", "all", "--page", page)
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["a", "fine", "film"]
    (example,) = stored(page)["examples"]
    assert len(example["predictions"][0]["candidates"]) == 10
    chosen = json.loads(qkv("explain", folders["lm"], "a fine film", "--target", "cat", "--json").out)
    assert chosen["outputs"][0]["output"].strip() == "cat"


def test_a_page_is_self_contained_and_escapes_tokens(qkv, folders, tmp_path):
    page = tmp_path / "page.html"
    ended = qkv("explain", folders["bert"], "<script> cat", "--method", "all", "--page", page, "--faithfulness")
    assert ended.code == 0, ended.err
    assert "<script> cat" not in page.read_text()
    payload = stored(page)
    (example,) = payload["examples"]
    assert (example["source"], payload["model"]) == ("<script> cat", "/".join(folders["bert"].parts[-2:]))
    assert payload["command"].startswith("qkv explain")
    methods = example["explanation"]["methods"]
    assert len(methods) == 7
    assert all(len(method["faithfulness"]) == 2 for method in methods)


def test_output_is_written_to_a_file(qkv, folders, tmp_path):
    ended = qkv("explain", folders["bert"], TEXT, "--output", tmp_path / "scores.txt")
    assert ended.out == f"{tmp_path / 'scores.txt'}\n"
    assert "mat" in (tmp_path / "scores.txt").read_text()


@pytest.fixture
def few_steps(monkeypatch):
    """A short search for adversarial weights."""
    monkeypatch.setattr(reweighting, "STEPS", 2)
    monkeypatch.setattr(reweighting, "PERMUTATIONS", 2)


def test_a_report_on_the_examples_of_a_run(qkv, run, tmp_path, few_steps):
    ended = qkv("explain", run, "--split", "test", "--limit", 1, "--output", tmp_path / "report.md", "--against", run)
    assert ended.code == 0, ended.err
    text = (tmp_path / "report.md").read_text()
    assert "| attention |" in text
    assert "Jain and Wallace" in text
    found = json.loads(qkv("explain", run, "--split", "test", "--limit", 1, "--json", "--method", "random").out)
    assert found["examples"] == 1
    assert set(found["methods"]) == {"random"}


@pytest.mark.parametrize(("model", "line"), [("lm", "a fine film"), ("vit", "{picture}")])
def test_a_report_on_prompts_and_images(qkv, folders, tmp_path, few_steps, model, line):
    (tmp_path / "inputs.txt").write_text(f"{line}\n".format(picture=folders["picture"]))
    found = json.loads(qkv("explain", folders[model], "--input", tmp_path / "inputs.txt", "--json").out)
    assert found["examples"] == 1
    assert len(found["methods"]) == 7
    assert len(found["heads"]) == 4


def test_a_report_on_the_images_of_a_table_without_a_single_query(qkv, folders, tmp_path, few_steps):
    (folders["picture"].parent / "images.csv").write_text("image,label\nred.png,boot\n")
    ended = qkv("explain", folders["mean vit"], "--input", folders["picture"].parent / "images.csv")
    assert ended.code == 0, ended.err
    assert "several queries" in ended.out
    assert "Head ablation" in ended.out
    assert "Jain" not in ended.out


def test_a_report_on_the_lines_of_a_file(qkv, folders, tmp_path, few_steps):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n\nthe dog sat\n")
    ended = qkv("explain", folders["bert"], "--input", tmp_path / "texts.txt", "--json", "--against", folders["bert"])
    found = json.loads(ended.out)
    assert found["examples"] == 2
    assert found["methods"]["gradient"]["seed_agreement"][0] == pytest.approx(1.0)
    assert len(found["heads"]) == 4


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("bert", [""], "empty"),
        ("bert", [" \n"], "empty"),
        ("bert", [], "pass one input"),
        ("bert", [TEXT, "--method", "gradeint"], "did you mean gradient"),
        ("bert", [TEXT, "--target", "godo"], "did you mean good"),
        ("bert", [TEXT, "--unit", "sentence"], "hierarchical"),
        ("bert", [TEXT, "--split", "test"], "--split"),
        ("bert", ["--split", "test"], "not a training run"),
        ("bert", [TEXT, "--against", "runs/other"], "--against"),
        ("mean", [REVIEW], "no attention"),
        ("rnn", [REVIEW, "--method", "rollout"], "self-attention"),
        ("tagger", [TEXT], "is a Bert with the head tagger, which cannot be explained"),
        ("captioner", ["missing.png"], "missing.png"),
        ("vit", ["missing.png"], "missing.png"),
        ("vit", ["{picture}", "--target", "bg"], "did you mean bag"),
        ("lm", ["a fine film", "--target", "cat dog"], "one token"),
        ("lm", [" ".join(["fine"] * 17)], "17 tokens"),
    ],
)
def test_bad_input_is_an_error(qkv, folders, model, arguments, words):
    arguments = [argument.format(picture=folders["picture"]) for argument in arguments]
    assert words in qkv("explain", folders[model], *arguments).error


def test_an_unknown_output_token_or_run_split_is_an_error(qkv, run):
    assert "index" in qkv("explain", run, "5 March 2026", "--target", "99").error
    assert "split" in qkv("explain", run, "--split", "tset").error
