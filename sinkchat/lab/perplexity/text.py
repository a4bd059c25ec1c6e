"""A text as one stream of token ids, read no further than it is wanted.

Texts are other people's: no special token is recognised in them. What a tokenizer puts before a text, such as BOS,
stands before this one too; it is the first sink.
"""

import codecs
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sinkchat.chat.encoding import Follows, PlainText, PromptStream, SpecialTokens
from sinkchat.chat.tokenizer import Tokenizer
from sinkchat.errors import InputError, UsageError

_PIECE = 1 << 16
_HINT = "the path of a text in UTF-8, such as a book"


@dataclass(frozen=True, slots=True)
class TextSource:
    """Where a text comes from: a file, or stdin where the name is `-`."""

    name: str
    stdin: BinaryIO

    @property
    def shown(self) -> str:
        """As it is called in a sentence."""
        return "stdin" if self.name == "-" else self.name

    def require(self) -> None:
        """Raises `InputError` where a file cannot be opened: better before a model is loaded."""
        if self.name != "-":
            next(self.pieces(), "")

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece. Raises `InputError` where it cannot be read, or is no text in UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        done = 0
        with ExitStack() as stack:
            try:
                file = self.stdin if self.name == "-" else stack.enter_context(Path(self.name).open("rb"))
                while data := file.read(_PIECE):
                    piece = decoder.decode(data)
                    if (nothing := data.find(0)) >= 0:
                        raise InputError(f"{self.shown} is no text: byte {done + nothing:,} is 0x00", hint=_HINT)
                    yield piece.removeprefix("\ufeff") if done == 0 else piece
                    done += len(data)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError as error:
                # What the decoder held back stands before the data of this piece.
                place = done - (len(error.object) - len(data)) + error.start
                raise InputError(
                    f"{self.shown} is not UTF-8 text: byte {place:,} is {error.object[error.start]:#04x}", hint=_HINT
                ) from error
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise InputError(f"--text {self.shown} cannot be read: {reason}", hint=_HINT) from error

    def ids(self, tokenizer: Tokenizer, *, most: int) -> list[int]:
        """The first `most` ids, or all where `most` is 0. Raises `InputError` for an empty text."""
        opening = _opening(tokenizer)
        stream = PromptStream(
            PlainText(tokenizer), SpecialTokens(tokenizer), Follows.TOKEN if opening else Follows.NOTHING
        )
        ids = list(opening)
        for piece in self.pieces():
            stream.text(piece)
            ids += _taken(stream)
            if most and len(ids) >= most:
                return ids[:most]
        stream.finish()
        ids += _taken(stream)
        if len(ids) == len(opening):
            raise InputError(f"{self.shown} is empty", hint=_HINT)
        return ids[:most] if most else ids

    def long_enough(self, ids: list[int], *, cache_size: int, most: int) -> None:
        """Raises `InputError` or `UsageError` where `ids` do not outgrow the cache: then there is nothing to see."""
        lacking = cache_size + 1 - len(ids)
        if lacking <= 0:
            return
        if most and len(ids) == most:
            raise UsageError(
                f"--tokens {most:,} is {lacking:,} too few to fill a cache of {cache_size:,} and score one more",
                hint=f"--tokens {4 * cache_size}, or a smaller --cache-size",
            )
        hint = f"a longer text, or --cache-size {len(ids) // 4}" if len(ids) > 64 else "a longer text"
        raise InputError(
            f"{self.shown} is {len(ids):,} tokens, {lacking:,} too few to fill a cache of {cache_size:,} and score "
            "one more",
            hint=hint,
        )


def line_break_id(tokenizer: Tokenizer) -> int:
    """The token that a line break is. Raises `UsageError` for a tokenizer that has none."""
    ids = PlainText(tokenizer).encode("\n", Follows.TEXT)
    if len(ids) != 1:
        raise UsageError(
            f"a line break is {len(ids)} tokens to this model, and --line-breaks needs one", hint="no --line-breaks"
        )
    return ids[0]


def _opening(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before every text."""
    with_opening = tokenizer.encode("a", add_special_tokens=True)
    plain = tokenizer.encode("a", add_special_tokens=False)
    before = with_opening[: max(0, len(with_opening) - len(plain))]
    return before if with_opening[len(before) :] == plain else []


def _taken(stream: PromptStream) -> list[int]:
    return [number for segment in stream.take() for number in segment.ids]
