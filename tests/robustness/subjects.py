"""The models, runs and data files that are damaged; each is built when a case first needs it."""

import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.robustness import process
from tests.robustness.inputs import LINES, TEXTS, WORD_LIST, settings, write_captions, write_images, write_texts

INTERRUPTED = 130


class Subjects:
    """A folder of subjects, each of them a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir(parents=True)

    def get(self, name: str) -> Path:
        """The folder of a subject, which is built if it is not there."""
        if not (self.folder / name).exists():
            kind, _, rest = name.partition("/")
            BUILDERS[kind](self, rest)
        return self.folder / name

    def qkv(self, *arguments: object, expected: int = 0) -> None:
        """Run a command that has to succeed, and import here what it imported."""
        self.call(process.command([str(one) for one in arguments]), " ".join(map(str, arguments)), expected)

    def call(self, work: Callable[[], int], what: str, expected: int = 0) -> None:
        modules, known = self.folder / "modules.json", set(sys.modules)

        def work_and_report() -> int:
            try:
                return work()
            finally:
                modules.write_text(json.dumps(sorted(set(sys.modules) - known)))

        output = self.folder / "build"
        home = {"HOME": str(self.folder / "home")}
        ended = process.start(work_and_report, output=output, environment=home, seconds=120).wait()
        if ended.code != expected or ended.stopped:
            raise RuntimeError(f"{what}: {ended}\n{Path(f'{output}.stderr').read_text()}")
        names = [name for name in json.loads(modules.read_text()) if not name.startswith("transformers")]
        process.import_all(names)


def _texts(subjects: Subjects, names: str) -> None:
    """Data files alone: "texts/a.txt+b.txt"."""
    write_texts(subjects.folder / "texts" / names, *names.split("+"))


def _images(subjects: Subjects, suffix: str) -> None:
    write_images(subjects.folder / "images" / suffix, 1, suffix)


def _captions(subjects: Subjects, _: str) -> None:
    write_captions(subjects.folder / "captions")


TRAINED = {
    "rnn_seq2seq": ("dates-gru", ""),
    "transformer": ("pairs-transformer", "pairs.tsv"),
    "gpt2": ("shakespeare-gpt", "text.txt"),
    "rnn_lm": ("shakespeare-lstm", "text.txt"),
    "bert_classifier": ("polarity-bert", "labels.tsv"),
    "bert_tagger": ("ewt-bert-scratch", "tags.conll"),
    "bert_span": ("questions.toml", "squad.json"),
    "bert_pretraining": ("imdb-bert", "reviews.txt"),
    "rnn_text": ("polarity-lstm-attention", "labels.tsv"),
    "han": ("movie-reviews-han", "labels.tsv"),
    "ntm": ("copy-ntm", ""),
    "elmo": ("imdb-elmo", "reviews.txt"),
    "captioner": ("shapes-attend", "captions"),
}


def _run(subjects: Subjects, name: str) -> None:
    """A finished run, "run/NAME"; those of translators have results to compare."""
    recipe, data = TRAINED[name]
    folder = subjects.folder / "run" / name
    given: list[object] = []
    if data == "captions":
        given = ["--data-dir", subjects.get("captions")]
    elif data:
        given = ["--data", subjects.get(f"texts/{data}") / data]
    name = subjects.get(f"texts/{recipe}") / recipe if recipe.endswith(".toml") else recipe
    subjects.qkv("train", name, *given, *settings(recipe, "train.save_every=2"), "--output", folder / "run")
    if name in ("rnn_seq2seq", "transformer"):
        subjects.qkv("evaluate", folder / "run", "--split", "valid", "--device", "cpu")
    _inputs(folder)


def _own(subjects: Subjects, name: str) -> None:
    """A model folder in the package's own format, "own/NAME"; nothing in it is hashed."""
    run = subjects.get(f"run/{name}") / "run"
    subjects.qkv("convert", run, subjects.folder / "own" / name / "model", "--to", "qkv")
    _inputs(subjects.folder / "own" / name)


def _elmo(subjects: Subjects, _: str) -> None:
    """ELMo's released format: options.json and weights.hdf5."""
    subjects.qkv("convert", subjects.get("run/elmo") / "run", subjects.folder / "elmo" / "model", "--to", "elmo")
    write_texts(subjects.folder / "elmo", "labels.tsv")


