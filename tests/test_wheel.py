"""The built wheel: it contains every data file, and works in a clean environment without training and network."""

import fnmatch
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "qkv"
MAX_PRETRAINED_BYTES = 40e6
MAX_SECONDS = 6.0  # of a command, on two cores
NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}  # nothing listens there
COMMANDS = {
    "translate": ["translate", "tatoeba-en-de", "Where is the station?"],
    "generate": ["generate", "shakespeare", "ROMEO:", "--max-new-tokens", "100"],
    "tag": ["tag", "ewt-pos", "The old man the boat."],
    "classify": ["classify", "sentiment", "A warm, funny and moving film."],
    "view": ["view", "tatoeba-en-de", "Where is the station?"],
}


def data_files() -> list[Path]:
    """All files of the package that are not modules."""
    ignored = {".py", ".pyc"}
    return [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in ignored]


def test_every_data_file_is_in_the_package_data() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["qkv"]
    names = [path.relative_to(PACKAGE).as_posix() for path in data_files()]

    def matches(name: str, pattern: str) -> bool:
        parts, expected = name.split("/"), pattern.split("/")
        return len(parts) == len(expected) and all(map(fnmatch.fnmatch, parts, expected))

    missing = [name for name in names if not any(matches(name, pattern) for pattern in patterns)]
    assert len(names) > 80
    assert missing == []
    unused = [pattern for pattern in patterns if not any(matches(name, pattern) for name in names)]
    assert unused == []


def test_the_version_is_the_same_everywhere() -> None:
    import qkv

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == qkv.__version__
    assert f"version: {qkv.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_weights_of_pretrained_models_are_small() -> None:
    assert sum(path.stat().st_size for path in PACKAGE.glob("pretrained/*/*.safetensors")) <= MAX_PRETRAINED_BYTES


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel and its dependencies, in the versions of constraints.txt."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(ROOT)]
    subprocess.run([sys.executable, *build], check=True, capture_output=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=300)
    (wheel,) = (folder / "dist").glob("qkv-*.whl")
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(
        [str(folder / "env" / "bin" / "python"), *install], env=outside_variables(), check=True, timeout=1800
    )
    return folder


def outside_variables() -> dict[str, str]:
    """Environment variables without those that could make the checkout importable or change the commands."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QKV", "OMP"))}


def run(clean: Path, arguments: list[str]) -> tuple[str, float]:
    """Run a command in the environment, in an empty folder and without network; return its output and seconds."""
    variables = outside_variables() | NO_NETWORK
    variables |= {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(clean / "cache"), "HOME": str(clean)}
    (clean / "work").mkdir(exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [str(clean / "env" / "bin" / "qkv"), *arguments],
        cwd=clean / "work", env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - began


@pytest.mark.slow
def test_pretrained_models_answer_from_a_clean_environment(clean: Path) -> None:
    seconds = {}
    outputs = {}
    for name, arguments in COMMANDS.items():
        outputs[name], seconds[name] = run(clean, arguments)
    print(json.dumps({"seconds": seconds, "outputs": outputs}, indent=1, ensure_ascii=False))
    assert "Bahnhof" in outputs["translate"]
    assert outputs["generate"].startswith("ROMEO:")
    assert len(outputs["generate"]) > 80
    assert "DET" in outputs["tag"]
    assert "pos" in outputs["classify"]
    assert (clean / "work" / "tatoeba-en-de-attention.html").stat().st_size > 1000
    assert all(value < MAX_SECONDS for value in seconds.values()), seconds


@pytest.mark.slow
def test_every_packaged_model_loads_and_has_a_card(clean: Path) -> None:
    listed = [json.loads(line) for line in run(clean, ["models", "--json"])[0].splitlines()]
    names = {entry["name"] for entry in listed if entry.get("where") == "package"}
    assert names == {path.parent.name for path in PACKAGE.glob("pretrained/*/checkpoint.json")}
    for name in names:
        card = run(clean, ["models", "show", name])[0]
        for part in ("license", "SHA-256 of model.safetensors", "`qkv train ", "## Evaluation"):
            assert part in card, name
