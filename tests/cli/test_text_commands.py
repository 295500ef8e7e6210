"""`qkv classify`, `tag`, `fill` and `embed`: one output line per input line, in order."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import qkv as library
from qkv.cli import texts as texts_module
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

LINES = ["A good film.", "", "bad", "the cat sat on the mat, the dog on the cat!", "playing dogs", "  ", "a"]
NONEMPTY = [line for line in LINES if line.strip()]
COMMANDS = ("classify", "tag", "fill", "embed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An untrained model for each command."""
    path = tmp_path_factory.mktemp("text-encoders")
    tokenizer = tiny_tokenizer(path)
    models = {
        "classify": tiny_bert("classifier", labels=3, label_names=("negative", "neutral", "positive"), max_length=10),
        "tag": tiny_bert("tagger", labels=3, label_names=("B-location", "I-location", "O")),
        "fill": tiny_bert("masked_lm"),
        "embed": tiny_bert(None, pooler=False, max_length=10),
    }
    return {command: saved(model, tokenizer, path / command) for command, model in models.items()}


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "CHUNK", 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def objects(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_classify_prints_one_line_per_input(qkv, folders, file):
    done = qkv("classify", folders["classify"], "--input", file, "--top-k", 2)
    assert done.code == 0
    assert "note: 2 empty line(s)" in done.err
    assert "is truncated to the model's maximum of 8 tokens" in done.err
    wanted = iter(library.Classifier(folders["classify"], device="cpu")(NONEMPTY))
    for line, row in zip(LINES, done.out.removesuffix("\n").split("\n"), strict=True):
        if not line.strip():
            assert row == ""
            continue
        (first, p), (second, q), _ = next(wanted).probabilities.items()
        assert row == f"{first}\t{p:.4f}\t{second}\t{q:.4f}"


def test_classify_json_has_all_probabilities(qkv, folders, file):
    done = qkv("classify", folders["classify"], "--input", file, "--json", "--batch-size", 1)
    found = objects(done.out)
    assert [(one["input"], one["text"]) for one in found] == [*enumerate(LINES, start=1)]
    assert found[1] == {"input": 2, "text": "", "label": None, "score": None, "probabilities": {}}
    wanted = iter(library.Classifier(folders["classify"], device="cpu")(NONEMPTY))
    for one in (one for one in found if one["text"].strip()):
        answer = next(wanted)
        assert one["label"] == answer.label
        assert {key: value for key, value in one.items() if key != "input"} == answer.to_dict()
        assert one["score"] == pytest.approx(answer.score, abs=2e-6)
        assert one["probabilities"] == pytest.approx(answer.probabilities, abs=2e-6)


def test_tag_prints_word_and_tag(qkv, folders, file):
    tagger = library.Tagger(folders["tag"], device="cpu")
    done = qkv("tag", folders["tag"], "--input", file)
    answers = {line: tagger(line) for line in NONEMPTY}
    wanted = [
        " ".join(f"{word}/{tag}" for word, tag in zip(answers[line].words, answers[line].tags, strict=True))
        if line.strip() else ""
        for line in LINES
    ]  # fmt: skip
    assert done.out.removesuffix("\n").split("\n") == wanted
    assert wanted[0].startswith("A/")
    assert " ./" in wanted[0]
    found = objects(qkv("tag", folders["tag"], "--input", file, "--json").out)
    assert found[1] == {"input": 2, "text": "", "words": [], "tags": [], "offsets": [], "entities": []}
    for one in (one for one in found if one["text"].strip()):
        assert [one["text"][start:end] for start, end in one["offsets"]] == one["words"]
        assert one["tags"] == [*answers[one["text"]].tags]
        for entity, wanted_entity in zip(one["entities"], answers[one["text"]].entities, strict=True):
            assert entity == vars(wanted_entity)
    assert any(one["entities"] for one in found)


def test_a_conllu_file_is_read_by_sentence(qkv, folders, tmp_path):
    sentences = [["A", "good", "film."], ["bad"], ["do", "n't"], ["the", "cat"]]  # in two chunks
    rows = (
        "".join(f"{n}\t{word}\t_\tX\t_\t_\t{n - 1}\tdep\t_\t_\n" for n, word in enumerate(words, start=1))
        for words in sentences
    )
    (tmp_path / "in.conllu").write_text("\n".join(rows))
    found = objects(qkv("tag", folders["tag"], "--input", tmp_path / "in.conllu", "--json").out)
    wanted = library.Tagger(folders["tag"], device="cpu")([tuple(words) for words in sentences])
    assert [(one["text"], one["words"], one["tags"]) for one in found] == [
        (one.text, list(one.words), list(one.tags)) for one in wanted
    ]
    (tmp_path / "in.conllu").write_text("# nothing else\n")
    assert "in.conllu: " in qkv("tag", folders["tag"], "--input", tmp_path / "in.conllu").error


def test_fill_numbers_texts_and_masks(qkv, folders):
    one, two = "The [MASK] sat.", "<mask> and [MASK]"
    done = qkv("fill", folders["fill"], one, two, "--top-k", 2)
    assert (done.code, done.err) == (0, "")
    filler = library.MaskFiller(folders["fill"], device="cpu")
    rows = [
        f"{number}\t{mask}\t{guess.probability:.4f}\t{guess.word}"
        for number, text in enumerate((one, two), start=1)
        for mask, guesses in enumerate(filler(text, top_k=2).guesses, start=1)
        for guess in guesses
    ]
    assert done.out.splitlines() == rows
    assert len(rows) == 6
    found = objects(qkv("fill", folders["fill"], "--json", "--top-k", 1, stdin=f"{one}\n\n{two}\n".encode()).out)
    assert found[1] == {"input": 2, "text": "", "filled": "", "masks": []}
    assert found[2]["filled"] == filler(two).filled
    assert [[guess["word"] for guess in guesses] for guesses in found[2]["masks"]] == [
        [guesses[0].word] for guesses in filler(two).guesses
    ]


def test_embed_writes_vectors_in_order(qkv, folders, file, tmp_path):
    wanted = library.Embedder(folders["embed"], device="cpu")(NONEMPTY, pooling="cls", normalize=False).numpy()
    options = ("--pooling", "cls", "--no-normalize")
    for name in ("vectors.npy", "vectors.safetensors"):
        done = qkv("embed", folders["embed"], "--input", file, "--output", tmp_path / name, *options)
        assert (done.code, done.out) == (0, f"{tmp_path / name}\n")
    as_numpy, as_tensors = np.load(tmp_path / "vectors.npy"), load_file(tmp_path / "vectors.safetensors")["vectors"]
    np.testing.assert_array_equal(as_numpy, as_tensors)
    assert (as_numpy.shape, as_numpy.dtype) == ((len(LINES), 16), np.float32)
    filled = [bool(line.strip()) for line in LINES]
    np.testing.assert_allclose(as_numpy[filled], wanted, atol=1e-5)
    assert not as_numpy[[not one for one in filled]].any()


def test_embed_prints_vectors_as_json(qkv, folders, tmp_path):
    done = qkv("embed", folders["embed"], "--json", "--output", tmp_path / "v.npy", stdin=b"a cat\n\nthe dog\n")
    first, empty, last = objects(done.out)
    assert empty == {"input": 2, "text": "", "vector": None}
    wanted = library.Embedder(folders["embed"], device="cpu")(["a cat", "the dog"])
    np.testing.assert_allclose([first["vector"], last["vector"]], wanted, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(first["vector"]), 1.0, atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[2], wanted[1], atol=1e-6)


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_file_and_stdin_give_the_same_output(qkv, folders, tmp_path, command):
    (tmp_path / "in.txt").write_text("a [MASK]\nthe [MASK] cat\n")
    start = (command, folders[command], "--json")
    by_argument = qkv(*start, "a [MASK]", "the [MASK] cat")
    by_file = qkv(*start, "--input", tmp_path / "in.txt")
    by_stdin = qkv(*start, stdin=b"a [MASK]\nthe [MASK] cat\n")
    assert by_argument.code == 0
    assert by_argument.out == by_file.out == by_stdin.out
    assert len(objects(by_file.out)) == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "--input", "x.txt"], "--input"),
        (["--input", "none.txt"], "none.txt: no such file"),
        (["a", ""], "input 2 is empty"),
        ([], "standard input: "),
        (["a [MASK]", "--batch-size", "0"], "--batch-size"),
        (["a [MASK]", "--device", "tpu"], "device 'tpu'"),
    ],
)
def test_invalid_input_is_an_error(qkv, folders, command, arguments, words):
    assert words in qkv(command, folders[command], "--json", *arguments).error


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("classify", ["a", "--top-k", "0"], "--top-k"),
        ("fill", ["a [MASK]", "a cat"], "input 2 "),
        ("fill", ["[MASK] " * 40], "input 1 "),
        ("embed", ["a"], "--output FILE.npy"),
        ("embed", ["a", "--output", "v.txt"], "--output v.txt: "),
        ("embed", ["a", "--json", "--pooling", "max"], "'max'"),
        ("embed", ["a", "--json", "--pooling", "pooler"], "pooler"),
    ],
)
def test_invalid_arguments_are_errors(qkv, folders, command, arguments, words):
    assert words in qkv(command, folders[command], *arguments).error


