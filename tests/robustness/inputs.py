"""Small data files in every format that the command line reads, and settings that make recipes train in a second."""

import json
from pathlib import Path

from PIL import Image

WORD_LIST = ["the", "king", "sat", "on", "a", "mat", "and", "the", "cat", "saw", "the", "old", "king", "go", "home"]
LINES = [" ".join(WORD_LIST[begin : begin + 5]) for begin in range(9)]
PAIRS = [f"{line}\t{' '.join(reversed(line.split()))}" for line in LINES]
LABELS = [f"{line}\t{'good' if number % 2 else 'bad'}" for number, line in enumerate(LINES)]
TREES = [
    "".join(f"{n}\t{word}\t_\tNOUN\tX\t_\t{n - 1}\tdep\t_\t_\n" for n, word in enumerate(line.split(), start=1))
    for line in LINES
]
CONTEXT = "The king lives in Rome. The cat sat on the mat."
QUESTIONS = [
    {"id": "1", "question": "Where lives the king?", "answers": [{"text": "in Rome", "answer_start": 15}]},
    {"id": "2", "question": "Where sat the cat?", "answers": [{"text": "on the mat", "answer_start": 36}]},
    {"id": "3", "question": "Who?", "answers": [], "is_impossible": True},
]
PARAGRAPHS = [{"context": f"{CONTEXT} So they say {word}.", "qas": QUESTIONS} for word in ("here", "there", "now")]
SQUAD = {"data": [{"title": "t", "paragraphs": PARAGRAPHS}]}
RECIPE = """# A recipe of one's own.
task = "translate"
seed = 1

[data]
name = "dates"
size = 60

[model]
name = "rnn_seq2seq"
cell = "gru"
hidden_dim = 8
embedding_dim = 4
score = "additive"
dropout = 0.1

[train]
epochs = 1
batch_size = 256
lr = 1e-3
warmup = 2
weight_decay = 0.0
clip = 1.0
validate_every = 2
valid_size = 5
save_every = 2
keep = 1
"""
TEXTS = {
    "lines.txt": "".join(f"{line}\n" for line in LINES),
    "masked.txt": "".join(f"{line} [MASK]\n" for line in LINES),
    "document.txt": "A fine film.\n\nThe cat was good, and the king was fine.\nI left. The end.\n",
    "pairs.tsv": "".join(f"{line}\n" for line in PAIRS),
    "source.txt": "".join(f"{line}\n" for line in LINES),
    "target.txt": "".join(f"{line[::-1]}\n" for line in LINES),
    "labels.tsv": "".join(f"{line}\n" for line in LABELS),
    "tags.conll": "The\tDET\nking\tNOUN\n\nA\tDET\ncat\tNOUN\nsat\tVERB\n\nDogs\tNOUN\n\nHe\tPRON\n",
    "trees.conllu": "".join(f"# text = {line}\n{tree}\n" for line, tree in zip(LINES, TREES, strict=True)),
    "squad.json": json.dumps(SQUAD, indent=1),
    "questions.jsonl": "".join(json.dumps({"question": one["question"], "text": CONTEXT}) + "\n" for one in QUESTIONS),
    "text.txt": "To be, or not to be, that is the question.\nThe king sat on the mat.\n" * 20,
    "reviews.txt": "The film was good. The king liked it.\n\nThe cat did not. It went home.\n\n" * 20,
    "recipe.toml": RECIPE,
    "questions.toml": 'extends = "questions-bert"\nrequires_init = false\n',
}
SMALL = ("train.epochs=1", "train.batch_size=64", "train.valid_size=3", "train.warmup=2")
TRANSFORMER = ("model.dim=8", "model.heads=2")
SETTINGS: dict[str, tuple[str, ...]] = {
    "dates-gru": ("data.size=60", "model.hidden_dim=8", "model.embedding_dim=4", "train.batch_size=256"),
    "pairs-gru": ("model.hidden_dim=8", "model.embedding_dim=4"),
    "pairs-transformer": (*TRANSFORMER, "model.encoder_layers=1", "model.decoder_layers=1", "model.ffn_dim=8"),
    "polarity-bert": (*TRANSFORMER, "model.layers=1", "data.tokenizer.name=wordpiece", "data.tokenizer.vocab_size=60"),
    "polarity-lstm-attention": ("model.embedding_dim=4", "model.hidden_dim=4"),
    "movie-reviews-han": ("model.embedding_dim=4", "model.hidden_dim=4"),
    "ewt-bert-scratch": (*TRANSFORMER, "model.layers=1"),
    "ewt-bert-tree": (*TRANSFORMER, "model.layers=1"),
    "questions.toml": (*TRANSFORMER, "model.layers=1", "data.tokenizer.name=wordpiece", "data.tokenizer.vocab_size=60"),
    "imdb-bert": (*TRANSFORMER, "model.layers=1", "data.tokenizer.name=wordpiece", "data.tokenizer.vocab_size=60",
                  "task.length=16", "model.max_length=16"),
    "shakespeare-gpt": (*TRANSFORMER, "model.layers=1", "task.length=16", "model.max_length=64"),
    "shakespeare-lstm": ("model.hidden_dim=8", "model.embedding_dim=4", "task.length=16"),
    "imdb-elmo": ("model.dim=4", "model.hidden_dim=4", "model.filters=[[1, 2], [2, 2]]", "task.length=8",
                  "model.normalize_words=false"),
    "copy-ntm": ("train.batch_size=2", "data.size=6"),
    "shapes-attend": ("data.name=flickr8k", "data.side=16", "model.encoder.name=cnn", "model.encoder.filters=[4, 8]",
                      "model.feature_dim=6", "model.embedding_dim=4", "model.hidden_dim=6", "train.batch_size=4"),
}  # fmt: skip


def settings(recipe: str, *more: str) -> list[str]:
    """Options that make a recipe small."""
    return [part for one in (*SMALL, *SETTINGS[recipe], *more) for part in ("--set", one)] + ["--device", "cpu"]


def write_texts(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(TEXTS[name], encoding="utf-8")


def write_images(folder: Path, count: int, *suffixes: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        for suffix in suffixes:
            Image.new("RGB", (24, 16), (20 * number, 80, 200)).save(folder / f"{number}.{suffix}")


def write_captions(folder: Path) -> None:
    """Images with captions in the layout of Flickr8k."""
    write_images(folder / "Images", 8, "jpg")
    lines = [f"{number}.jpg,A cat on mat {number} ." for number in range(8)]
    (folder / "captions.txt").write_text("image,caption\n" + "\n".join(lines) + "\n")
    for split, numbers in (("train", range(5)), ("dev", (5, 6)), ("test", (7,))):
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{number}.jpg\n" for number in numbers))
