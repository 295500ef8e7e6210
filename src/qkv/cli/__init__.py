"""The command line: one module per command, with imports deferred until the command runs."""
