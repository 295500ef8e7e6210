"""qkv: attention models built on one operator.

qkv.attend(query, key, value)        the attention operator
qkv.watch(model)                     record the attention weights of any model
qkv.ablate(model, layer, heads)      run a model with some heads disabled
qkv.load(folder)                     load a saved model
qkv.register(kind, name)             register a score, model, task, dataset ... of your own
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
    from qkv.hub import load
    from qkv.pipelines.captioner import Captioner
    from qkv.pipelines.classifier import Classifier
    from qkv.pipelines.embedder import Embedder
    from qkv.pipelines.generator import Generator
    from qkv.pipelines.mask_filler import Filler
    from qkv.pipelines.question_answerer import Answerer
    from qkv.pipelines.tagger import Tagger
    from qkv.pipelines.translator import Translator
    from qkv.registry import register

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
    "register",
    "watch",
]

_MODULES = {
    "ablate": "qkv.attention",
    "attend": "qkv.attention",
    "watch": "qkv.attention",
    "load": "qkv.hub",
    "register": "qkv.registry",
    "Answerer": "qkv.pipelines.question_answerer",
    "Captioner": "qkv.pipelines.captioner",
    "Classifier": "qkv.pipelines.classifier",
    "Embedder": "qkv.pipelines.embedder",
    "Filler": "qkv.pipelines.mask_filler",
    "Generator": "qkv.pipelines.generator",
    "Tagger": "qkv.pipelines.tagger",
    "Translator": "qkv.pipelines.translator",
}


def __getattr__(name: str) -> Any:
    """Import public names lazily, so that `import qkv` is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
