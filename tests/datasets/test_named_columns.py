"""Tables with named columns: which columns are used for each kind of examples, and errors that name the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.datasets.detect import infer_kind
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.squad import Passage, Question
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.formats.roles import match_columns
from qkv.datasets.user_files import FORMATS_PAGE, user_datasets
from qkv.errors import InputError
from qkv.training.recipe import recipe_names
from tests.datasets.build import dataset, load

REVIEWS = [(f"film {number} is {'good' if number % 2 else 'bad'} to watch", str(number % 2)) for number in range(20)]


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def read(path: Path, kind: str, **options: Any) -> tuple[list[Any], tuple[str, ...]]:
    data = load(kind, train=(str(path),), **options)
    return data.splits["train"] + data.splits["valid"], data.notes


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.csv", "id,review,label"),
        ("a.csv", "label,id,review"),
        ("a.tsv", "label\ttext"),
        ("a.CSV", "Label,Review"),
        ("a.csv", "sentiment;comment"),
        ("a.csv", "sep=;\nsentiment;comment"),
    ],
)
def test_columns_are_found_by_their_names_in_any_order(tmp_path, name, header):
    separator = next(character for character in ",;\t" if character in header)
    names = [name.lower() for name in header.splitlines()[-1].split(separator)]
    cells = {"id": "7", **dict.fromkeys(("review", "text", "comment"), 0), **dict.fromkeys(("label", "sentiment"), 1)}
    rows = [
        separator.join(row[cells[column]] if isinstance(cells[column], int) else "7" for column in names)
        for row in REVIEWS
    ]
    examples, notes = read(write(tmp_path, name, "\n".join([header, *rows])), "labelled")
    assert {(pair.source, pair.target) for pair in examples} == set(REVIEWS)
    assert "header" in notes[0]
    assert "id" in names or "ignored" not in notes[0]


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("labelled", [{"review": text, "label": label} for text, label in REVIEWS]),
        ("pairs", [{"translation": {"en": f"house {number}", "de": f"Haus {number}"}} for number in range(20)]),
        ("tagged", [{"tokens": ["Ann", f"{number}"], "ner_tags": ["B-PER", "O"]} for number in range(20)]),
        ("questions", [{"question": f"{n}?", "context": f"It is {n}.", "answer": f"{n}"} for n in range(20)]),
        ("dialogues", [{"turns": [f"Hello {number}!", "Hi!"]} for number in range(20)]),
        ("text", [{"text": f"One day {number}\nof many."} for number in range(20)]),
    ],
)
def test_a_json_array_is_read_like_json_lines(tmp_path, kind, entries):
    array = write(tmp_path, "a.json", json.dumps(entries, indent=1))
    lines = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, entries)))
    assert infer_kind([array]) == infer_kind([lines]) == kind
    assert read(array, kind)[0] == read(lines, kind)[0]


def test_a_broken_json_array_is_an_error(tmp_path):
    with pytest.raises(InputError, match="not valid JSON"):
        read(write(tmp_path, "a.json", '[{"text": "a", "label": '), "labelled")
    with pytest.raises(InputError, match="entry 2"):
        read(write(tmp_path, "a.json", '[{"text": "a", "label": "b"}, 3]'), "labelled")


@pytest.mark.parametrize(("content", "message"), [("[]", "empty"), ("[1, 2, 3]", "entry 1"), ('["a", "b"]', "entry 1")])
def test_a_json_array_without_objects_is_an_error(tmp_path, content, message):
    path = write(tmp_path, "a.json", content)
    with pytest.raises(InputError, match=message):
        infer_kind([path])
    with pytest.raises(InputError, match=message):
        read(path, "text")


@pytest.mark.parametrize(
    ("kind", "names", "matched"),
    [
        ("labelled", "review_id,Review Text,stars_given", {"text": "Review Text", "label": "stars_given"}),
        ("labelled", "reviewText,label_id", {"text": "reviewText", "label": "label_id"}),
        ("labelled", "text,sentiment_score,sentiment_label", {"text": "text", "label": "sentiment_label"}),
        ("labelled", "TEXT,star_class,topic_class", {"text": "TEXT"}),  # ambiguous
        ("labelled", "review_id,class", {"label": "class"}),
        ("labelled", "a text of several words,label", {"label": "label"}),
        ("pairs", "source_text,target_text", {"source": "source_text", "target": "target_text"}),
        ("pairs", "question_text,answer_text", {"source": "question_text", "target": "answer_text"}),
        ("questions", "Question,context-text,Answer Text", {"question": "Question", "context": "context-text",
                                                            "answer": "Answer Text"}),
    ],
)  # fmt: skip
def test_columns_are_found_by_parts_of_their_names(kind, names, matched):
    assert match_columns(names.split(","), user_datasets()[kind].roles, {}, "f") == matched


@pytest.mark.parametrize(
    ("header", "kind"), [("Review Text,stars_given", "labelled"), ("source_text,target_text", "pairs")]
)
def test_a_header_is_found_by_parts_of_its_names(tmp_path, header, kind):
    cells = [(f"text {number}", f"other {number % 2 if kind == 'labelled' else number}") for number in range(9)]
    path = write(tmp_path, "a.csv", "\n".join([header, *map(",".join, cells)]))
    assert infer_kind([path]) == kind
    assert {(pair.source, pair.target) for pair in read(path, kind)[0]} == set(cells)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_columns_can_be_named(tmp_path, name):
    rows = [{"a": "x", "b": text, "c": label} for text, label in REVIEWS]
    separator = "," if name.endswith("csv") else "\t"
    lines = ["a,b,c".replace(",", separator), *(separator.join(row.values()) for row in rows)]
    path = write(tmp_path, name, "\n".join(map(json.dumps, rows) if name.endswith("jsonl") else lines))
    examples, _ = read(path, "labelled", column_names={"text": "b", "label": "c"})
    assert {(pair.source, pair.target) for pair in examples} == set(REVIEWS)
    for columns, word in (({"text": "d"}, "'d'"), ({"txt": "b"}, "text"), ({"text": "b"}, "label")):
        with pytest.raises(InputError, match=word):
            read(path, "labelled", column_names=columns)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("de,en", Pair("eins", "one")),
        ("id,de,en", Pair("eins", "one")),
        ("target,source", Pair("one", "eins")),
        ("Article,Summary", Pair("eins", "one")),
    ],
)
def test_pairs_of_languages_keep_their_order(tmp_path, header, expected):
    prefix = "1," if header.startswith("id") else ""
    content = f"{header}\n{prefix}eins,one\n{prefix}zwei,two\n{prefix}drei,three\n"
    assert expected in read(write(tmp_path, "a.csv", content), "pairs")[0]


def test_tagged_sentences_are_lists_or_texts_of_words(tmp_path):
    entries = [{"tokens": ["Ada", f"runs{number}"], "ner_tags": ["PER", "O"]} for number in range(5)]
    lists = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, entries)))
    texts = write(tmp_path, "a.csv", "words,tags\n" + "".join(f"Ada runs{number},PER O\n" for number in range(5)))
    expected = {Tagged(("Ada", f"runs{number}"), ("PER", "O")) for number in range(5)}
    assert set(read(lists, "tagged")[0]) == set(read(texts, "tagged")[0]) == expected
    for bad, word in (
        ('{"tokens": ["a", "b"], "tags": ["O"]}', "line 6"),
        ('{"tokens": [""], "tags": ["O"]}', "empty"),
    ):
        path = write(
            tmp_path, "bad.jsonl", "\n".join([*map(json.dumps, entries)]) + f"\n{bad.replace('tags', 'ner_tags')}"
        )
        with pytest.raises(InputError, match=word):
            read(path, "tagged")


def test_answers_are_found_in_their_context(tmp_path):
    rows = "".join(f"Where is Ada?,Ada lives in Rome {number}.,Rome {number}\n" for number in range(4))
    path = write(tmp_path, "a.csv", f"question,context,answer\n{rows}Why?,Nobody knows.,\n")
    questions, notes = read(path, "questions")
    assert Question("Where is Ada?", "Ada lives in Rome 2.", (Passage(13, 19),)) in questions
    assert Question("Why?", "Nobody knows.") in questions
    assert any("unanswerable" in note for note in notes)
    entry = {"question": "Who?", "context": "Ada met Ada.", "answers": {"text": ["Ada"], "answer_start": [8]}}
    path = write(tmp_path, "a.jsonl", "\n".join(json.dumps({**entry, "question": f"Who {n}?"}) for n in range(3)))
    with pytest.raises(InputError, match="the same text that they are about"):  # one text cannot be split
        read(path, "questions")
    path = write(tmp_path, "b.jsonl", path.read_text() + f"\n{json.dumps({**entry, 'context': 'So Ada came.'})}")
    with pytest.raises(InputError, match="line 4"):
        read(path, "questions")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.csv", "text,label\na,b\nc,d,e\n", "line 3"),
        ("a.csv", "id,text,label\n1,a,b\n2,a\n", "line 3"),
        ("a.csv", "a,b,c\nd,e,f\n", "header"),
        ("a.csv", f'text,label\n"{"x" * 200_000}",b\n', "JSON Lines"),
        ("a.csv", "text,label\na\0,b\n", "NUL"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "a", \n', "line 2"),
        ("a.jsonl", '{"text": "a", "label": {"x": {"y": 1}}}\n', "line 1"),
        ("a.jsonl", '{"text": "a", "label": [{}]}\n', "label"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}\n', "list"),
    ],
)
def test_malformed_tables_are_errors_that_name_the_line_and_the_page(tmp_path, name, content, word):
    with pytest.raises(InputError, match=word) as error:
        load("labelled", train=(str(write(tmp_path, name, content)),))
    assert f"{FORMATS_PAGE}#labeled-texts" in str(error.value)
    assert len(str(error.value)) < 400


def test_byte_order_marks_quoted_newlines_and_empty_cells_are_read(tmp_path):
    rows = "".join(f'"a ""quoted"" text\nof two lines {number}",yes\n' for number in range(5))
    content = f'\ufefftext,label\n{rows}\n"",no\n'
    examples, notes = read(write(tmp_path, "a.csv", content), "labelled")
    assert Pair('a "quoted" text\nof two lines 3', "yes") in examples
    assert any("skipped 2 line(s)" in note for note in notes)


def test_a_folder_with_files_for_splits_is_read_as_splits(tmp_path):
    for name, rows in (("train.csv", REVIEWS[:10]), ("dev.csv", REVIEWS[8:14]), ("test.tsv", REVIEWS[14:])):
        separator = "\t" if name.endswith("tsv") else ","
        write(tmp_path, name, "\n".join(separator.join(row) for row in rows))
    (tmp_path / "notes.md").write_text("about the data")
    config = dataset("labelled", train=(str(tmp_path),))
    data = config.load()
    assert {split: len(examples) for split, examples in data.splits.items()} == {"train": 10, "valid": 6, "test": 6}
    assert any("2 of 6 texts of valid are also in train" in warning for warning in config.duplicates(data.splits))
    write(tmp_path, "train.jsonl", "{}")
    with pytest.raises(InputError, match="several files"):
        load("labelled", train=(str(tmp_path),))


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.csv", "text,label\na,b\n", "labelled"),
        ("a.csv", "stars,review\n1,good\n", "labelled"),
        ("a.csv", "en,de\na,b\n", "pairs"),
        ("a.csv", "image,caption\n1.png,a dog\n2.png,a cat\n", "captions"),
        ("a.csv", "file_name,text\n1.WAV,one\n2.wav,two\n", "speech"),
        ("a.csv", "file_name,label\n1.jpg,cat\n2.jpg,dog\n3.jpg,cat\n4.jpg,dog\n", "images"),
        ("a.tsv", "1.wav\tone\n2.wav\ttwo\n3.wav\tthree\n", "speech"),
        ("a.csv", "question,context,answer\na,b,b\n", "questions"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["b"]}\n', "tagged"),
        ("a.jsonl", '{"text": "a"}\n', "text"),
        ("a.tsv", "".join(f"text {number}\t{number % 2}\n" for number in range(8)), "labelled"),
        ("a.tsv", "".join(f"text {number}\ttarget {number}\n" for number in range(8)), "pairs"),
        ("a.txt", "a line\nanother\n", "text"),
        ("a.json", "{}", "questions"),
        ("a.jsonl", '{"turns": ["a", "b"]}\n', "dialogues"),
        ("a.jsonl", '{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}\n', "dialogues"),
        ("a.jsonl", '{"id": 1, "conversations": [{"from": "human", "value": "a"}]}\n', "dialogues"),
        ("a.txt", "1 Ada left.\n2 Who left?\tAda\t1\n", "stories"),
        ("a.txt", "(TOP (X (Y z)))\n(TOP (X (Y w)))\n", "trees"),
    ],
)  # fmt: skip
def test_the_kind_is_inferred_from_columns_and_cells(tmp_path, name, content, kind):
    assert infer_kind([write(tmp_path, name, content)]) == kind


def test_questions_of_a_story_stay_in_one_split(tmp_path):
    stories = [
        f"1 {name} left.\n2 Who left?\t{name}\t1\n3 {name} came.\n4 Who came?\t{name}\t3\n"
        for name in ("Ada", "Bo", "Cy", "Di", "Ed")
    ]
    splits = load("stories", train=(str(write(tmp_path, "a.txt", "".join(stories))),), valid_share=0.4).splits
    answers = {split: sorted(question.answer for question in questions) for split, questions in splits.items()}
    assert len(answers["valid"]) == 4
    assert answers["valid"][0] == answers["valid"][1] != answers["valid"][2] == answers["valid"][3]
    assert not set(answers["train"]) & set(answers["valid"])


def test_every_kind_has_a_recipe_and_a_section_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / f"{FORMATS_PAGE}.md").read_text(encoding="utf-8")
    sections = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    for name, reader in user_datasets().items():
        assert reader.recipe in recipe_names(), name
        assert reader.section in sections, name
