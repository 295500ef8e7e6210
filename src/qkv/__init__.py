"""qkv: attention models built on one operator.

qkv.attend(query, key, value)        the attention operator
qkv.watch(model)                     record the attention weights of any model
qkv.ablate(model, layer, heads)      run a model with some heads disabled
qkv.load(folder)                     load a saved model
qkv.Translator(folder)               translation and other text-to-text tasks
qkv.Generator(folder)                text generation
qkv.Classifier(folder)               text classification
qkv.Tagger(folder)                   token classification
qkv.Filler(folder)                   mask filling
qkv.Answerer(folder)                 extractive question answering
qkv.Captioner(folder)                image captioning
qkv.Embedder(folder)                 sentence embeddings
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

_MODULES = {
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
    """Import public names lazily, so that `import qkv` is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
