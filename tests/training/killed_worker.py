"""The command line, one process of which is killed after a step: torchrun runs this file.

Arguments: the rank and the step; then those of qkv.
"""

import os
import signal
import sys

from qkv.cli.main import main
from qkv.training import loop

advance = loop.Trainer.advance


def advance_or_die(trainer: loop.Trainer, *arguments: object) -> None:
    advance(trainer, *arguments)
    victim, step = map(int, os.environ["QKV_KILL"].split())
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and trainer.state.step == step and int(os.environ["RANK"]) == victim:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    os.environ["QKV_KILL"] = " ".join(sys.argv[1:3])
    loop.Trainer.advance = advance_or_die
    sys.argv = ["qkv", *sys.argv[3:]]
    main()
