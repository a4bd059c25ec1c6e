"""Token ids to text, one at a time, never half a character.

A token may end in the middle of a UTF-8 sequence, so tokens are turned into bytes and the bytes into characters by
Python's incremental decoder: constant work for each token, an invalid byte is shown at once and holds nothing back,
a U+FFFD that was meant survives, and an unfinished character at the end is dropped.

The tokenizers library has a `DecodeStream`. It decodes a window of tokens and holds it while that ends in U+FFFD: a
run of invalid bytes is held for ever and decoded again for each token, and what is left cannot be asked for.
"""

import codecs
import re
from collections.abc import Callable, Sequence

from sinkchat.chat.tokenizer import Tokenizer

_PROBE = " Hello, wörld! 中文 🙂 x\n  y"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]
"""The bytes that a piece of the vocabulary stands for."""


class Detokenizer:
    """Decodes one answer. Special tokens are skipped unless `skip_special_tokens=False`."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = _special_ids(tokenizer) if skip_special_tokens else frozenset()
        self._spelling, self._strips_space = _spelling(tokenizer)
        self._previous: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are certain now."""
        if token in self._skipped:
            return ""
        spelt = self._spelt(token)
        if self._strips_space and spelt:
            spelt = spelt.removeprefix(b" ")
            self._strips_space = False
        return self._decoder.decode(spelt)

    def flush(self) -> str:
        """What is left at the end: that can only be half a character, and it is dropped."""
        self._decoder.reset()
        return ""

    def _spelt(self, token: int) -> bytes:
        if self._spelling is not None:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            return self._spelling(piece) if piece else b""  # models have more outputs than pieces
        before = [] if self._previous is None else [self._previous]
        self._previous = token
        known, text = self._decode(before), self._decode([*before, token])
        return text.removeprefix(known).encode()

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = (number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset((*added, *tokenizer.all_special_ids))


def _spelling(tokenizer: Tokenizer) -> tuple[Spelling | None, bool]:
    """How the tokenizer spells bytes, and whether it strips the space before a text's first word.

    Found out by decoding a text in its way and in ours. None: in neither way, so tokens are decoded in pairs.
    """
    ids = tokenizer.encode(_PROBE, add_special_tokens=False)
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).encode()
    pieces = [tokenizer.convert_ids_to_tokens(number) for number in ids]
    for spelling in (_byte_level, _byte_fallback):
        spelt = b"".join(map(spelling, pieces))
        if spelt in (decoded, b" " + decoded):
            return spelling, spelt != decoded
    return None, False


def _byte_level(piece: str) -> bytes:
    """GPT-2's alphabet: a printable character for each byte. An added token may hold others and is literal."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode()


def _byte_fallback(piece: str) -> bytes:
    """SentencePiece: `▁` for a space, `<0x0A>` for a byte that has no piece of its own."""
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | moved


_BYTE_OF = _byte_alphabet()


class StopText:
    """Passes text on until a stop text is complete; holds back what may still become one.

    Of several the first to be complete counts, whatever the pieces in which the text came.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is no part of a stop text for certain; nothing once one was found."""
        if self.found:
            return ""
        text = self._held + text
        places = [(text.find(stop), stop) for stop in self._stops]
        matches = [(place + len(stop), place) for place, stop in places if place >= 0]
        if matches:
            self.found, self._held = True, ""
            return text[: min(matches)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back and did not become a stop text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that is a beginning, not all, of a stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
