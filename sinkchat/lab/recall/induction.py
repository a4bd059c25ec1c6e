"""The subject that recalls everything it remembers: an induction head built by hand, and a tokenizer for its lines.

A line is three tokens: its opening, its number, its end. A question is the opening alone: what comes after it is what
came after it before. The model needs no more than that, and nothing else is tested.
"""

import re
from collections.abc import Sequence

from sinkchat.lab.recall.recall import HIGHEST, LOWEST, opening_of, question_for

_LINES = 5_000
"""openings that are told apart; of a longer stream the first are used again"""

_UNKNOWN, _END = 0, 1
_FIRST_LINE = 2
_FIRST_NUMBER = _FIRST_LINE + _LINES

_OPENING = re.escape(opening_of(0)).replace("0", r"(\d+)")
_QUESTION = re.escape(question_for(0)).replace("0", r"(\d+)", 1).replace("0", r"\d+")
_PIECES = re.compile(rf"{_QUESTION}|{_OPENING}|(\d+)|(>\n)|\S+")


class LineTokenizer:
    """A token an opening, a number, an end of a line; any other word is token 0."""

    vocabulary_size = _FIRST_NUMBER + HIGHEST + 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self._id(found) for found in _PIECES.finditer(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self._text, token_ids))

    def _id(self, found: re.Match[str]) -> int:
        asked, told, number, end = found.groups()
        if asked is not None or told is not None:
            return _FIRST_LINE + int(asked or told) % _LINES
        if number is not None and LOWEST <= int(number) <= HIGHEST:
            return _FIRST_NUMBER + int(number)
        return _END if end is not None else _UNKNOWN

    def _text(self, token: int) -> str:
        if token >= _FIRST_NUMBER:
            return str(token - _FIRST_NUMBER)
        if token >= _FIRST_LINE:
            return opening_of(token - _FIRST_LINE)
        return ">\n" if token == _END else "?"
