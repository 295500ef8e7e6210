"""The example type of dialogues: the turns of two people, who take turns, and its JSON Lines formats.

{"prompt": "What's your favorite smell?", "turns": ["Hello!", "Hey, how are you?", "Good!"]}
{"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]}
{"conversations": [{"from": "human", "value": "Hello!"}, {"from": "gpt", "value": "Hi."}]}
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from qkv.datasets.formats.tables import parse_json
from qkv.errors import InputError
from qkv.runtime.text import printable

MAX_TURNS = 10_000  # of a dialogue
MAX_CHARACTERS = 1_000_000  # of a turn
TURNS = "turns"
MESSAGES = {"messages": ("role", "content"), "conversations": ("from", "value")}  # keys of the speaker and the text
SYSTEM = "system"  # speaker of instructions, which are the topic
KEYS = (TURNS, *MESSAGES)  # by which a line is recognised as a dialogue


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns of two speakers in alternation, and the topic that they were given, if any."""

    turns: tuple[str, ...]
    prompt: str = ""

    @property
    def text(self) -> str:
        """All turns, one per line, as a `DialogueTokenizer` takes them."""
        return "\n".join(self.turns)

    @property
    def source_input(self) -> str:
        """The first turn, to which a model can respond."""
        return self.turns[0]


def parse_dialogues(lines: Sequence[str], where: str) -> list[Dialogue]:
    """Parse JSON Lines, one dialogue per line; whitespace in a turn, such as a line break, becomes a space.

    Successive messages of one speaker are one turn. Error messages start with `where`.
    """
    numbered = ((f"{where}: line {number}", line) for number, line in enumerate(lines, start=1) if line.strip())
    dialogues = [_parse(line, location) for location, line in numbered]
    if not dialogues:
        raise InputError(f"{where}: no dialogues found")
    return dialogues


def _parse(line: str, where: str) -> Dialogue:
    entry = parse_json(line, where)
    key = next((key for key in KEYS if isinstance(entry, dict) and isinstance(entry.get(key), list)), None)
    if key is None:
        raise InputError(
            f'{where}: must be an object with a list of turns, {{"turns": ["Hello!", "Hi!"]}}, or of messages, '
            '{"messages": [{"role": "user", "content": "Hello!"}, ...]}'
        )
    if key in MESSAGES:
        entry = _from_messages(entry[key], *MESSAGES[key], where)
    turns = entry[TURNS]
    if not 2 <= len(turns) <= MAX_TURNS:
        raise InputError(f"{where}: has {len(turns):,} turn(s); a dialogue has 2 to {MAX_TURNS:,}")
    prompt = entry.get("prompt", "")
    if not isinstance(prompt, str):
        raise InputError(f"{where}: prompt must be a string, not {printable(repr(prompt), 40)}")
    return Dialogue(tuple(_turns(turns, where)), prompt)


def _from_messages(messages: Sequence[Any], speaker: str, text: str, where: str) -> dict[str, Any]:
    """Return the turns of a list of messages, and the system message as prompt."""
    said: list[tuple[str, str]] = []
    for number, message in enumerate(messages, start=1):
        pair = (message.get(speaker), message.get(text)) if isinstance(message, Mapping) else (None, None)
        if not isinstance(pair[0], str) or not isinstance(pair[1], str) or not pair[1].strip():
            raise InputError(
                f"{where}: message {number} must have texts as {speaker} and {text}, not {printable(repr(message), 40)}"
            )
        said.append((pair[0], pair[1]))
    spoken = [pair for pair in said if pair[0] != SYSTEM]
    speakers = list(dict.fromkeys(map(itemgetter(0), spoken)))
    if len(speakers) > 2:
        names = printable(", ".join(speakers), 60)
        raise InputError(f"{where}: has messages of {len(speakers)} speakers ({names}); a dialogue has two")
    turns = [" ".join(text for _, text in group) for _, group in groupby(spoken, itemgetter(0))]
    return {TURNS: turns, "prompt": " ".join(text for name, text in said if name == SYSTEM)}


def _turns(turns: list[object], where: str) -> Iterator[str]:
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise InputError(f"{where}: turn {number} must be a non-empty string, not {printable(repr(turn), 40)}")
        if len(turn) > MAX_CHARACTERS:
            raise InputError(
                f"{where}: turn {number} has {len(turn):,} characters; a turn has at most {MAX_CHARACTERS:,}"
            )
        yield " ".join(turn.split())
