"""The launch scripts of docs/distributed.md: they are what the page shows, and two "nodes" on this machine run them."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.training.run import Run

from .test_distributed import ELASTIC, ENVIRONMENT, TIMEOUT

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted((DOCS / "launch").glob("*.sh"))
STUBS = {
    "torchrun": f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run --local-addr localhost "$@"\n',
    "scontrol": "#!/bin/sh\necho localhost\n",
    "srun": '#!/bin/sh\n"$@" & first=$!\n"$@" & second=$!\nwait $first && wait $second\n',  # two nodes
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_page_shows_the_script(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert f"```bash\n{script.read_text()}```\n" in (DOCS / "distributed.md").read_text()


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return str(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_two_nodes_train_one_run(script, tmp_path):
    for name, text in STUBS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    sets = [f"--set={assignment}" for assignment in (*ELASTIC, "train.epochs=1")]
    command = ["bash", str(script), "dates-gru", *sets, "--output", str(tmp_path / "run"), "--device", "cpu"]
    slurm = {"SLURM_JOB_NODELIST": "x", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    own = {"HEAD": "localhost", "GPUS": "1", "PORT": free_port(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    nodes = [
        subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT | slurm | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(1 if script.name == "slurm.sh" else 2)
    ]
    outputs = [node.communicate(timeout=TIMEOUT) for node in nodes]
    assert all(node.returncode == 0 for node in nodes), outputs
    assert "".join(output for output, _ in outputs) == f"{tmp_path / 'run'}\n"  # only the first process prints
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert len([*run.checkpoints[-1].glob("shard-*.safetensors")]) == 2


def test_the_predicted_efficiency_is_that_of_the_script():
    page = (DOCS / "scaling.md").read_text()
    commands = re.findall(r"python (benchmarks/scaling.py predict .*)", page)
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run([sys.executable, *command.split()], cwd=DOCS.parent, capture_output=True, text=True)
        assert done.stdout in page
