"""The data sets, by name: what a recipe's `data` table asks for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.data import (
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
from qkv.data.config import DataConfig as DataConfig
from qkv.data.files import hold_out, is_parsed, read_lines, read_pairs, read_text
from qkv.data.loaded import Loaded as Loaded
from qkv.data.questions import Question, parse_squad
from qkv.data.rows import TABLES
from qkv.data.sniff import check_labels, looks_like_texts, looks_tagged
from qkv.data.store import Corpus, Store
from qkv.data.tagged import Tagged, parse_columns, parse_conllu
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.algorithmic import Puzzle
    from qkv.data.tokenizer import PretrainedTokenizer
    from qkv.data.vocabulary import AnyVocabulary

DATES, HELD_OUT_DATES = 20_000, 2000
SCENES, HELD_OUT_SCENES = 50_000, 2000
SEQUENCES, HELD_OUT_SEQUENCES = 64_000, {"valid": 25, "test": 200}  # an epoch; else of each size
COLUMNS_EXPECTED = "expected CoNLL columns: a word and its tag on each line, an empty line after each sentence"
SCORED_FROM_FILES = ("labelled", "tagged", "questions")  # kinds of data that `load_to_score` can read


@dataclass(frozen=True)
class DataSet:
    """A named data set: what it is, under which licence, how to load it, and the files that it needs."""

    summary: str
    licence: str
    load: Callable[[DataConfig], Loaded]
    corpus: Corpus | None = None
    kind: Literal[
        "pairs", "text", "labelled", "tagged", "pictures", "captions", "questions", "sequences", "episodes", "bandits"
    ] = "pairs"


def load_data(config: DataConfig) -> Loaded:
    """Load the data that a recipe asks for; files that are in no folder are downloaded."""
    loaded = DATA_SETS[config.name].load(config)
    changed: dict[str, Any] = {}
    for kind in ("splits", "texts", "tagged", "pictures", "captions", "questions", "episodes"):
        parts = getattr(loaded, kind)
        if "train" in parts:
            changed[kind] = {**parts, "train": parts["train"][: config.size]}
    return replace(loaded, **changed)


def load_to_score(kind: str, paths: Sequence[Path], name: str, *, column: str = "upos", strict: bool = False) -> Loaded:
    """Files of a user's own as the split `name` of data of a kind, with nothing to learn from."""
    files = tuple(str(path) for path in paths)
    if kind == "tagged":
        return Loaded({}, tagged={"train": [], "valid": [], name: _read_tagged(files, column)})
    if kind == "questions":
        return Loaded({}, questions={"train": [], "valid": [], name: _read_questions(files)})
    if kind == "text":
        return Loaded({}, texts={"train": "", "valid": "", name: _read_texts(files)})
    read = read_pairs(paths, strict=strict, labelled=kind == "labelled")
    return Loaded({"train": [], "valid": [], name: read.pairs}, read.notes)


def guess_kind(paths: Sequence[Path]) -> str:
    """The kind of data in files of a user's own, by their names and content."""
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


def learn_vocabulary(data: Loaded, config: DataConfig) -> "AnyVocabulary | PretrainedTokenizer | None":
    """Learn the vocabulary of the training texts: one for both sides, or one for each; None where there are none."""
    from qkv.data.vocabulary import TwoVocabularies, Vocabulary  # slow to import, for who only lists the data sets
    from qkv.data.wordpiece import learn_wordpieces

    if data.pictures or data.episodes or data.bandits:
        return None
    if config.target_vocabulary is not None:
        pairs = data.splits["train"]
        sources, targets = (pair.source for pair in pairs), (pair.target for pair in pairs)
        return TwoVocabularies(
            Vocabulary.train(sources, config.vocabulary, lowercase=config.lowercase),
            Vocabulary.train(targets, config.target_vocabulary, lowercase=config.lowercase),
        )
    texts = _training_texts(data, labelled=DATA_SETS[config.name].kind == "labelled")
    kind, _, size = config.vocabulary.partition(":")
    if kind == "wordpiece":
        return learn_wordpieces(texts, int(size), lowercase=config.lowercase)
    return Vocabulary.train(texts, config.vocabulary, lowercase=config.lowercase)


def _training_texts(data: Loaded, *, labelled: bool) -> Iterator[str]:
    """Everything to train on that a model reads or writes; labels are neither."""
    if data.texts:
        return iter([data.texts["train"]])
    if data.tagged:
        return (word for sentence in data.tagged["train"] for word in sentence.words)
    if data.questions:
        train = data.questions["train"]
        return iter(dict.fromkeys(chain.from_iterable((one.text, one.question) for one in train)))
    pairs = data.splits["train"]
    sources = (pair.source for pair in pairs)
    return sources if labelled else chain(sources, (pair.target for pair in pairs))


