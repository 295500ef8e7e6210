"""Multi30k: image captions in English, German, French and Czech (Elliott et al. 2016, 2017; Barrault 2018)."""

from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from qkv.config import require
from qkv.datasets.columns import BLEU, bleu_of_languages
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair, language_token
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines
from qkv.errors import InputError
from qkv.registry import register

LANGUAGES = ("en", "de", "fr", "cs")
Language = Literal["en", "de", "fr", "cs"]
SPLITS = {  # our names and those of the files
    "train": "train",
    "valid": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
}
FILES = data_files(
    "multi30k",
    {
        "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
        "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "train.fr.gz": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
        "train.cs.gz": (593827, "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077"),
        "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
        "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "val.fr.gz": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
        "val.cs.gz": (22096, "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc"),
        "test_2016_flickr.en.gz": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
        "test_2016_flickr.de.gz": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "test_2016_flickr.fr.gz": (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
        "test_2016_flickr.cs.gz": (22572, "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1"),
        "test_2017_flickr.en.gz": (19138, "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074"),
        "test_2017_flickr.de.gz": (21471, "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee"),
        "test_2017_flickr.fr.gz": (20434, "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496"),
    },
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
)


@register("dataset", "multi30k")
class Multi30k(PairConfig):
    """Image captions in four languages."""

    summary = "image captions in en, de, fr, cs: 29,000 training pairs"
    license = "for research and education, not for commerce; derived from Flickr30k"
    origin = "it is in data/task1/raw of https://github.com/multi30k/dataset."
    files = FILES
    columns = BLEU
    remarks: ClassVar = {
        "en-de": "Published: Transformer-Tiny, 41.02 lowercased tokenized BLEU on test_2016_flickr (Wu et al. 2021; "
        "text only, beam 5, ten checkpoints averaged)."
    }

    source: Language = "en"  # source language
    target: Language = "de"  # target language

    def read(self) -> PairDataset:
        """Read the pairs of each split in two languages, with notes about missing splits."""
        if self.source == self.target:
            raise InputError(
                f"multi30k: source and target are both {self.source}: choose two of {', '.join(LANGUAGES)}"
            )
        by_name = {Path(file.path).stem: file for file in self.files}
        names = {split: (f"{name}.{self.source}", f"{name}.{self.target}") for split, name in SPLITS.items()}
        missing = [split for split, sides in names.items() if not by_name.keys() >= set(sides)]
        sides = [side for split in names if split not in missing for side in names[split]]
        paths = dict(zip(sides, self.fetch([by_name[side] for side in sides]), strict=True))
        lines = {side: decode_lines(unpack(path), str(path)) for side, path in paths.items()}
        splits = {
            split: [Pair(*pair) for pair in zip(lines[source], lines[target], strict=True)]
            for split, (source, target) in names.items()
            if split not in missing
        }
        notes = tuple(f"multi30k: {split} does not exist in Czech: skipped" for split in missing)
        return PairDataset(splits, notes, target_language=self.target)


@register("dataset", "multi30k_multilingual")
class Multi30kMultilingual(PairConfig):
    """Image captions in one language with translations into several, for one model of all of them.

    Each source begins with the token of its target language: "<2fr> A dog." (Johnson et al. 2017). The translations of
    a caption follow each other, so that the first examples of a split contain all languages.
    """

    summary = "multi30k with several target languages: 29,000 training pairs for each"
    license = Multi30k.license
    origin = Multi30k.origin
    files = FILES
    columns = bleu_of_languages("de", "fr", "cs", "en")

    source: Language = "en"  # source language
    targets: tuple[Language, ...] = ("de", "fr", "cs")  # target languages

    @model_validator(mode="after")
    def _check(self) -> "Multi30kMultilingual":
        languages = (self.source, *self.targets)
        require(
            len(languages) > 1 and len(set(languages)) == len(languages),
            f"data.targets must be languages other than the source {self.source}, each once, not {list(self.targets)}",
        )
        return self

    @property
    def languages(self) -> str:
        return f"{self.source}-{', '.join(self.targets)}"

    def read(self) -> PairDataset:
        """Read the pairs of all target languages; a split lacks the languages in which it does not exist."""
        by_language = {
            target: Multi30k(folder=self.folder, source=self.source, target=target).read() for target in self.targets
        }
        splits = {}
        for split in SPLITS:
            pairs_of = {target: data.splits.get(split, []) for target, data in by_language.items()}
            translations = zip(*(_marked(pairs, target) for target, pairs in pairs_of.items() if pairs), strict=True)
            splits[split] = list(chain.from_iterable(translations))
        notes = tuple(dict.fromkeys(note for data in by_language.values() for note in data.notes))
        splits = {split: pairs for split, pairs in splits.items() if pairs}
        return PairDataset(splits, notes, source_tokens=tuple(map(language_token, self.targets)))


def _marked(pairs: list[Pair], target: str) -> list[Pair]:
    """Return the pairs with the token of the target language at the beginning of the sources."""
    return [Pair(f"{language_token(target)} {pair.source}", pair.target) for pair in pairs]
