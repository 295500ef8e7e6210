"""qkv: attention models built on one operator.

attention
    qkv.attend(query, key, value)        the attention operator
    qkv.watch(model)                     record the attention weights of any model
    qkv.ablate(model, layer, heads)      run a model with some heads disabled
    qkv.explain(model, input)            which parts of an input explain a prediction

training
    qkv.train(recipe, data=...)          train a recipe, on your own data or on its own
    qkv.evaluate(run)                    metrics of a run, by class where there are classes, and its worst examples
    qkv.compare(run, run)                compare runs, or train and compare variants of a recipe
    qkv.view(model, input)               what a model attends to, as an interactive page

models
    qkv.load(model)                      load a training run, a saved model or a model of the Hugging Face Hub
    qkv.save(model, folder)              save a model to a folder
    qkv.register(kind, name)             add your own score, alignment, position, model, task, dataset or tokenizer

pipelines: raw input in, answer out
    qkv.Translator(model)                translation and other text-to-text tasks
    qkv.Generator(model)                 text generation
    qkv.ChatBot(model)                   conversation
    qkv.Classifier(model)                text classification
    qkv.Tagger(model)                    token classification
    qkv.Parser(model)                    constituency parsing
    qkv.QuestionAnswerer(model)          extractive question answering
    qkv.StoryAnswerer(model)             questions about stories, with a memory network
    qkv.MaskFiller(model)                mask filling
    qkv.Embedder(model)                  text embeddings
    qkv.Captioner(model)                 image captioning
    qkv.Recognizer(model)                speech recognition
    qkv.ImageClassifier(model)           image classification

packages
    qkv.attention                        scores, alignments, masks, positions, backends
    qkv.nn, qkv.models                   building blocks, and one file per model
    qkv.datasets, qkv.tokenizers         corpora, and the map between texts and token ids
    qkv.generation, qkv.pipelines        decoding, and the pipelines
    qkv.tasks, qkv.training              losses and metrics of each task, and the training loop
    qkv.hub                              load, save and convert models
    qkv.interpret, qkv.visualize         attention maps, and their pages and figures
"""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv import attention as attention
    from qkv import datasets as datasets
    from qkv import generation as generation
    from qkv import hub as hub
    from qkv import interpret as interpret
    from qkv import models as models
    from qkv import nn as nn
    from qkv import pipelines as pipelines
    from qkv import tasks as tasks
    from qkv import tokenizers as tokenizers
    from qkv import training as training
    from qkv import visualize as visualize
    from qkv.attention import ablate as ablate
    from qkv.attention import attend as attend
    from qkv.attention import watch as watch
    from qkv.experiments.comparison import compare as compare
    from qkv.experiments.evaluation import evaluate as evaluate
    from qkv.hub import load as load
    from qkv.hub import save as save
    from qkv.interpret.explanation import explain as explain
    from qkv.pipelines.captioner import Captioner as Captioner
    from qkv.pipelines.chat_bot import ChatBot as ChatBot
    from qkv.pipelines.classifier import Classifier as Classifier
    from qkv.pipelines.embedder import Embedder as Embedder
    from qkv.pipelines.generator import Generator as Generator
    from qkv.pipelines.image_classifier import ImageClassifier as ImageClassifier
    from qkv.pipelines.mask_filler import MaskFiller as MaskFiller
    from qkv.pipelines.parser import Parser as Parser
    from qkv.pipelines.question_answerer import QuestionAnswerer as QuestionAnswerer
    from qkv.pipelines.recognizer import Recognizer as Recognizer
    from qkv.pipelines.story_answerer import StoryAnswerer as StoryAnswerer
    from qkv.pipelines.tagger import Tagger as Tagger
    from qkv.pipelines.translator import Translator as Translator
    from qkv.registry import register as register
    from qkv.training.start import train as train
    from qkv.visualize.model_view import view as view

__version__ = "0.1.0"

_MODULES = {
    "ablate": "qkv.attention",
    "attend": "qkv.attention",
    "watch": "qkv.attention",
    "explain": "qkv.interpret.explanation",
    "train": "qkv.training.start",
    "evaluate": "qkv.experiments.evaluation",
    "compare": "qkv.experiments.comparison",
    "view": "qkv.visualize.model_view",
    "load": "qkv.hub",
    "save": "qkv.hub",
    "register": "qkv.registry",
    "Captioner": "qkv.pipelines.captioner",
    "ChatBot": "qkv.pipelines.chat_bot",
    "Classifier": "qkv.pipelines.classifier",
    "Embedder": "qkv.pipelines.embedder",
    "Generator": "qkv.pipelines.generator",
    "ImageClassifier": "qkv.pipelines.image_classifier",
    "MaskFiller": "qkv.pipelines.mask_filler",
    "Parser": "qkv.pipelines.parser",
    "QuestionAnswerer": "qkv.pipelines.question_answerer",
    "Recognizer": "qkv.pipelines.recognizer",
    "StoryAnswerer": "qkv.pipelines.story_answerer",
    "Tagger": "qkv.pipelines.tagger",
    "Translator": "qkv.pipelines.translator",
}
_PACKAGES = (
    "attention",
    "datasets",
    "generation",
    "hub",
    "interpret",
    "models",
    "nn",
    "pipelines",
    "tasks",
    "tokenizers",
    "training",
    "visualize",
)
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import public names and packages lazily, so that `import qkv` is fast."""
    if name in _PACKAGES:
        return import_module(f"qkv.{name}")
    if name not in _MODULES:
        close = difflib.get_close_matches(name, (*_MODULES, *_PACKAGES), n=1)
        hint = f" (did you mean qkv.{close[0]}?)" if close and not name.startswith("_") else ""
        raise AttributeError(f"module 'qkv' has no attribute {name!r}{hint}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_PACKAGES))
