"""Columns of tables by their role in an example: the names by which each is recognized."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.text import printable

LANGUAGES = (  # without "id", which is rarely Indonesian
    "en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "fi", "cs", "pl", "ru", "uk", "zh", "ja", "ko", "ar", "hi",
    "tr", "el", "he", "ro", "hu", "vi", "english", "german", "french", "spanish", "italian", "portuguese",
    "dutch", "swedish", "danish", "finnish", "czech", "polish", "russian", "ukrainian", "chinese", "japanese",
    "korean", "arabic", "hindi", "turkish", "greek", "hebrew", "romanian", "hungarian", "vietnamese", "indonesian",
)  # fmt: skip
MAX_SHOWN = 10  # columns in a message
MAX_PARTS = 3  # words of a name that is recognized by one of them; longer cells are texts
IDENTIFIERS = frozenset(("id", "ids", "idx", "index"))


@dataclass(frozen=True)
class Role:
    """A column that examples need, and the names by which it is recognized, in lower case and preferred first.

    If none of them is there, the first column with one of `others` is used, or else the only column that has one of the
    names as a part, such as "review_text".
    """

    name: str
    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    required: bool = True


PAIR = (
    Role(
        "source",
        ("src", "input", "inputs", "article", "document", "dialogue", "original", "word", "prompt", "question",
         "sentence1", "text", "sources"),
        LANGUAGES,
    ),
    Role(
        "target",
        ("tgt", "trg", "output", "outputs", "summary", "highlights", "abstract", "translation", "corrected",
         "pronunciation", "phonemes", "completion", "response", "answer", "sentence2", "targets"),
        LANGUAGES,
    ),
)  # fmt: skip
LABELED_TEXT = (
    Role(
        "text",
        ("texts", "sentence", "sentences", "review", "reviews", "comment", "tweet", "document", "doc", "content",
         "message", "body", "utterance", "passage", "article", "question", "query", "headline", "title", "premise"),
    ),
    Role(
        "label",
        ("labels", "class", "classes", "category", "categories", "sentiment", "polarity", "rating", "score", "stars",
         "intent", "topic", "emotion", "tag", "target", "language", "lang"),
    ),
)  # fmt: skip
TAGGED = (
    Role("tokens", ("words", "token", "word", "sentence", "text")),
    Role("tags", ("ner_tags", "pos_tags", "upos", "xpos", "chunk_tags", "labels", "ner", "pos", "tag", "label")),
)
QUESTION = (
    Role("question", ("query",)),
    Role("context", ("passage", "paragraph", "document", "article", "text")),
    Role("answer", ("answers.text", "answer_text", "answers")),
    Role("answer_start", ("answers.answer_start", "start"), required=False),
)
RECORDING = (
    Role("audio", ("file", "file_name", "filename", "path", "wav", "recording", "audio_path", "audio_file")),
    Role("text", ("sentence", "transcript", "transcription", "transcripts", "utterance", "words", "target")),
)
IMAGE_NAMES = ("file_name", "filename", "file", "path", "picture", "photo", "image_path", "img", "image_id")
LABELED_IMAGE = (Role("image", IMAGE_NAMES), Role("label", ("labels", "class", "category", "target", "tag")))
CAPTIONED_IMAGE = (
    Role("image", IMAGE_NAMES),
    Role("caption", ("captions", "text", "description", "sentence", "title", "raw")),
)

INPUTS = {  # columns of the inputs of a model, by the name of their role
    "text": Role("text", (*LABELED_TEXT[0].names, "source", *PAIR[0].names)),
    "image": Role("image", IMAGE_NAMES),
    "audio": RECORDING[0],
}

COLUMN_NAMES = frozenset(  # that a header can have
    name
    for role in chain(PAIR, LABELED_TEXT, TAGGED, QUESTION, RECORDING, LABELED_IMAGE, CAPTIONED_IMAGE)
    for name in (role.name, *role.names, *role.others, "hypothesis")
)


def name_parts(name: str) -> tuple[str, ...]:
    """Return the words of the name of a column in lower case: "review_text" or "Review Text"; () if it is no name."""
    parts = re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    return tuple(part.lower() for part in parts) if len(parts) <= MAX_PARTS and all(map(str.isalpha, parts)) else ()


def match_columns(
    names: Sequence[str], roles: Sequence[Role], columns: Mapping[str, str], where: str, *, by_parts: bool = True
) -> dict[str, str]:
    """Return the column of each role: as given in `columns`, else by its name; without the roles that have none.

    Case and separators are ignored. A nested column such as `translation.en` is recognized by its full name or by its
    last part. With `by_parts`, the columns of other roles are recognized by a part of their names.
    """
    check_roles(roles, columns)
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(name.strip().lower(), name)
    for name in names:
        known.setdefault(name.strip().lower().rpartition(".")[2], name)
    for name in names:
        known.setdefault("_".join(name_parts(name)), name)
    matched: dict[str, str] = {}
    for role in roles:
        if role.name in columns:
            if columns[role.name] not in names:
                raise InputError(
                    f"{where}: has no column {printable(repr(columns[role.name]), 40)}; its columns are "
                    f"{list_columns(names)}"
                )
            matched[role.name] = columns[role.name]
    for role in roles:
        free = {key: name for key, name in known.items() if name not in matched.values()}
        candidates = [*(role.name, *role.names), *(key for key in free if key in role.others)]
        column = next((free[key] for key in candidates if key in free), None)
        if role.name not in matched and column is not None:
            matched[role.name] = column
    while by_parts and (columns_by_part := _match_parts(names, roles, matched)):
        matched |= columns_by_part
    return matched


def _match_parts(names: Sequence[str], roles: Sequence[Role], matched: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of required roles that one of the other columns, and only one, has a part of its name for."""
    free = {name: name_parts(name) for name in names if name not in matched.values()}
    columns = {}
    for role in roles:
        if role.name in matched or not role.required:
            continue
        candidates = [name for name, parts in free.items() if _names_role(parts, role)]
        preferred = [name for name in candidates if role.name in free[name]] or candidates
        if len(preferred) == 1:
            columns[role.name] = preferred[0]
    counts = Counter(columns.values())
    return {role: name for role, name in columns.items() if counts[name] == 1}