def _load_dates(config: DataConfig) -> Loaded:
    return Loaded(
        {
            "train": dates.generate(config.size or DATES, split="train"),
            "valid": dates.generate(HELD_OUT_DATES, split="valid"),
            "test": dates.generate(HELD_OUT_DATES, split="test"),
        }
    )


def _load_pairs(config: DataConfig) -> Loaded:
    labelled = config.name == "labelled"
    if not config.train and labelled:
        raise InputError("no texts with labels given: --data texts.tsv, or --data texts.txt --data labels.txt")
    if not config.train:
        raise InputError("no training pairs given: --data pairs.tsv, or --data source.txt --data target.txt")
    named = {"train": config.train, "valid": config.valid, "test": config.test}
    read = {
        split: read_pairs([Path(path) for path in paths], strict=config.strict, labelled=labelled)
        for split, paths in named.items()
        if paths
    }
    splits = {split: found.pairs for split, found in read.items()}
    if labelled:
        texts, labels = ([getattr(pair, side) for pair in splits["train"]] for side in ("source", "target"))
        check_labels(texts, labels, " and ".join(config.train))
    if "valid" not in splits:
        splits["train"], splits["valid"] = hold_out(splits["train"], config.valid_share, lambda one: one.source)
    return Loaded(splits, tuple(note for found in read.values() for note in found.notes))


def _load_text(config: DataConfig) -> Loaded:
    if not config.train:
        raise InputError("no text given: --data book.txt, once for each file")
    named = {"train": config.train, "valid": config.valid, "test": config.test}
    texts = {split: _read_texts(paths) for split, paths in named.items() if paths}
    if "valid" not in texts:  # the end of the text
        cut = round((1 - config.valid_share) * len(texts["train"]))
        texts["train"], texts["valid"] = texts["train"][:cut], texts["train"][cut:]
    return Loaded({}, texts=texts)


def _read_texts(paths: tuple[str, ...]) -> str:
    text = "\n".join(read_text(Path(path)) for path in paths)
    if not text.strip():
        raise InputError(f"{' and '.join(paths)}: is empty")
    return text


def _load_tagged(config: DataConfig) -> Loaded:
    if not config.train:
        raise InputError("no tagged sentences given: --data train.conllu, or a file with a word and its tag a line")
    named = {"train": config.train, "valid": config.valid, "test": config.test}
    splits = {split: _read_tagged(paths, config.column) for split, paths in named.items() if paths}
    words, tags = ([word for one in splits["train"] for word in getattr(one, side)] for side in ("words", "tags"))
    check_labels(words, tags, " and ".join(config.train), "word")
    if "valid" not in splits:
        if len(splits["train"]) == 1:
            raise InputError(
                f"{' and '.join(config.train)}: holds one sentence, of {len(words):,} words, and none is left to "
                f"validate on; {COLUMNS_EXPECTED}"
            )
        splits["train"], splits["valid"] = hold_out(
            splits["train"], config.valid_share, lambda one: " ".join(one.words)
        )
    return Loaded({}, tagged=splits)


def _read_tagged(paths: tuple[str, ...], column: str) -> list[Tagged]:
    found: list[Tagged] = []
    for path in paths:
        if is_parsed(Path(path)):
            found.extend(parse_conllu(read_lines(Path(path)), path, column))
        elif column == "upos":
            sentences = parse_columns(read_lines(Path(path)), path)
            if looks_like_texts([word for one in sentences for word in one.words]):
                raise InputError(
                    f"{path}: has texts of several words in its first column, perhaps with labels; {COLUMNS_EXPECTED}"
                )
            found.extend(sentences)
        else:
            raise InputError(f"{path}: data.column = {column!r} is a column of CoNLL-U, which is named *.conllu")
    if not found:
        raise InputError(f"{' and '.join(paths)}: no sentences found")
    return found


def _load_questions(config: DataConfig) -> Loaded:
    if not config.train:
        raise InputError("no questions given: set data.train to a list of files in SQuAD's format, such as train.json")
    named = {"train": config.train, "valid": config.valid, "test": config.test}
    splits = {split: _read_questions(paths) for split, paths in named.items() if paths}
    if "valid" not in splits:  # all questions about a text are on one side
        splits["train"], splits["valid"] = hold_out(splits["train"], config.valid_share, lambda one: one.text)
    return Loaded({}, questions=splits)


