"""The requests and the code of the how-to page are answered by a server."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
NAMES = {"poet": "gpt", "minilm": "classifier"}
ROWS = [row for row in re.findall(r"^\| (`/.*) \| .* \| `(\{.*\})` \|$", PAGE, re.MULTILINE) if "base64" not in row[1]]
REQUESTS = [(path, body) for paths, body in ROWS for path in re.findall(r"`(/[\w/]+)`", paths)]
CHOSEN = {"/translate": "transformer", "/attention": "gpt", "/answer": "answerer"}  # where several models fit


@pytest.mark.parametrize(("path", "text"), REQUESTS)
def test_requests_of_the_page_are_answered(client, path, text):
    body = json.loads(text)
    body |= {"model": NAMES[body["model"]]} if "model" in body else {"model": CHOSEN[path]} if path in CHOSEN else {}
    if path == "/fill":
        body["input"] = ["A fine [MASK]."]
    if path == "/translate":
        body["input"] = body["input"].lower()
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text


def test_the_page_lists_every_endpoint_and_every_option_is_one_of_the_command(client, qkv_options):
    listed = set(re.findall(r"`(/[\w/{}]*)`", PAGE))
    assert set(client.get("/openapi.json").json()["paths"]) <= listed
    without_docker = re.sub(r"^## Docker\n.*?(?=^## )", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(--[\w-]+)", without_docker)) <= qkv_options


@pytest.fixture
def qkv_options():
    import typer

    from qkv.cli.main import app

    command = typer.main.get_command(app).commands["serve"]
    return {name for parameter in command.params for name in parameter.opts}


def test_the_python_code_of_the_page_runs(folders, capsys):
    pytest.importorskip("openai", reason="openai is not installed")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    with serving(f"poet={folders['gpt']}", f"minilm={folders['classifier']}") as server:
        exec(code.replace("localhost:8000", f"127.0.0.1:{server.port}"), names)
    assert len(capsys.readouterr().out) == 50
    assert len(names["vectors"]) == 2
