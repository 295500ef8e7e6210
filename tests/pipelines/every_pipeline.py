"""All thirteen pipelines with small random models, and an input of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import qkv
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.tokenizers import CharTokenizer, WordTokenizer
from tests.pipelines.chat_bots import dialogue_model
from tests.pipelines.parsers import gru_parser
from tests.pipelines.recordings import las, tokenizer, write_wav
from tests.tasks.stories import memory_network
from tests.tasks.tiny_bert import tiny_bert, tiny_tokenizer

HOSTILE = "<b>cat</b> & \"dog\" </td><script>alert('x')</script> cat"


class Example(NamedTuple):
    """A pipeline, one input, its further arguments, and a misspelled option with the right one."""

    pipeline: Any
    source: Any
    arguments: tuple[Any, ...]
    misspelled: str
    option: str


def _bert(head: str | None, folder: Path, **config: Any) -> Any:
    model = tiny_bert(head, **config)
    model.tokenizer = tiny_tokenizer(folder)
    return model


def translator(folder: Path) -> Example:
    characters = CharTokenizer.train(["abc", HOSTILE])
    torch.manual_seed(0)
    sizes = dict.fromkeys(("source_vocab_size", "target_vocab_size"), len(characters))
    model = RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, embedding_dim=6, hidden_dim=8, max_length=90)).eval()
    return Example(qkv.Translator(model, characters), HOSTILE, (), "beams", "num_beams")


def generator(folder: Path) -> Example:
    characters = CharTokenizer.train([HOSTILE])
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(characters), dim=8, heads=2, layers=1, max_length=200)
    return Example(qkv.Generator(GPT2(config).eval(), characters), HOSTILE, (), "max_tokens", "max_new_tokens")


def chat_bot(folder: Path) -> Example:
    return Example(qkv.ChatBot(dialogue_model("gru"), device="cpu"), "hi there", (), "temprature", "temperature")


def classifier(folder: Path) -> Example:
    names = ("<i>bad</i>", "good")
    model = _bert("classifier", folder, labels=2, label_names=names)
    return Example(qkv.Classifier(model), HOSTILE, (), "batchsize", "batch_size")


def tagger(folder: Path) -> Example:
    model = _bert("tagger", folder, labels=2, label_names=("<i>DET</i>", "NOUN"))
    return Example(qkv.Tagger(model), HOSTILE, (), "batchsize", "batch_size")


def parser(folder: Path) -> Example:
    return Example(qkv.Parser(gru_parser()), "The cat <b>sleeps</b>.", (), "beams", "num_beams")


def question_answerer(folder: Path) -> Example:
    model = _bert("span", folder)
    return Example(qkv.QuestionAnswerer(model), "The <b>cat</b>?", (HOSTILE,), "topk", "top_k")


def story_answerer(folder: Path) -> Example:
    story = "Mary went to the <b>garden</b>. John went to the hall."
    return Example(qkv.StoryAnswerer(memory_network()), "Where is Mary?", (story,), "storys", "story")


def mask_filler(folder: Path) -> Example:
    return Example(qkv.MaskFiller(_bert("masked_lm", folder)), "the <b>[MASK]</b> sat", (), "topk", "top_k")


def embedder(folder: Path) -> Example:
    return Example(qkv.Embedder(_bert(None, folder)), HOSTILE, (), "normalise", "normalize")


def captioner(folder: Path) -> Example:
    words = WordTokenizer.train(["a <b>red</b> circle & a square"])
    torch.manual_seed(0)
    config = ShowAttendTellConfig(
        vocab_size=len(words), height=8, width=12, encoder={"name": "cnn", "filters": (4, 8)}, feature_dim=6,
        embedding_dim=5, hidden_dim=7, max_length=9,
    )  # fmt: skip
    return Example(qkv.Captioner(ShowAttendTell(config).eval(), words), picture(folder), (), "beams", "num_beams")


def recognizer(folder: Path) -> Example:
    path = write_wav(folder / "<b>noise.wav", 0.3)
    return Example(qkv.Recognizer(las(), tokenizer()), path, (), "beams", "num_beams")


def image_classifier(folder: Path) -> Example:
    torch.manual_seed(0)
    sizes = {"channels": 3, "height": 8, "width": 8, "patch": 4, "dim": 8, "heads": 2, "layers": 1, "ffn_dim": 32}
    model = ViT(ViTConfig(classes=2, label_names=("<i>cat</i>", "dog"), **sizes)).eval()
    return Example(qkv.ImageClassifier(model), picture(folder), (), "batchsize", "batch_size")


def picture(folder: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    path = folder / "<b>scene.png"
    Image.fromarray(pixels).save(path)
    return path


BUILDERS: dict[str, Callable[[Path], Example]] = {
    "Translator": translator,
    "Generator": generator,
    "ChatBot": chat_bot,
    "Classifier": classifier,
    "Tagger": tagger,
    "Parser": parser,
    "QuestionAnswerer": question_answerer,
    "StoryAnswerer": story_answerer,
    "MaskFiller": mask_filler,
    "Embedder": embedder,
    "Captioner": captioner,
    "Recognizer": recognizer,
    "ImageClassifier": image_classifier,
}