@pytest.mark.parametrize(("command", "other"), [("classify", "tag"), ("tag", "fill"), ("fill", "embed")])
def test_a_model_for_another_command_is_an_error(qkv, folders, command, other):
    error = qkv(command, folders[other], "a [MASK]").error
    assert error.startswith(f"{folders[other]}: ")
    assert "head" in error


def test_translate_rejects_a_text_encoder(qkv, folders):
    assert "text encoder" in qkv("translate", folders["tag"], "a").error


def test_strict_makes_empty_lines_errors(qkv, folders, file):
    assert "input 2 is empty" in qkv("tag", folders["tag"], "--input", file, "--strict").error


REVIEWS = [{"id": 1, "feedback": "a fine film", "stars": 5}, {"id": 2, "feedback": "dull, and too long", "stars": 1}]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json"])
def test_the_texts_of_a_table_are_those_of_one_column(suffix, qkv, tmp_path):
    file = tmp_path / f"reviews{suffix}"
    rows = [list(REVIEWS[0]), *(list(map(str, row.values())) for row in REVIEWS)]
    if suffix in (".csv", ".tsv"):
        separator, quote = (",", '"') if suffix == ".csv" else ("\t", "")
        file.write_text("".join(separator.join(f"{quote}{cell}{quote}" for cell in row) + "\n" for row in rows))
    elif suffix == ".json":
        file.write_text(json.dumps(REVIEWS))
    else:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in REVIEWS))
    done = qkv("classify", "sentiment", "--input", file, "--column", "text=feedback", "--json")
    assert [shown["text"] for shown in objects(done.out)] == [row["feedback"] for row in REVIEWS]
    assert "text is 'feedback'" in done.err
    assert "text" in qkv("classify", "sentiment", "--input", file).error
    named = tmp_path / f"named{suffix}"
    named.write_text(file.read_text().replace("feedback", "review"))
    for command in (("classify", "sentiment"), ("tag", "ewt-pos"), ("view", "sentiment")):
        page = ("--page", tmp_path / "page.html") if command[0] == "view" else ()
        assert "text is 'review'" in qkv(*command, "--input", named, *page).err


def test_tables_are_translated_into_a_file(qkv, tmp_path):
    (tmp_path / "dates.csv").write_text('id,source\n1,"5 May 2020"\n2,"6 May 2020"\n')
    qkv("translate", "dates", "--input", tmp_path / "dates.csv", "--output", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "2020-05-05\n2020-05-06\n"
    (tmp_path / "dates.txt").write_text("5 May 2020\n")
    more = ("--input", tmp_path / "dates.txt", "--output", tmp_path / "new.txt", "--column", "text=a")
    assert "table" in qkv("translate", "dates", *more).error
