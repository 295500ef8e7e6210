"""What there is of a data set, in memory."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qkv.data.pair import Pair
from qkv.data.questions import Question
from qkv.data.tagged import Tagged

if TYPE_CHECKING:
    from qkv.data.algorithmic import Stream
    from qkv.data.bandits import Bandits
    from qkv.data.captions import Captions
    from qkv.data.episodes import Examples
    from qkv.data.pictures import Pictures


@dataclass(frozen=True)
class Loaded:
    """What there is of a data set, by split, and notes for the user about what was passed over.

    A data set has pairs (of a labelled text, the label is the target), texts, tagged sentences, or pictures.
    """

    splits: dict[str, list[Pair]]
    notes: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    tagged: dict[str, list[Tagged]] = field(default_factory=dict)
    pictures: "dict[str, Pictures]" = field(default_factory=dict)
    captions: "dict[str, Captions]" = field(default_factory=dict)
    questions: dict[str, list[Question]] = field(default_factory=dict)
    sequences: "dict[str, Stream]" = field(default_factory=dict)
    episodes: "dict[str, Examples]" = field(default_factory=dict)
    bandits: "dict[str, Bandits]" = field(default_factory=dict)

    def documents(self, split: str) -> list[str]:
        """Texts whose labels are not looked at, or what blank lines cut a running text into."""
        texts = re.split(r"\n\s*\n", self.texts[split]) if self.texts else [pair.source for pair in self.splits[split]]
        return [text for text in texts if text.strip()]

    @property
    def fingerprint(self) -> str:
        """A hash of everything in every split: equal only if the data are."""
        digest = hashlib.sha256()
        for split, pairs in sorted(self.splits.items()):
            digest.update(f"{split} {len(pairs)}\n".encode())
            for pair in pairs:
                parsed = "" if pair.parsed is None else f" {pair.parsed!r}"
                digest.update(
                    f"{pair.source!r} {pair.target!r} {pair.gold}{parsed}\n".encode()
                )  # quoted: no text can end early
        for split, text in sorted(self.texts.items()):
            digest.update(f"text {split} {text!r}\n".encode())
        for split, sentences in sorted(self.tagged.items()):
            digest.update(f"tagged {split} {sentences!r}\n".encode())
        for split, questions in sorted(self.questions.items()):
            digest.update(f"questions {split} {questions!r}\n".encode())
        for split, stream in sorted(self.sequences.items()):
            digest.update(f"sequences {split} {stream.fingerprint}\n".encode())
        for split, pictures in sorted(self.pictures.items()):
            digest.update(f"pictures {split} {pictures.names} {pictures.pixels.shape}\n".encode())
            digest.update(pictures.pixels.tobytes() + pictures.labels.tobytes())
        for split, captions in sorted(self.captions.items()):
            digest.update(f"captions {split} {captions.texts!r} {captions.objects!r}\n".encode())
            digest.update(f"{captions.pictures.dtype} {captions.pictures.shape}\n".encode())
            digest.update(captions.pictures.ravel().data)  # as it lies: there may be gigabytes
        for split, examples in sorted(self.episodes.items()):
            digest.update(f"episodes {split} {examples.ways} {examples.shots} {examples.names}\n".encode())
            digest.update(f"{examples.pixels.shape}".encode() + examples.pixels.tobytes())
        for split, bandits in sorted(self.bandits.items()):
            digest.update(f"bandits {split} {bandits!r}\n".encode())
        return digest.hexdigest()
