"""The example type of dialogues: the turns of two people, who take turns, and its JSON Lines format.

{"prompt": "What's your favorite smell?", "turns": ["Hello!", "Hey, how are you?", "Good!"]}
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.datasets.formats.tables import parse_json
from qkv.errors import InputError
from qkv.runtime.text import printable

MAX_TURNS = 10_000  # of a dialogue
MAX_CHARACTERS = 1_000_000  # of a turn


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

    Error messages start with `where`.
    """
    numbered = ((f"{where}: line {number}", line) for number, line in enumerate(lines, start=1) if line.strip())
    dialogues = [_parse(line, location) for location, line in numbered]
    if not dialogues:
        raise InputError(f"{where}: no dialogues found")
    return dialogues


def _parse(line: str, where: str) -> Dialogue:
    entry = parse_json(line, where)
    turns = entry.get("turns") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise InputError(f'{where}: must be an object with a list of turns: {{"turns": ["Hello!", "Hi!"]}}')
    if not 2 <= len(turns) <= MAX_TURNS:
        raise InputError(f"{where}: has {len(turns):,} turn(s); a dialogue has 2 to {MAX_TURNS:,}")
    prompt = entry.get("prompt", "")
    if not isinstance(prompt, str):
        raise InputError(f"{where}: prompt must be a string, not {printable(repr(prompt), 40)}")
    return Dialogue(tuple(_turns(turns, where)), prompt)


def _turns(turns: list[object], where: str) -> Iterator[str]:
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise InputError(f"{where}: turn {number} must be a non-empty string, not {printable(repr(turn), 40)}")
        if len(turn) > MAX_CHARACTERS:
            raise InputError(
                f"{where}: turn {number} has {len(turn):,} characters; a turn has at most {MAX_CHARACTERS:,}"
            )
        yield " ".join(turn.split())
