"""The conversations: what is read of the files, malformed files, and the sizes of the real ones."""

import gzip
import hashlib
import json
import os
from dataclasses import replace

import pytest

from qkv.datasets.corpora.text import chitchat
from qkv.datasets.examples.dialogue import MAX_TURNS, Dialogue, parse_dialogues
from qkv.errors import InputError
from tests.datasets.build import load

LINES = ['{"id": "1", "prompt": "Pets?", "turns": ["Hi", "Hello\\n there "]}', "", '{"turns": ["a", "b", "c"]}']


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small file for each split, which replaces the real one."""
    files = []
    for number, file in enumerate(chitchat.ChitChat.files):
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(LINES[number:]).encode(), mtime=0))
        data = path.read_bytes()
        files.append(replace(file, sha256=hashlib.sha256(data).hexdigest(), size=len(data)))
    monkeypatch.setattr(chitchat.ChitChat, "files", tuple(files))
    monkeypatch.delenv("QKV_DATA", raising=False)
    return tmp_path


def test_dialogues_are_read_by_split(folder):
    data = load("chitchat", folder=str(folder))
    first, second = Dialogue(("Hi", "Hello there"), "Pets?"), Dialogue(("a", "b", "c"))
    assert data.splits == {"train": [first, second], "valid": [second], "test": [second]}
    assert [*data.training_texts()] == ["Hi", "Hello there", "a", "b", "c"]
    assert data.documents("train") == ["Hi\nHello there", "a\nb\nc"]
    assert (data.size("train"), data.truncated(1).size("train")) == (2, 1)
    assert next(data.preview("train")) == {"prompt": "Pets?", "turns": ("Hi", "Hello there")}


def test_a_changed_file_is_rejected(folder):
    path = folder / "chitchat" / "dev.jsonl.gz"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"dev\.jsonl\.gz"):
        load("chitchat", folder=str(folder))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "list of turns"),
        ("{}", "list of turns"),
        ('{"turns": "Hi"}', "list of turns"),
        ('{"turns": ["Hi"]}', "1 turn"),
        ('{"turns": ["Hi", ""]}', "turn 2"),
        ('{"turns": ["Hi", 3]}', "turn 2"),
        ('{"turns": ["Hi", null]}', "turn 2"),
        ('{"turns": ["Hi", "b"], "prompt": 1}', "prompt"),
        ('{"turns": ["Hi", "b"', "JSON"),
        ('{"turns": ["Hi", "\\ud800"]}', "JSON"),
        (json.dumps({"turns": ["a"] * (MAX_TURNS + 1)}), "10,000"),
        (json.dumps({"turns": ["a", "b" * 1_000_001]}), "characters"),
    ],
)
def test_a_malformed_line_is_named(line, words):
    with pytest.raises(InputError, match=words) as error:
        parse_dialogues(['{"turns": ["a", "b"]}', line], "file.jsonl")
    assert str(error.value).startswith("file.jsonl: line 2")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("key", "speaker", "text", "names"),
    [("messages", "role", "content", ("user", "assistant")), ("conversations", "from", "value", ("human", "gpt"))],
)
def test_messages_are_turns_and_those_of_the_system_the_prompt(key, speaker, text, names):
    first, second = names
    said = [("system", "Be brief."), (first, "Hi\nyou"), (second, "Hello."), (second, "Well?"), (first, "Yes")]
    line = {key: [{speaker: name, text: words} for name, words in said], "id": 3}
    assert parse_dialogues([json.dumps(line)], "f") == [Dialogue(("Hi you", "Hello. Well?", "Yes"), "Be brief.")]
    for bad, word in (
        ([{speaker: first, text: "Hi"}], "1 turn"),
        ([{speaker: first, text: "Hi"}, {speaker: second, text: ""}], "message 2"),
        ([{speaker: first, text: "Hi"}, {speaker: second}], "message 2"),
        ([{speaker: first, text: "Hi"}, {speaker: second, text: ["Hello"]}], "message 2"),
        (["Hi", "Hello"], "message 1"),
        ([{speaker: name, text: "Hi"} for name in ("Ann", "Bo", "Cy")], "Cy"),
        ([{speaker: first, text: "Hi"}, {speaker: second, text: None}], "no dialogues"),
    ):
        with pytest.raises(InputError, match=word):
            parse_dialogues([json.dumps({key: bad})], "f")


def test_calls_of_tools_and_other_roles_are_skipped_with_a_note(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    weather = [
        {"role": "user", "content": "Is it cold?"},
        {"role": "assistant", "content": "Wait."},
        call,
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {**call, "content": ""},
        {"role": "tool", "content": [{"text": "3"}]},
        {"role": "assistant", "content": "Yes."},
    ]
    lines = [json.dumps({"messages": messages}) for messages in (weather, [weather[0], call])]
    notes = []
    assert parse_dialogues(lines, "f", notes) == [Dialogue(("Is it cold?", "Wait. Yes."))]
    (note,) = notes
    for words in ("3 message(s) without text", "2 message(s) of other roles (tool)", "1 dialogue(s)"):
        assert words in note
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:1], json.dumps({"turns": ["a", "b"]})]))
    assert any("(tool)" in note for note in load("dialogues", train=(str(tmp_path / "a.jsonl"),)).notes)


def test_a_file_without_dialogues_is_an_error():
    with pytest.raises(InputError, match="no dialogues"):
        parse_dialogues(["", " "], "file.jsonl")


@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
def test_the_real_files_have_the_documented_sizes():
    splits = load("chitchat").splits
    assert {name: len(dialogues) for name, dialogues in splits.items()} == {"train": 2964, "valid": 124, "test": 155}
    assert sum(len(dialogue.turns) for dialogues in splits.values() for dialogue in dialogues) == 133_807
    assert not any("\n" in turn for dialogue in splits["train"] for turn in dialogue.turns)
