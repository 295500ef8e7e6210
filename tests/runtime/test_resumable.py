"""Output files that are continued."""

import json
from pathlib import Path

import pytest

from qkv.errors import InputError
from qkv.runtime import resumable
from qkv.runtime.resumable import FOLDER_PROGRESS, ResumableOutput, progress_file

JOB = {"input": "a" * 64, "model": "b" * 64, "options": {"seed": 0, "sizes": (1, 2)}}

MALFORMED = [
    {"files": 0, "inputs": -1, "bytes": 0},
    {"files": 0, "inputs": True, "bytes": 0},
    {"files": -1, "inputs": 1, "bytes": 0},
    {"files": 0, "inputs": 1},
    {"inputs": 1, "bytes": 0},
]


def interrupted(path: Path, **changes: object) -> None:
    """A job that ends after two of its inputs were recorded and the results of a third were appended."""
    with ResumableOutput(path, JOB | changes, resume=False, overwrite=False) as output:
        output.append(b"one\ntwo\n", 2)
        output.record()
        recorded = progress_file(path).read_bytes()
    with path.open("ab") as file:
        file.write(b"thr")
    progress_file(path).write_bytes(recorded)
    progress_file(path).with_name(f".writing-99-{progress_file(path).name}").touch()


def test_a_job_is_continued_after_the_last_recorded_result(tmp_path):
    path = tmp_path / "new" / "out.txt"
    interrupted(path)
    output = ResumableOutput(path, JOB, resume=True, overwrite=False)
    assert output.inputs == 2
    with output:
        assert path.read_bytes() == b"one\ntwo\n"
        output.append(b"three\n", 1)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert [file.name for file in path.parent.iterdir()] == ["out.txt"]  # without temporary files


def test_resume_without_any_file_starts_a_job(tmp_path):
    with ResumableOutput(tmp_path / "out.txt", JOB, resume=True, overwrite=False) as output:
        output.append(b"one\n", 1)
    assert (tmp_path / "out.txt").read_bytes() == b"one\n"


def test_an_existing_file_is_protected(tmp_path):
    path = tmp_path / "out.txt"
    path.write_bytes(b"mine\n")
    for resume in (False, True):
        with pytest.raises(InputError, match="--overwrite"):
            ResumableOutput(path, JOB, resume=resume, overwrite=False)
    with pytest.raises(InputError, match="cannot be combined"):
        ResumableOutput(path, JOB, resume=True, overwrite=True)
    assert path.read_bytes() == b"mine\n"
    with ResumableOutput(path, JOB, resume=False, overwrite=True) as output:
        output.append(b"one\n", 1)
    assert path.read_bytes() == b"one\n"


def test_an_unfinished_job_is_not_started_again_by_mistake(tmp_path):
    interrupted(tmp_path / "out.txt")
    with pytest.raises(InputError, match="--resume"):
        ResumableOutput(tmp_path / "out.txt", JOB, resume=False, overwrite=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input": "c" * 64}, "the input differs"),
        ({"model": "c" * 64}, "the model differs"),
        ({"options": {"seed": 1, "sizes": (1, 2)}}, "seed was 0 and is 1"),
        ({"options": {"seed": 0}}, "sizes"),
        ({"more": 1}, "more"),
    ],
)
def test_another_job_is_not_continued(tmp_path, changes, words):
    path = tmp_path / "out.txt"
    interrupted(path)
    with pytest.raises(InputError, match=words):
        ResumableOutput(path, JOB | changes, resume=True, overwrite=False)
    assert path.read_bytes() == b"one\ntwo\nthr"


@pytest.mark.parametrize("progress", ["", "[]", "{}", *map(json.dumps, MALFORMED)])
def test_a_malformed_progress_file_is_an_error(tmp_path, progress):
    interrupted(tmp_path / "out.txt")
    progress_file(tmp_path / "out.txt").write_text(progress)
    with pytest.raises(InputError) as raised:
        ResumableOutput(tmp_path / "out.txt", JOB, resume=True, overwrite=False)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_too_short_is_an_error(tmp_path):
    path = tmp_path / "out.txt"
    interrupted(path)
    path.write_bytes(b"one\n")
    with (
        pytest.raises(InputError, match="shorter"),
        ResumableOutput(path, JOB, resume=True, overwrite=False),
    ):
        pass
    assert path.read_bytes() == b"one\n"


def test_two_jobs_do_not_share_a_file(tmp_path):
    with ResumableOutput(tmp_path / "out.txt", JOB, resume=False, overwrite=False):
        second = ResumableOutput(tmp_path / "out.txt", JOB, resume=True, overwrite=False)
        with pytest.raises(InputError, match="another process"), second:
            pass


def test_links_are_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "out.txt").symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="symbolic link"):
        ResumableOutput(tmp_path / "out.txt", JOB, resume=False, overwrite=True)


def test_progress_is_recorded_every_few_seconds(tmp_path, monkeypatch):
    path = tmp_path / "out.txt"
    with ResumableOutput(path, JOB, resume=False, overwrite=False) as output:
        output.append(b"one\n", 1)
        assert json.loads(progress_file(path).read_text())["inputs"] == 0
        assert path.read_bytes() == b"one\n"
        monkeypatch.setattr(resumable, "SYNC_SECONDS", 0.0)
        output.append(b"two\n", 1)
        assert json.loads(progress_file(path).read_text())["inputs"] == 2


NAMES = ["a.txt", "b.txt", "c.txt"]


def folder_job(path: Path, **options: bool) -> ResumableOutput:
    return ResumableOutput(path, JOB, NAMES, **({"resume": False, "overwrite": False} | options))


def write_until(output: ResumableOutput, last: str) -> None:
    """Write two results to each of the remaining files; stop after `last`."""
    for name in NAMES[output.files :]:
        for number in range(output.inputs, 2):
            result = f"{name} {number}"
            output.append(f"{result}\n".encode(), 1)
            output.record()
            if result == last:
                raise KeyboardInterrupt
        output.next_file()


def test_files_of_a_folder_are_written_one_after_the_other(tmp_path):
    for last in (f"{name} {number}" for name in NAMES for number in range(2)):
        folder = tmp_path / last
        with pytest.raises(KeyboardInterrupt), folder_job(folder) as output:
            write_until(output, last)
        assert (folder / FOLDER_PROGRESS).exists()
        with pytest.raises(InputError, match="--resume"):
            folder_job(folder)
        with folder_job(folder, resume=True) as output:
            write_until(output, "")
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            name: f"{name} 0\n{name} 1\n" for name in NAMES
        }


def test_old_files_of_a_folder_are_removed_before_the_first_result(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text("old\n")
    with pytest.raises(InputError, match="--overwrite"):
        folder_job(tmp_path)
    with pytest.raises(KeyboardInterrupt), folder_job(tmp_path, overwrite=True) as output:
        write_until(output, "a.txt 1")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", FOLDER_PROGRESS}


def test_a_complete_file_of_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), folder_job(tmp_path) as output:
        write_until(output, "b.txt 0")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match="missing"), folder_job(tmp_path, resume=True):
        pass
    assert not (tmp_path / "a.txt").exists()


def test_two_jobs_do_not_share_a_folder(tmp_path):
    with folder_job(tmp_path) as output:
        write_until(output, "")
        with pytest.raises(InputError, match="another process"), folder_job(tmp_path, resume=True):
            pass


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "out").write_text("mine\n")
    with pytest.raises(InputError, match="choose a folder"):
        folder_job(tmp_path / "out", overwrite=True)
