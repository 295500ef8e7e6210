"""SAMSum: chats of two or more people, with a summary of each (Gliwa, Mochol, Biesek and Wawer 2019).

The utterances of a chat are on one line, so that a file can have one chat on each line:

    Amanda: I baked cookies. Do you want some? | Jerry: Sure! | Amanda: I'll bring you tomorrow :-)
"""

from collections.abc import Iterator
from pathlib import Path

from qkv.datasets.columns import ROUGE
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.tables import parse_json
from qkv.datasets.formats.text_files import decode_lines
from qkv.errors import InputError
from qkv.registry import register

SEPARATOR = " | "  # of utterances; between spaces, so that words have the same tokens after it as within a sentence
SPLITS = {"train": "train.jsonl", "valid": "validation.jsonl", "test": "test.jsonl"}
SKIPPED = "train_skip_ids.txt"  # ids of training chats that recur in validation or test


@register("dataset", "samsum")
class SAMSum(PairConfig):
    """Chats and their summaries."""

    summary = "chats with summaries: 14,638 for training"
    license = "CC BY-NC-ND 4.0"
    origin = (
        "it is the SAMSum corpus (https://arxiv.org/abs/1911.12237), with one JSON object (id, dialogue, summary) on "
        "each line, and the ids of the training chats that recur in validation or test."
    )
    files = data_files(
        "samsum",
        {
            "train.jsonl": (10194754, "88329d6ac45144183565d96b856336febe782c322bd8a15d94d3d34c440cd746"),
            "validation.jsonl": (555075, "9bbd4eaf320ce38ea7a7656d09b526fc97bd7aa6c4beb532b6abf4e9cc2a585d"),
            "test.jsonl": (574716, "80b33150b15da3208b8cc8ea89c992380138e7ea1b739168807036694cd22683"),
            SKIPPED: (849, "c25afec32493ad570454861944c43a286d3d069630c0d016fa2d86315fcf6d7c"),
        },
    )
    columns = ROUGE

    def read(self) -> PairDataset:
        """Read the chats of each split; empty ones, and training chats that recur in another split, are skipped."""
        paths = {path.name: path for path in self.fetch()}
        ids = {line.strip() for line in decode_lines(unpack(paths[SKIPPED]), str(paths[SKIPPED]))}
        chats = {split: dict(parse_chats(paths[name])) for split, name in SPLITS.items()}
        splits = {split: [pair for pair in pairs.values() if pair.source] for split, pairs in chats.items()}
        held_out = {pair.source for split in ("valid", "test") for pair in splits[split]} | {""}
        new = (pair for chat_id, pair in chats["train"].items() if chat_id not in ids)
        splits["train"] = [pair for pair in new if pair.source not in held_out]
        skipped = sum(map(len, chats.values())) - sum(map(len, splits.values()))
        return PairDataset(splits, (f"samsum: {skipped} empty or repeated chats: skipped",), separator=SEPARATOR)


def parse_chats(path: Path) -> Iterator[tuple[str, Pair]]:
    """Yield the id of each chat, and the chat with its summary."""
    for number, line in enumerate(decode_lines(unpack(path), str(path)), start=1):
        where = f"{path}: line {number}"
        chat = parse_json(line, where)
        keys = ("id", "dialogue", "summary")
        if not isinstance(chat, dict) or not all(isinstance(chat.get(key), str) for key in keys):
            raise InputError(f"{where} is not an object with texts for {', '.join(keys)}")
        yield chat["id"], Pair(one_line(chat["dialogue"]), " ".join(chat["summary"].split()))


def one_line(chat: str) -> str:
    """Return the utterances of a chat, one on each line, as one line without repeated spaces."""
    utterances = (" ".join(utterance.split()) for utterance in chat.splitlines())
    return SEPARATOR.join(utterance for utterance in utterances if utterance)
