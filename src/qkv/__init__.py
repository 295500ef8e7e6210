"""qkv: attention models on one operator.

qkv.attend(query, key, value)        the operator
qkv.watch(model)                     what attends to what, while any model runs
qkv.ablate(model, layer, heads)      what a model does without some of its heads
qkv.load(folder)                     a saved model
qkv.Translator(folder)               text in, text out
qkv.Generator(folder)                a text, and how it might go on
qkv.Classifier(folder)               a text, and what it is taken for
qkv.Tagger(folder)                   a text, and what each of its words is
qkv.Filler(folder)                   a text with masks, and the words for them
qkv.Answerer(folder)                 a question and a text, and where in it the answer stands
qkv.Captioner(folder)                a picture, a sentence about it, and where each word was read
qkv.Embedder(folder)                 texts as vectors, near to each other where they mean the same
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.attention import ablate, attend, watch
    from qkv.interop import load
    from qkv.tasks.answerer import Answerer
    from qkv.tasks.captioner import Captioner
    from qkv.tasks.classifier import Classifier
    from qkv.tasks.embedder import Embedder
    from qkv.tasks.filler import Filler
    from qkv.tasks.generator import Generator
    from qkv.tasks.tagger import Tagger
    from qkv.tasks.translator import Translator

__version__ = "0.1.0"
__all__ = [
    "Answerer",
    "Captioner",
    "Classifier",
    "Embedder",
    "Filler",
    "Generator",
    "Tagger",
    "Translator",
    "__version__",
    "ablate",
    "attend",
    "load",
    "watch",
]

_HOME = {
    "ablate": "qkv.attention",
    "attend": "qkv.attention",
    "watch": "qkv.attention",
    "load": "qkv.interop",
    "Answerer": "qkv.tasks.answerer",
    "Captioner": "qkv.tasks.captioner",
    "Classifier": "qkv.tasks.classifier",
    "Embedder": "qkv.tasks.embedder",
    "Filler": "qkv.tasks.filler",
    "Generator": "qkv.tasks.generator",
    "Tagger": "qkv.tasks.tagger",
    "Translator": "qkv.tasks.translator",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that `import qkv` costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
