"""The splits of a dataset, in memory."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qkv.datasets.pair import Pair
from qkv.datasets.squad import Question
from qkv.datasets.tagged import Tagged

if TYPE_CHECKING:
    from qkv.datasets.captions import Captions
    from qkv.datasets.corpora.bandits import Bandits
    from qkv.datasets.corpora.bit_sequences import Stream
    from qkv.datasets.episodes import FewShotDataset
    from qkv.datasets.images import LabeledImages


@dataclass(frozen=True)
class LoadedData:
    """The examples of a dataset by split, and notes for the user about skipped examples.

    Exactly one of the dictionaries is filled, depending on the kind of the dataset. For labelled texts `splits` has
    pairs with the label as target.
    """

    splits: dict[str, list[Pair]]
    notes: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    tagged: dict[str, list[Tagged]] = field(default_factory=dict)
    images: "dict[str, LabeledImages]" = field(default_factory=dict)
    captions: "dict[str, Captions]" = field(default_factory=dict)
    questions: dict[str, list[Question]] = field(default_factory=dict)
    sequences: "dict[str, Stream]" = field(default_factory=dict)
    episodes: "dict[str, FewShotDataset]" = field(default_factory=dict)
    bandits: "dict[str, Bandits]" = field(default_factory=dict)

    def documents(self, split: str) -> list[str]:
        """Return the documents of a split: its texts without labels, or a plain text split at blank lines."""
        texts = re.split(r"\n\s*\n", self.texts[split]) if self.texts else [pair.source for pair in self.splits[split]]
        return [text for text in texts if text.strip()]

    @property
    def fingerprint(self) -> str:
        """Hash of all examples in all splits."""
        digest = hashlib.sha256()
        for split, pairs in sorted(self.splits.items()):
            digest.update(f"{split} {len(pairs)}\n".encode())
            for pair in pairs:
                parsed = "" if pair.parsed is None else f" {pair.parsed!r}"
                digest.update(
                    f"{pair.source!r} {pair.target!r} {pair.gold}{parsed}\n".encode()
                )  # repr, so that texts cannot run into each other
        for split, text in sorted(self.texts.items()):
            digest.update(f"text {split} {text!r}\n".encode())
        for split, sentences in sorted(self.tagged.items()):
            digest.update(f"tagged {split} {sentences!r}\n".encode())
        for split, questions in sorted(self.questions.items()):
            digest.update(f"questions {split} {questions!r}\n".encode())
        for split, stream in sorted(self.sequences.items()):
            digest.update(f"sequences {split} {stream.fingerprint}\n".encode())
        for split, images in sorted(self.images.items()):
            digest.update(f"pictures {split} {images.names} {images.pixels.shape}\n".encode())
            digest.update(images.pixels.tobytes() + images.labels.tobytes())
        for split, captions in sorted(self.captions.items()):
            digest.update(f"captions {split} {captions.texts!r} {captions.objects!r}\n".encode())
            digest.update(f"{captions.images.dtype} {captions.images.shape}\n".encode())
            digest.update(captions.images.ravel().data)  # without a copy: this can be gigabytes
        for split, examples in sorted(self.episodes.items()):
            digest.update(f"episodes {split} {examples.ways} {examples.shots} {examples.names}\n".encode())
            digest.update(f"{examples.pixels.shape}".encode() + examples.pixels.tobytes())
        for split, bandits in sorted(self.bandits.items()):
            digest.update(f"bandits {split} {bandits!r}\n".encode())
        return digest.hexdigest()