def _inputs(folder: Path) -> None:
    """Write the input files of the commands that use a model."""
    write_texts(folder, *(name for name in TEXTS if not name.endswith(".toml")))
    write_images(folder, 1, "png")


def _interrupted(subjects: Subjects, _: str) -> None:
    """A run that was stopped by Ctrl-C after its first checkpoint."""
    folder = subjects.folder / "interrupted" / "run"
    more = ("train.epochs=4", "train.save_every=3", "train.validate_every=6")
    arguments = ["train", "dates-gru", *settings("dates-gru", *more), "--output", str(folder)]

    def stopped() -> int:
        pid = os.getpid()
        if os.fork() == 0:  # sends SIGINT after the first checkpoint
            while not any(folder.glob("step-*")):
                time.sleep(0.002)
            os.kill(pid, signal.SIGINT)
            os._exit(0)
        return process.command(arguments)()

    subjects.call(stopped, "train and interrupt", expected=INTERRUPTED)
    _inputs(folder.parent)


def _huggingface(subjects: Subjects, _: str) -> None:
    """Folders that transformers writes, with random weights."""
    folder = subjects.folder / "hf"

    def build() -> int:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        for name, write in HUGGINGFACE.items():
            model = folder / name / "model"
            model.mkdir(parents=True)
            write(transformers, model)
            _inputs(folder / name)
        return 0

    subjects.call(build, "write Hugging Face folders")


def _gpt2(transformers: Any, folder: Path, shards: str = "5GB") -> None:
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(LINES, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder))
    size = tokenizer.get_vocab_size()
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder, max_shard_size=shards)


def _bert(transformers: Any, folder: Path, head: str, tokenizer_json: bool = False, **config: Any) -> None:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *dict.fromkeys(WORD_LIST),
        "##s",
        "##ing",
        ".",
        "a",
        "q",
        "##q",
    ]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    if not tokenizer_json:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)) + "\n")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    made = transformers.BertConfig(vocab_size=len(dict.fromkeys(words)), max_position_embeddings=64, **sizes, **config)
    getattr(transformers, head)(made).save_pretrained(folder)


def _marian(transformers: Any, folder: Path) -> None:
    import sentencepiece

    pieces: dict[str, None] = {}
    for side in ("source", "target"):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 20), model_writer=written, vocab_size=60, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.spm").write_bytes(written.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces |= dict.fromkeys(model.id_to_piece(number) for number in range(len(model)))
    names = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    pad = len(names) - 1
    config = transformers.MarianConfig(
        vocab_size=len(names), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(folder)


def _vit(transformers: Any, folder: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "king"}, label2id={"cat": 0, "dog": 1, "king": 2},
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)


LABELS = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}
HUGGINGFACE: dict[str, Callable[[Any, Path], None]] = {
    "gpt2": _gpt2,
    "gpt2_shards": lambda transformers, folder: _gpt2(transformers, folder, "10KB"),
    "bert": lambda transformers, folder: _bert(transformers, folder, "BertModel"),
    "bert_masked": lambda transformers, folder: _bert(transformers, folder, "BertForMaskedLM", True),
    "bert_classifier": lambda transformers, folder: _bert(
        transformers, folder, "BertForSequenceClassification", True, **LABELS
    ),
    "bert_tagger": lambda transformers, folder: _bert(transformers, folder, "BertForTokenClassification", **LABELS),
    "bert_span": lambda transformers, folder: _bert(transformers, folder, "BertForQuestionAnswering", True),
    "marian": _marian,
    "vit": _vit,
}


def _own_vit(subjects: Subjects, _: str) -> None:
    folder = subjects.folder / "own_vit"
    subjects.qkv("convert", subjects.get("hf/vit") / "model", folder / "model", "--to", "qkv")
    _inputs(folder)


def _runs(subjects: Subjects, _: str) -> None:
    """Two runs with results, to compare."""
    for name in ("rnn_seq2seq", "transformer"):
        shutil.copytree(subjects.get(f"run/{name}") / "run", subjects.folder / "runs" / name)


BUILDERS: dict[str, Callable[[Subjects, str], None]] = {
    "texts": _texts,
    "images": _images,
    "captions": _captions,
    "run": _run,
    "runs": _runs,
    "own": _own,
    "own_vit": _own_vit,
    "elmo": _elmo,
    "interrupted": _interrupted,
    "hf": _huggingface,
}
