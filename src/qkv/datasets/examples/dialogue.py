"""The example type of dialogues: the turns of two people, who take turns, and its JSON Lines formats.

{"prompt": "What's your favorite smell?", "turns": ["Hello!", "Hey, how are you?", "Good!"]}
{"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]}
{"conversations": [{"from": "human", "value": "Hello!"}, {"from": "gpt", "value": "Hi."}]}
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
SPEAKERS = frozenset({"user", "assistant", "human", "gpt", "model"})  # of exports that have other roles, such as tool
TOOL_CALLS = ("tool_calls", "function_call")  # keys of a message that need not have a text
MAX_ROLES = 3  # named in a note
KEYS = (TURNS, *MESSAGES)  # by which a line is recognized as a dialogue


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


@dataclass
class Skipped:
    """Numbers of what was skipped in a file."""

    tool_calls: int = 0  # messages without text
    roles: Counter[str] = field(default_factory=Counter)  # messages by role
    dialogues: int = 0

    @property
    def messages(self) -> int:
        return self.tool_calls + self.roles.total()

    def describe(self) -> str:
        """Return "3 message(s) without text, 2 of other roles (tool)"; "" if nothing was skipped."""
        roles = ", ".join(printable(name, 30) for name, _ in self.roles.most_common(MAX_ROLES))
        counts = {
            "message(s) without text": self.tool_calls,
            f"message(s) of other roles ({roles})": self.roles.total(),
            "dialogue(s) with fewer than two turns left": self.dialogues,
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def parse_dialogues(lines: Sequence[str], where: str, notes: list[str] | None = None) -> list[Dialogue]:
    """Parse JSON Lines, one dialogue per line; whitespace in a turn, such as a line break, becomes a space.

    Successive messages of one speaker are one turn. Calls of tools and their results are skipped, with a note. Error
    messages start with `where`.
    """
    skipped = Skipped()
    numbered = ((f"{where}: line {number}", line) for number, line in enumerate(lines, start=1) if line.strip())
    parsed = [_parse(line, location, skipped) for location, line in numbered]
    dialogues = [dialogue for dialogue in parsed if dialogue is not None]
    description = skipped.describe()
    if not dialogues:
        raise InputError(f"{where}: no dialogues found{f'; skipped {description}' if description else ''}")
    if description and notes is not None:
        notes.append(f"{where}: skipped {description}")
    return dialogues


def _parse(line: str, where: str, skipped: Skipped) -> Dialogue | None:
    """Parse a dialogue; None if fewer than two turns are left because messages were skipped."""
    entry = parse_json(line, where)
    key = next((key for key in KEYS if isinstance(entry, dict) and isinstance(entry.get(key), list)), None)
    if key is None:
        raise InputError(
            f'{where}: must be an object with a list of turns, {{"turns": ["Hello!", "Hi!"]}}, or of messages, '
            '{"messages": [{"role": "user", "content": "Hello!"}, ...]}'
        )
    skipped_before = skipped.messages
    if key in MESSAGES:
        entry = _from_messages(entry[key], *MESSAGES[key], where, skipped)
    turns = entry[TURNS]
    if len(turns) < 2 and skipped.messages > skipped_before:
        skipped.dialogues += 1
        return None
    if not 2 <= len(turns) <= MAX_TURNS:
        raise InputError(f"{where}: has {len(turns):,} turn(s); a dialogue has 2 to {MAX_TURNS:,}")
    prompt = entry.get("prompt", "")
    if not isinstance(prompt, str):
        raise InputError(f"{where}: prompt must be a string, not {printable(repr(prompt), 40)}")
    return Dialogue(tuple(_turns(turns, where)), prompt)


def _from_messages(messages: Sequence[Any], speaker: str, text: str, where: str, skipped: Skipped) -> dict[str, Any]:
    """Return the turns of a list of messages, and the system message as prompt."""

    def malformed(number: int, message: object) -> InputError:
        shown = printable(repr(message), 40)
        return InputError(f"{where}: message {number} must have texts as {speaker} and {text}, not {shown}")

    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get(speaker), str):
            raise malformed(number, message)
    roles = list(dict.fromkeys(message[speaker] for message in messages if message[speaker] != SYSTEM))
    speakers = roles if len(roles) <= 2 else [role for role in roles if role in SPEAKERS]
    if len(roles) > 2 and len(speakers) != 2:
        names = printable(", ".join(roles), 60)
        raise InputError(f"{where}: has messages of {len(roles)} speakers ({names}); a dialogue has two")
    said: list[tuple[str, str]] = []
    for number, message in enumerate(messages, start=1):
        role, content = message[speaker], message.get(text)
        if role not in (SYSTEM, *speakers):
            skipped.roles[role] += 1
        elif isinstance(content, str) and content.strip():
            said.append((role, content))
        elif (content is None and text in message) or (not content and any(message.get(key) for key in TOOL_CALLS)):
            skipped.tool_calls += 1
        else:
            raise malformed(number, message)
    spoken = [pair for pair in said if pair[0] != SYSTEM]
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
