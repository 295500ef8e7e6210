"""`qkv chat`: lines, JSON, attention, the terminal, interruption, and errors."""

import builtins
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.cli.main import main
from qkv.hub.model_folder import save_model
from qkv.pipelines.chat_bot import ChatBot
from tests.pipelines.chat_bots import dialogue_model

from .command import Ended

Command = Callable[..., Ended]
GREEDY = ["--temperature", 0, "--max-new-tokens", 6]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    network = dialogue_model("transformer")
    save_model(network, network.tokenizer, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command on a terminal, with the lines that a user enters; an exception is raised as it is."""

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    def call(lines: list[str | BaseException], *arguments: object) -> Ended:
        entered = iter([*lines, EOFError()])

        def enter(prompt: str = "") -> str:
            line = next(entered)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(sys, "argv", ["qkv", "chat", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Keyboard())
        monkeypatch.setattr(builtins, "input", enter)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return call


def expected(model: Path, *messages: str) -> list[str]:
    bot = ChatBot(model, device="cpu")
    return [bot(message, temperature=0, max_new_tokens=6).text for message in messages]


def test_messages_are_one_conversation_until_an_empty_line(qkv: Command, model: Path, tmp_path: Path) -> None:
    ended = qkv("chat", model, "hi there", "how are you?", *GREEDY)
    replies = expected(model, "hi there", "how are you?")
    assert (ended.code, ended.out, ended.err) == (0, "".join(f"{text}\n" for text in replies), "")
    lines = b"hi there\n\nhow are you?\n"
    again = expected(model, "how are you?")
    assert qkv("chat", model, *GREEDY, stdin=lines).out.split("\n") == [replies[0], "", *again, ""]
    (tmp_path / "in.txt").write_bytes(lines)
    ended = qkv("chat", model, *GREEDY, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert (ended.code, ended.out) == (0, f"{tmp_path / 'out.txt'}\n")
    assert (tmp_path / "out.txt").read_text() == f"{replies[0]}\n\n{again[0]}\n"


def test_messages_of_a_table(qkv: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "messages.csv").write_text("id,message\n1,hi there\n2,how are you?\n")
    ended = qkv("chat", model, *GREEDY, "--input", tmp_path / "messages.csv")
    assert ended.out.splitlines() == expected(model, "hi there", "how are you?")
    assert "text is 'message'" in ended.err
    assert "no column" in qkv("chat", model, "--input", tmp_path / "messages.csv", "--column", "text=txt").error
    assert "table" in qkv("chat", model, "hi", "--column", "text=a").error


def test_json_has_the_history_and_the_attention_between_words(qkv: Command, model: Path) -> None:
    ended = qkv("chat", model, *GREEDY, "--json", "--attention", stdin=b"hi there\nok\n\nhello\n")
    first, second, empty, third = map(json.loads, ended.out.splitlines())
    assert [row["input"] for row in (first, second, empty, third)] == [1, 2, 3, 4]
    assert [row["conversation"] for row in (first, second, empty, third)] == [1, 1, 1, 2]
    assert (empty["text"], empty["score"]) == ("", None)
    assert second["history"] == ["hi there", first["text"], "ok"]
    assert third["history"] == ["hello"]
    assert first["history_words"] == ["<speaker1>", "hi", "there", "</s>", "<speaker2>"]
    assert len(first["attention"]) == len(first["words"]) == len(first["text"].split())
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in first["attention"])


def test_heat_map_and_page(qkv: Command, model: Path, tmp_path: Path) -> None:
    ended = qkv("chat", model, "do you like cats?", *GREEDY, "--attention", "--page", tmp_path / "page.html")
    assert ended.code == 0
    assert "cats?" in ended.out
    assert "average of 2 heads" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "cats" in (tmp_path / "page.html").read_text()


def test_a_conversation_on_the_terminal(converse: Command, model: Path) -> None:
    ended = converse(["hi there", "", "ok", "/new", "hi there"], model, *GREEDY)
    replies = expected(model, "hi there", "ok")
    assert ended.code == 0
    assert ended.out.splitlines() == [*replies, replies[0]]
    assert "new conversation" in ended.err
    assert converse([], model).code == 0
    assert converse([" ", "/quit", "hi"], model).out == ""


def test_a_message_that_fails_does_not_end_the_conversation(converse: Command, model: Path) -> None:
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    ended = converse([broken, "\ud800", "hi there"], model, *GREEDY)
    assert (ended.code, ended.out.splitlines()) == (0, expected(model, "hi there"))
    assert ended.err.count("note: ") == 2


def test_ctrl_c_ends_with_130_after_the_page_is_written(converse: Command, model: Path, tmp_path: Path) -> None:
    ended = converse(["hi there", KeyboardInterrupt()], model, *GREEDY, "--page", tmp_path / "page.html")
    assert (ended.code, ended.out.splitlines()) == (130, expected(model, "hi there"))
    assert (tmp_path / "page.html").exists()
    assert "error" not in ended.err


def test_a_long_conversation_and_a_long_message_are_noted_once(qkv: Command, model: Path) -> None:
    messages = ["hi", "ok", "good", "hello"]
    ended = qkv("chat", model, *messages, *GREEDY, "--history-turns", 2)
    assert (ended.code, ended.out.count("\n")) == (0, 4)
    assert ended.err == "note: the history is limited to the last 2 turn(s) from input 2 on\n"
    ended = qkv("chat", model, "how are you? " * 50, *GREEDY)
    assert (ended.code, "too long" in ended.err) == (0, True)


def test_bad_input_is_one_line_with_exit_code_2(
    qkv: Command, converse: Command, run: Path, model: Path, tmp_path: Path
) -> None:
    assert "empty" in qkv("chat", model).error
    assert "empty" in qkv("chat", model, stdin=b"\n \n").error
    assert "empty" in qkv("chat", model, "").error
    (tmp_path / "in.txt").write_text("hi")
    assert "--input" in qkv("chat", model, "hi", "--input", tmp_path / "in.txt").error
    assert "UTF-8" in qkv("chat", model, stdin=b"\xff\xfe\n").error
    assert "--max-new-tokens" in qkv("chat", model, "hi", "--max-new-tokens", 0).error
    assert "--top-p" in qkv("chat", model, "hi", "--top-p", 2).error
    assert "--history-turns" in qkv("chat", model, "hi", "--history-turns", 0).error
    assert "no such folder" in qkv("chat", tmp_path / "none", "hi").error
    assert "dialogue" in qkv("chat", run, "hi").error
    assert "--output" in converse(["hi"], model, "--output", tmp_path / "out.txt").error


def test_a_run_sets_the_limits_of_the_history(qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.datasets.corpora.text.chitchat import ChitChat
    from tests.pipelines.chat_bots import DATA

    monkeypatch.setattr(ChitChat, "read", lambda self: DATA)
    small = [
        "data.tokenizer.vocab_size=80", "model.dim=8", "model.heads=2", "model.layers=1", "model.max_length=64",
        "task.length=32", "task.history_turns=2", "task.history_tokens=30", "task.response_tokens=20",
        "train.epochs=1", "train.batch_size=64",
    ]  # fmt: skip
    settings = [part for setting in small for part in ("--set", setting)]
    trained = qkv("train", "chitchat-gpt", *settings, "--output", tmp_path / "run", "--device", "cpu")
    assert trained.code == 0
    assert "qkv chat" in trained.err
    ended = qkv("chat", tmp_path / "run", "hi", "ok", "good", "--max-new-tokens", 3, "--json")
    assert [len(json.loads(line)["history"]) for line in ended.out.splitlines()] == [1, 2, 2]
    report = json.loads(qkv("evaluate", tmp_path / "run", "--json").out)
    assert {"perplexity", "distinct_1", "distinct_2"} <= report.keys()
    assert report["size"] == 4
    limited = json.loads(qkv("evaluate", tmp_path / "run", "--limit", 1, "--split", "valid", "--json").out)
    assert limited["size"] == 4
    assert qkv("view", tmp_path / "run", "hi\nhello", "--page", tmp_path / "view.html").code == 0


def test_view_shows_responses_to_first_turns(qkv: Command, model: Path, tmp_path: Path) -> None:
    ended = qkv("view", model, "hi there\nhello", "--page", tmp_path / "view.html")
    assert (ended.code, "hello" in ended.err) == (0, True)


def test_the_python_code_of_the_how_to_page_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    model.rename(tmp_path / "runs" / "chitchat-transformer-0")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "chat.md"
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(code, page.name, "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 3