def _read_questions(paths: tuple[str, ...]) -> list[Question]:
    return [one for path in paths for one in parse_squad(read_text(Path(path)), path)]


def _load_sentence_polarity(config: DataConfig) -> Loaded:
    return Loaded(sentence_polarity.read(Store.of(config.folder)))


def _load_imdb(config: DataConfig) -> Loaded:
    return Loaded(imdb.read(Store.of(config.folder)))


def _load_movie_reviews(config: DataConfig) -> Loaded:
    return Loaded(movie_reviews.read(Store.of(config.folder), config.fold))


def _load_ud_english_ewt(config: DataConfig) -> Loaded:
    return Loaded({}, tagged=ud_english_ewt.read(Store.of(config.folder), config.column))


def _load_wnut17(config: DataConfig) -> Loaded:
    return Loaded({}, tagged=wnut17.read(Store.of(config.folder)))


def _load_omniglot(config: DataConfig) -> Loaded:
    return Loaded({}, episodes=omniglot.read(Store.of(config.folder), config.ways, config.shots))


def _load_bandits(config: DataConfig) -> Loaded:
    from qkv.data.bandits import Bandits  # slow to import, for who only lists the data sets

    return Loaded({}, bandits=dict.fromkeys(("train", "valid", "test"), Bandits(config.arms, config.pulls)))


def _load_copy(config: DataConfig) -> Loaded:
    from qkv.data.algorithmic import Copy  # slow to import, for who only lists the data sets

    return _streams(Copy(), config)


def _load_repeat_copy(config: DataConfig) -> Loaded:
    from qkv.data.algorithmic import RepeatCopy

    return _streams(RepeatCopy(), config)


def _load_recall(config: DataConfig) -> Loaded:
    from qkv.data.algorithmic import Recall

    return _streams(Recall(), config)


def _streams(puzzle: "Puzzle", config: DataConfig) -> Loaded:
    from qkv.data.algorithmic import Stream

    counts = {"train": config.size or SEQUENCES, **HELD_OUT_SEQUENCES}
    return Loaded({}, sequences={split: Stream(puzzle, split, count) for split, count in counts.items()})


def _load_shapes(config: DataConfig) -> Loaded:
    from qkv.data import shapes  # slow to import, for who only lists the data sets

    return Loaded(
        {},
        captions={
            "train": shapes.generate(config.size or SCENES, split="train"),
            "valid": shapes.generate(HELD_OUT_SCENES, split="valid"),
            "test": shapes.generate(HELD_OUT_SCENES, split="test"),
        },
    )


def _load_emoji(config: DataConfig) -> Loaded:
    return Loaded({}, captions=emoji.read(Store.of(config.folder)))


def _load_flickr8k(config: DataConfig) -> Loaded:
    from qkv.data import flickr8k

    features = None if config.features is None else Path(config.features)
    return Loaded({}, captions=flickr8k.read(Store.of(config.folder), config.side, config.size, features))


def _load_coco(config: DataConfig) -> Loaded:
    from qkv.data import coco

    features = None if config.features is None else Path(config.features)
    return Loaded({}, captions=coco.read(Store.of(config.folder), config.side, config.size, features))


def _load_fashion_mnist(config: DataConfig) -> Loaded:
    return Loaded({}, pictures=fashion_mnist.read(Store.of(config.folder)))


def _load_multi30k(config: DataConfig) -> Loaded:
    return Loaded(*multi30k.read(Store.of(config.folder), config.source, config.target))


def _load_tatoeba(config: DataConfig) -> Loaded:
    return Loaded(tatoeba.read(Store.of(config.folder), config.source, config.target))


def _load_cmudict(config: DataConfig) -> Loaded:
    return Loaded(cmudict.read(Store.of(config.folder)))


def _load_tinyshakespeare(config: DataConfig) -> Loaded:
    return Loaded({}, texts=tinyshakespeare.read(Store.of(config.folder)))


