"""Exceptions with messages that users can act on."""


class QkvError(Exception):
    """Base class; the message names what is wrong, where, and what to do."""


class InputError(QkvError):
    """Invalid user input: a file, a recipe, a text, a folder.

    Args:
        field: Name of the argument of a pipeline that is invalid; "input" for its inputs.
    """

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        self.field = field


class InputTooLongError(InputError):
    """An input has more tokens than a model takes."""


class KeywordError(InputError, TypeError):
    """A function was called with a keyword argument that it does not have."""


class ModelNotFoundError(InputError, FileNotFoundError):
    """There is no model or run of this name."""


class ConfigError(InputError, ValueError):
    """A config has an invalid value, or values that do not fit together."""


class CheckpointError(InputError):
    """A saved model or run is truncated, corrupt or inconsistent."""


class ShapeError(QkvError, ValueError):
    """Tensor shapes do not match."""


class TruncationWarning(UserWarning):
    """Inputs were truncated to the maximum length of a model."""


class NotFinite(QkvError):  # noqa: N818  (it names the state of the loss)
    """The loss or the gradient is not finite."""


class OutOfMemory(QkvError):  # noqa: N818  (as torch calls it)
    """The device ran out of memory."""


class Unsupported(QkvError):  # noqa: N818  (the name the design gives it)
    """An explicitly selected backend does not support the request.

    Args:
        backend: Name of the backend.
        reason: What it does not support.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend {backend!r} does not support this request: {reason}")
        self.backend = backend
        self.reason = reason
