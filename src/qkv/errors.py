"""What can go wrong, in words a user can act on."""


class QkvError(Exception):
    """Any error that qkv raises on purpose; its message says what is wrong, where, and what to do."""


class InputError(QkvError):
    """The user's input cannot be used: a file, a recipe, a sentence, a folder."""


class CheckpointError(InputError):
    """A saved folder is cut short, altered, or not what it claims to be."""


class ShapeError(QkvError, ValueError):
    """Tensors were given whose shapes do not fit together."""


class NotFinite(QkvError):  # noqa: N818  (it names the state of the loss)
    """The loss or the gradient stopped being a finite number."""


class OutOfMemory(QkvError):  # noqa: N818  (as torch calls it)
    """A device has not enough memory for what was asked of it."""


class Unsupported(QkvError):  # noqa: N818  (the name the design gives it)
    """A backend that was asked for by name cannot honour the request."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend {backend!r} cannot serve this request: {reason}")
        self.backend = backend
        self.reason = reason