DATA_SETS = {
    "dates": DataSet(
        f"dates as people write them, in {len(dates.LANGUAGES)} languages, to ISO 8601; generated",
        "made by qkv (Apache-2.0)",
        _load_dates,
    ),
    "pairs": DataSet(
        "your own pairs, from a TSV, CSV or JSONL file or two text files (data.train)", "yours", _load_pairs
    ),
    "multi30k": DataSet(
        "captions of photographs, two of en, de, fr, cs: 29,000 pairs to train on",
        multi30k.CORPUS.licence,
        _load_multi30k,
        multi30k.CORPUS,
    ),
    "tatoeba": DataSet(
        "short sentences, en and de: 169,813 pairs", tatoeba.CORPUS.licence, _load_tatoeba, tatoeba.CORPUS
    ),
    "cmudict": DataSet(
        "English words to phonemes: 135,166 pronunciations", cmudict.CORPUS.licence, _load_cmudict, cmudict.CORPUS
    ),
    "tinyshakespeare": DataSet(
        "plays as one text of 1,115,394 characters",
        tinyshakespeare.CORPUS.licence,
        _load_tinyshakespeare,
        tinyshakespeare.CORPUS,
        "text",
    ),
    "text": DataSet("your own running text, from one file or several (data.train)", "yours", _load_text, None, "text"),
    "labelled": DataSet(
        "your own texts with a label each, from a TSV, CSV or JSONL file or two text files (data.train)",
        "yours",
        _load_pairs,
        None,
        "labelled",
    ),
    "sentence_polarity": DataSet(
        "sentences of film reviews, positive or negative: 10,662",
        sentence_polarity.CORPUS.licence,
        _load_sentence_polarity,
        sentence_polarity.CORPUS,
        "labelled",
    ),
    "imdb": DataSet(
        "film reviews, positive or negative: 50,000, of which 5,000 to validate and 5,000 to test on",
        imdb.CORPUS.licence,
        _load_imdb,
        imdb.CORPUS,
        "labelled",
    ),
    "movie_reviews": DataSet(
        "long film reviews, positive or negative: 2,000 in ten folds",
        movie_reviews.CORPUS.licence,
        _load_movie_reviews,
        movie_reviews.CORPUS,
        "labelled",
    ),
    "tagged": DataSet(
        "your own sentences with a tag for each word, in CoNLL columns or CoNLL-U (data.train)",
        "yours",
        _load_tagged,
        None,
        "tagged",
    ),
    "ud_english_ewt": DataSet(
        "web text with parts of speech and dependency trees: 12,544 sentences to train on",
        ud_english_ewt.CORPUS.licence,
        _load_ud_english_ewt,
        ud_english_ewt.CORPUS,
        "tagged",
    ),
    "wnut17": DataSet(
        "web text with rare entities: 3,394 sentences to train on",
        wnut17.CORPUS.licence,
        _load_wnut17,
        wnut17.CORPUS,
        "tagged",
    ),
    "questions": DataSet(
        "your own questions about texts that hold the answers, as SQuAD has them (data.train)",
        "yours",
        _load_questions,
        None,
        "questions",
    ),
    "copy": DataSet(
        "sequences of bits to say again, of 1 to 20 vectors and up to 120 to test on; generated",
        "made by qkv (Apache-2.0)",
        _load_copy,
        None,
        "sequences",
    ),
    "repeat_copy": DataSet(
        "sequences of bits to say again several times; generated",
        "made by qkv (Apache-2.0)",
        _load_repeat_copy,
        None,
        "sequences",
    ),
    "recall": DataSet(
        "lists of items of bits, of which to name the one after another; generated",
        "made by qkv (Apache-2.0)",
        _load_recall,
        None,
        "sequences",
    ),
    "fashion_mnist": DataSet(
        "grey pictures of clothes, 28 x 28 pixels, of ten kinds: 60,000 and 10,000 to test on",
        fashion_mnist.CORPUS.licence,
        _load_fashion_mnist,
        fashion_mnist.CORPUS,
        "pictures",
    ),
    "shapes": DataSet(
        "scenes of coloured shapes, a caption of each and the place of every object, 64 x 64 pixels; generated",
        "made by qkv (Apache-2.0)",
        _load_shapes,
        None,
        "captions",
    ),
    "emoji": DataSet(
        "emoji as Google and Twitter draw them, 64 x 64 pixels, with their names: 3,786 of each",
        emoji.CORPUS.licence,
        _load_emoji,
        emoji.CORPUS,
        "captions",
    ),
    "flickr8k": DataSet(
        "your copy of Flickr8k, or pictures with captions in its form (data.folder)",
        "yours",
        _load_flickr8k,
        None,
        "captions",
    ),
    "coco": DataSet(
        "your copy of COCO's captions, or pictures with captions in its form (data.folder)",
        "yours",
        _load_coco,
        None,
        "captions",
    ),
    "omniglot": DataSet(
        "drawn characters of which an episode shows a few: 1,028 to train on, 172 and 423 others to test on",
        omniglot.CORPUS.licence,
        _load_omniglot,
        omniglot.CORPUS,
        "episodes",
    ),
    "bandits": DataSet(
        "arms that pay with probabilities of their own (data.arms, data.pulls); generated",
        "made by qkv (Apache-2.0)",
        _load_bandits,
        None,
        "bandits",
    ),
}
