"""Run the `qkv` command with `python -m qkv`."""

from qkv.cli.main import main

if __name__ == "__main__":
    main()
