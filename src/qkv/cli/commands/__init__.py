"""The commands, one file each; imports are deferred until a command runs."""
