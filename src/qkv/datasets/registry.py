"""Registry of datasets by name, and the functions that load them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.datasets.cache import DatasetCache, DatasetInfo
from qkv.datasets.config import DataConfig as DataConfig
from qkv.datasets.corpora import (
    cmudict,
    dates,
    emoji,
    fashion_mnist,
    imdb,
    movie_reviews,
    multi30k,
    omniglot,
    sentence_polarity,
    tatoeba,
    tinyshakespeare,
    ud_english_ewt,
    wnut17,
)
from qkv.datasets.dataset import LoadedData as LoadedData
from qkv.datasets.sniff import check_labels, looks_like_texts, looks_tagged
from qkv.datasets.squad import Question, parse_squad
from qkv.datasets.tables import TABLES
from qkv.datasets.tagged import Tagged, parse_columns, parse_conllu
from qkv.datasets.text_files import hold_out, is_parsed, read_lines, read_pairs, read_text
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.datasets.corpora.bit_sequences import Puzzle

DATES, HELD_OUT_DATES = 20_000, 2000
SCENES, HELD_OUT_SCENES = 50_000, 2000
SEQUENCES, HELD_OUT_SEQUENCES = 64_000, {"valid": 25, "test": 200}  # per epoch; valid and test: per size
COLUMNS_EXPECTED = "expected CoNLL columns: a word and its tag on each line, an empty line after each sentence"
EVALUATED_FROM_FILES = ("labelled", "tagged", "questions")  # kinds that `qkv evaluate` can read from files


@dataclass(frozen=True)
class DatasetEntry:
    """Registry entry: description, licence, loader, downloadable files and kind of examples."""

    summary: str
    licence: str
    load: Callable[[DataConfig], LoadedData]
    info: DatasetInfo | None = None  # None: generated, or files of the user
    kind: Literal[
        "pairs", "text", "labelled", "tagged", "pictures", "captions", "questions", "sequences", "episodes", "bandits"
    ] = "pairs"


def load_data(config: DataConfig) -> LoadedData:
    """Load the dataset of a recipe, downloading missing files, and truncate the training split to `size`."""
    loaded = DATASETS[config.name].load(config)
    truncated: dict[str, Any] = {}
    for field in ("splits", "texts", "tagged", "images", "captions", "questions", "episodes"):
        splits = getattr(loaded, field)
        if "train" in splits:
            truncated[field] = {**splits, "train": splits["train"][: config.size]}
    return replace(loaded, **truncated)


def load_for_evaluation(
    kind: str, paths: Sequence[Path], name: str, *, column: str = "upos", strict: bool = False
) -> LoadedData:
    """Load user files as the split `name`, with empty training and validation splits."""
    files = tuple(str(path) for path in paths)
    if kind == "tagged":
        return LoadedData({}, tagged={"train": [], "valid": [], name: _read_tagged(files, column)})
    if kind == "questions":
        return LoadedData({}, questions={"train": [], "valid": [], name: _read_questions(files)})
    if kind == "text":
        return LoadedData({}, texts={"train": "", "valid": "", name: _read_texts(files)})
    read = read_pairs(paths, strict=strict, labelled=kind == "labelled")
    return LoadedData({"train": [], "valid": [], name: read.pairs}, read.notes)


def infer_kind(paths: Sequence[Path]) -> str:
    """Infer the kind of data from the names and contents of user files."""
    suffix = paths[0].suffix.lower()
    if len(paths) == 2 or suffix in TABLES:
        return "pairs"
    if is_parsed(paths[0]):
        return "tagged"
    if suffix == ".json":
        return "questions"
    lines = read_lines(paths[0])
    if looks_tagged(lines):
        return "tagged"
    return "pairs" if any("\t" in line for line in lines) else "text"


def _load_dates(config: DataConfig) -> LoadedData:
    return LoadedData(
        {
            "train": dates.generate(config.size or DATES, split="train"),
            "valid": dates.generate(HELD_OUT_DATES, split="valid"),
            "test": dates.generate(HELD_OUT_DATES, split="test"),
        }
    )


def _load_pairs(config: DataConfig) -> LoadedData:
    labelled = config.name == "labelled"
    if not config.train and labelled:
        raise InputError("no texts with labels given: --data texts.tsv, or --data texts.txt --data labels.txt")
    if not config.train:
        raise InputError("no training pairs given: --data pairs.tsv, or --data source.txt --data target.txt")
    files = {"train": config.train, "valid": config.valid, "test": config.test}
    read = {
        split: read_pairs([Path(path) for path in paths], strict=config.strict, labelled=labelled)
        for split, paths in files.items()
        if paths
    }
    splits = {split: result.pairs for split, result in read.items()}
    if labelled:
        texts, labels = ([getattr(pair, side) for pair in splits["train"]] for side in ("source", "target"))
        check_labels(texts, labels, " and ".join(config.train))
    if "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"], config.valid_share, lambda pair: pair.source)
    return LoadedData(splits, tuple(note for result in read.values() for note in result.notes))


def _load_text(config: DataConfig) -> LoadedData:
    if not config.train:
        raise InputError("no text given: --data book.txt, once for each file")
    files = {"train": config.train, "valid": config.valid, "test": config.test}
    texts = {split: _read_texts(paths) for split, paths in files.items() if paths}
    if "valid" not in texts:  # hold out the end of the text
        cut = round((1 - config.valid_share) * len(texts["train"]))
        texts["train"], texts["valid"] = texts["train"][:cut], texts["train"][cut:]
    return LoadedData({}, texts=texts)


def _read_texts(paths: tuple[str, ...]) -> str:
    text = "\n".join(read_text(Path(path)) for path in paths)
    if not text.strip():
        raise InputError(f"{' and '.join(paths)}: is empty")
    return text


def _load_tagged(config: DataConfig) -> LoadedData:
    if not config.train:
        raise InputError("no tagged sentences given: --data train.conllu, or a file with one word and tag per line")
    files = {"train": config.train, "valid": config.valid, "test": config.test}
    splits = {split: _read_tagged(paths, config.column) for split, paths in files.items() if paths}
    train = splits["train"]
    words = [word for sentence in train for word in sentence.words]
    tags = [tag for sentence in train for tag in sentence.tags]
    check_labels(words, tags, " and ".join(config.train), "word")
    if "valid" not in splits:
        if len(splits["train"]) == 1:
            raise InputError(
                f"{' and '.join(config.train)}: contains a single sentence of {len(words):,} words, so none can be "
                f"held out for validation; {COLUMNS_EXPECTED}"
            )
        splits["train"], splits["valid"] = hold_out(
            splits["train"], config.valid_share, lambda sentence: " ".join(sentence.words)
        )
    return LoadedData({}, tagged=splits)


def _read_tagged(paths: tuple[str, ...], column: str) -> list[Tagged]:
    tagged: list[Tagged] = []
    for path in paths:
        if is_parsed(Path(path)):
            tagged.extend(parse_conllu(read_lines(Path(path)), path, column))
        elif column == "upos":
            sentences = parse_columns(read_lines(Path(path)), path)
            if looks_like_texts([word for sentence in sentences for word in sentence.words]):
                raise InputError(
                    f"{path}: has texts of several words in the first column, perhaps with labels; {COLUMNS_EXPECTED}"
                )
            tagged.extend(sentences)
        else:
            raise InputError(f"{path}: data.column = {column!r} requires CoNLL-U files, named *.conllu")
    if not tagged:
        raise InputError(f"{' and '.join(paths)}: no sentences found")
    return tagged


def _load_questions(config: DataConfig) -> LoadedData:
    if not config.train:
        raise InputError("no questions given: set data.train to a list of files in SQuAD's format, such as train.json")
    files = {"train": config.train, "valid": config.valid, "test": config.test}
    splits = {split: _read_questions(paths) for split, paths in files.items() if paths}
    if "valid" not in splits:  # all questions about a text go to the same split
        train = splits["train"]
        splits["train"], splits["valid"] = hold_out(train, config.valid_share, lambda question: question.text)
    return LoadedData({}, questions=splits)


def _read_questions(paths: tuple[str, ...]) -> list[Question]:
    return [question for path in paths for question in parse_squad(read_text(Path(path)), path)]


def _load_sentence_polarity(config: DataConfig) -> LoadedData:
    return LoadedData(sentence_polarity.read(DatasetCache.with_folder(config.folder)))


def _load_imdb(config: DataConfig) -> LoadedData:
    return LoadedData(imdb.read(DatasetCache.with_folder(config.folder)))


def _load_movie_reviews(config: DataConfig) -> LoadedData:
    return LoadedData(movie_reviews.read(DatasetCache.with_folder(config.folder), config.fold))


def _load_ud_english_ewt(config: DataConfig) -> LoadedData:
    return LoadedData({}, tagged=ud_english_ewt.read(DatasetCache.with_folder(config.folder), config.column))


def _load_wnut17(config: DataConfig) -> LoadedData:
    return LoadedData({}, tagged=wnut17.read(DatasetCache.with_folder(config.folder)))


def _load_omniglot(config: DataConfig) -> LoadedData:
    return LoadedData({}, episodes=omniglot.read(DatasetCache.with_folder(config.folder), config.ways, config.shots))


def _load_bandits(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora.bandits import Bandits  # slow import

    return LoadedData({}, bandits=dict.fromkeys(("train", "valid", "test"), Bandits(config.arms, config.pulls)))


def _load_copy(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora.bit_sequences import Copy  # slow import

    return _streams(Copy(), config)


def _load_repeat_copy(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora.bit_sequences import RepeatCopy

    return _streams(RepeatCopy(), config)


def _load_recall(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora.bit_sequences import Recall

    return _streams(Recall(), config)


def _streams(puzzle: "Puzzle", config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora.bit_sequences import Stream

    counts = {"train": config.size or SEQUENCES, **HELD_OUT_SEQUENCES}
    return LoadedData({}, sequences={split: Stream(puzzle, split, count) for split, count in counts.items()})


def _load_shapes(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora import shapes  # slow import

    return LoadedData(
        {},
        captions={
            "train": shapes.generate(config.size or SCENES, split="train"),
            "valid": shapes.generate(HELD_OUT_SCENES, split="valid"),
            "test": shapes.generate(HELD_OUT_SCENES, split="test"),
        },
    )


def _load_emoji(config: DataConfig) -> LoadedData:
    return LoadedData({}, captions=emoji.read(DatasetCache.with_folder(config.folder)))


def _load_flickr8k(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora import flickr8k

    features = None if config.features is None else Path(config.features)
    return LoadedData(
        {}, captions=flickr8k.read(DatasetCache.with_folder(config.folder), config.side, config.size, features)
    )


def _load_coco(config: DataConfig) -> LoadedData:
    from qkv.datasets.corpora import coco

    features = None if config.features is None else Path(config.features)
    return LoadedData(
        {}, captions=coco.read(DatasetCache.with_folder(config.folder), config.side, config.size, features)
    )


def _load_fashion_mnist(config: DataConfig) -> LoadedData:
    return LoadedData({}, images=fashion_mnist.read(DatasetCache.with_folder(config.folder)))


def _load_multi30k(config: DataConfig) -> LoadedData:
    return LoadedData(*multi30k.read(DatasetCache.with_folder(config.folder), config.source, config.target))


def _load_tatoeba(config: DataConfig) -> LoadedData:
    return LoadedData(tatoeba.read(DatasetCache.with_folder(config.folder), config.source, config.target))


def _load_cmudict(config: DataConfig) -> LoadedData:
    return LoadedData(cmudict.read(DatasetCache.with_folder(config.folder)))


def _load_tinyshakespeare(config: DataConfig) -> LoadedData:
    return LoadedData({}, texts=tinyshakespeare.read(DatasetCache.with_folder(config.folder)))


DATASETS = {
    "dates": DatasetEntry(
        f"dates in natural language, in {len(dates.LANGUAGES)} languages, to ISO 8601 (synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_dates,
    ),
    "pairs": DatasetEntry(
        "your own pairs, from a TSV, CSV or JSONL file or two text files (data.train)", "yours", _load_pairs
    ),
    "multi30k": DatasetEntry(
        "image captions in en, de, fr, cs: 29,000 training pairs",
        multi30k.INFO.licence,
        _load_multi30k,
        multi30k.INFO,
    ),
    "tatoeba": DatasetEntry(
        "short sentences in en and de: 169,813 pairs", tatoeba.INFO.licence, _load_tatoeba, tatoeba.INFO
    ),
    "cmudict": DatasetEntry(
        "English words to phonemes: 135,166 pronunciations", cmudict.INFO.licence, _load_cmudict, cmudict.INFO
    ),
    "tinyshakespeare": DatasetEntry(
        "Shakespeare plays: 1,115,394 characters",
        tinyshakespeare.INFO.licence,
        _load_tinyshakespeare,
        tinyshakespeare.INFO,
        "text",
    ),
    "text": DatasetEntry("your own plain text, from one or more files (data.train)", "yours", _load_text, None, "text"),
    "labelled": DatasetEntry(
        "your own labelled texts, from a TSV, CSV or JSONL file or two text files (data.train)",
        "yours",
        _load_pairs,
        None,
        "labelled",
    ),
    "sentence_polarity": DatasetEntry(
        "10,662 sentences from film reviews, positive or negative",
        sentence_polarity.INFO.licence,
        _load_sentence_polarity,
        sentence_polarity.INFO,
        "labelled",
    ),
    "imdb": DatasetEntry(
        "50,000 film reviews, positive or negative: 5,000 each for validation and test",
        imdb.INFO.licence,
        _load_imdb,
        imdb.INFO,
        "labelled",
    ),
    "movie_reviews": DatasetEntry(
        "2,000 long film reviews, positive or negative, in ten folds",
        movie_reviews.INFO.licence,
        _load_movie_reviews,
        movie_reviews.INFO,
        "labelled",
    ),
    "tagged": DatasetEntry(
        "your own tagged sentences, in CoNLL columns or CoNLL-U (data.train)",
        "yours",
        _load_tagged,
        None,
        "tagged",
    ),
    "ud_english_ewt": DatasetEntry(
        "web text with parts of speech and dependency trees: 12,544 training sentences",
        ud_english_ewt.INFO.licence,
        _load_ud_english_ewt,
        ud_english_ewt.INFO,
        "tagged",
    ),
    "wnut17": DatasetEntry(
        "web text with rare named entities: 3,394 training sentences",
        wnut17.INFO.licence,
        _load_wnut17,
        wnut17.INFO,
        "tagged",
    ),
    "questions": DatasetEntry(
        "your own extractive question answering data, in SQuAD format (data.train)",
        "yours",
        _load_questions,
        None,
        "questions",
    ),
    "copy": DatasetEntry(
        "copy task: 1 to 20 bit vectors, tested on up to 120 (synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_copy,
        None,
        "sequences",
    ),
    "repeat_copy": DatasetEntry(
        "repeat copy task on bit vectors (synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_repeat_copy,
        None,
        "sequences",
    ),
    "recall": DatasetEntry(
        "associative recall of items of bit vectors (synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_recall,
        None,
        "sequences",
    ),
    "fashion_mnist": DatasetEntry(
        "grayscale images of clothing, 28 x 28 pixels, ten classes: 60,000 for training, 10,000 for test",
        fashion_mnist.INFO.licence,
        _load_fashion_mnist,
        fashion_mnist.INFO,
        "pictures",
    ),
    "shapes": DatasetEntry(
        "scenes of coloured shapes with captions and object boxes, 64 x 64 pixels (synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_shapes,
        None,
        "captions",
    ),
    "emoji": DatasetEntry(
        "emoji by Google and Twitter with their names, 64 x 64 pixels: 3,786 of each",
        emoji.INFO.licence,
        _load_emoji,
        emoji.INFO,
        "captions",
    ),
    "flickr8k": DatasetEntry(
        "your copy of Flickr8k, or captioned images in its format (data.folder)",
        "yours",
        _load_flickr8k,
        None,
        "captions",
    ),
    "coco": DatasetEntry(
        "your copy of COCO captions, or captioned images in its format (data.folder)",
        "yours",
        _load_coco,
        None,
        "captions",
    ),
    "omniglot": DatasetEntry(
        "handwritten characters for few-shot learning: 1,028 for training, 172 for validation, 423 for test",
        omniglot.INFO.licence,
        _load_omniglot,
        omniglot.INFO,
        "episodes",
    ),
    "bandits": DatasetEntry(
        "Bernoulli multi-armed bandits (data.arms, data.pulls; synthetic)",
        "generated by qkv (Apache-2.0)",
        _load_bandits,
        None,
        "bandits",
    ),
}