def _names_role(parts: Sequence[str], role: Role) -> bool:
    """Return whether a part of a column's name is a name of a role; an identifier can only be a label."""
    identifies = role.name != "label" and not IDENTIFIERS.isdisjoint(parts)
    return not identifies and not {role.name, *role.names}.isdisjoint(parts)


def check_roles(roles: Sequence[Role], columns: Mapping[str, str]) -> None:
    """Raise if `columns` names a role that the examples do not have."""
    valid = [role.name for role in roles]
    for name in columns:
        if name not in valid:
            raise InputError(
                f"--column {printable(name, 40)}={printable(columns[name], 40)}: unknown role "
                f"{printable(name, 40)}{nearest(name, valid)}; the roles of this data are {', '.join(valid)}"
            )


def missing_roles(roles: Sequence[Role], matched: Mapping[str, str]) -> list[str]:
    """Return the required roles without a column."""
    return [role.name for role in roles if role.required and role.name not in matched]


def describe_columns(roles: Sequence[Role], matched: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the column of each role and the columns that are ignored, e.g. "text is 'review'; ignored: id"."""
    used = ", ".join(f"{role.name} is {matched[role.name]!r}" for role in roles if role.name in matched)
    ignored = [name for name in names if name not in matched.values()]
    return f"{used}{f'; ignored: {list_columns(ignored)}' if ignored else ''}"


def list_columns(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 30) for name in names[:MAX_SHOWN])
    return f"{shown}, ..." if len(names) > MAX_SHOWN else shown or "none"
