"""The text of tokens as they are generated, one at a time."""

from collections.abc import Sequence

from qkv.tokenizers import Tokenizer

INCOMPLETE = "\ufffd"  # decoded from a part of the bytes of a character
CONTEXT = 16  # tokens before the new ones that are decoded with them: their text, e.g. a space, can depend on these


class TextStream:
    """Decodes new tokens after a prompt; the pieces concatenate to the text of all of them."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = [*prompt[-CONTEXT:]]
        self._text = tokenizer.decode(self._ids)  # returned already, or part of the prompt
        self._returned = len(self._ids)  # tokens whose text is in `_text`

    def append(self, token: int) -> str | None:
        """Return the text that a token adds, or None as long as it is only a part of a character."""
        self._ids.append(token)
        decoded = self._tokenizer.decode(self._ids)
        if decoded.endswith(INCOMPLETE):
            return None
        piece = decoded.removeprefix(self._text)
        self._text, self._returned = decoded, len(self._ids)
        if len(self._ids) > 2 * CONTEXT:
            self._ids = self._ids[-CONTEXT:]
            self._text, self._returned = self._tokenizer.decode(self._ids), len(self._ids)
        return piece

    def rest(self) -> str:
        """Return the text of the last tokens, if it has not been returned because a character was incomplete."""
        if self._returned == len(self._ids):
            return ""
        piece = self._tokenizer.decode(self._ids).removeprefix(self._text)
        self._returned = len(self._ids)
        return piece
