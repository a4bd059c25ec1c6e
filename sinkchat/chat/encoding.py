"""Text to token ids, while it arrives, and without anybody's `<|im_end|>` becoming a token.

Two kinds of text meet in a prompt. The template's own holds special tokens; a person's never does, whatever
was typed or pasted. So there is one encoder here, which knows no special tokens at all: `PlainText` runs the
tokenizer's normalizer, pre-tokenizer and model, and `PromptStream` puts the template's tokens between its pieces.
That is what a tokenizer does itself (added tokens are split off before all else), so the ids are the whole's.

`split_special_tokens=True` would not do: it is a flag left set on the tokenizer that everybody shares, and added
tokens that are not "special" (`<think>`, `<tool_call>`) are recognised all the same.

A long text is cut only where no token can lie across: before a single space between two other characters, and before
a newline after a letter. Where the cuts fall depends on the text alone, not on how it arrived.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any, Protocol

from sinkchat.chat.tokenizer import AddedToken, Tokenizer
from sinkchat.engine.segment import Segment

CHUNK = 4096
"""characters that are encoded together: enough for speed, few enough to begin reading soon"""

LIMIT = 65536
"""characters without a safe place, after which a cut is made anywhere: base64, or Chinese on one line"""

_SAFE = r"(?:(?<=\S) (?=\S)|(?<=[^\W\d_])\n)"
_LAST_SAFE = re.compile(rf"(?s).*{_SAFE}")
_NEXT_SAFE = re.compile(_SAFE)
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with lone surrogates, which no tokenizer takes, as U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class Follows(Enum):
    """What stands before a text: some tokenizers put a space before the first word, and only there."""

    NOTHING = auto()
    TOKEN = auto()
    STRIPPING_TOKEN = auto()  # it takes the whitespace on its right with it
    TEXT = auto()


class _Encoding(Protocol):
    """Ids, and for each the first and last characters it stands for; none where the tokenizer cannot say."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True)
class _Ids:
    ids: list[int]
    offsets: list[tuple[int, int]]


class PlainText:
    """Encodes text in which no special token is recognised. Changes nothing in the tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = _without_visible_tokens(tokenizer)
        self._anchors = {anchor: self._encode(anchor).ids for anchor in ("a", "\n")} | {"": []}
        self._after_token = _reading_after_token(tokenizer, self)

    def encode(self, text: str, follows: Follows) -> list[int]:
        return self.parts(text, follows, ())[0]

    def parts(self, text: str, follows: Follows, borders: Sequence[int]) -> list[list[int]]:
        """The ids between the borders, which are places in the text; a token that lies across is in the earlier part.

        A text that goes on after another is encoded behind an anchor, whose ids are taken off.
        """
        anchor = self._anchor(text, follows)
        encoding = self._encode(anchor + text)
        ids, before = encoding.ids, self._anchors[anchor]
        if ids[: len(before)] != before:
            anchor, before, encoding = "", [], self._encode(text)
            ids = encoding.ids
        places = [self._index(anchor + text, encoding, len(anchor) + border) for border in borders]
        return [ids[start:stop] for start, stop in pairwise([len(before), *places, len(ids)])]

    def _anchor(self, text: str, follows: Follows) -> str:
        if follows in (Follows.TOKEN, Follows.STRIPPING_TOKEN):
            follows = self._after_token
        if follows is not Follows.TEXT or not text:
            return ""
        return "a" if text[0].isspace() else "\n"

    def _index(self, text: str, encoding: _Encoding, place: int) -> int:
        """The first id that stands for nothing before a place in the text."""
        if not encoding.offsets:
            return len(self._encode(text[:place]).ids)
        return bisect_left(encoding.offsets, (place,))


def _without_visible_tokens(tokenizer: Tokenizer) -> Callable[[str], _Encoding]:
    """The tokenizer without the added tokens that one could see; its vocabulary is shared, not copied.

    Added runs of spaces and newlines (GPT-NeoX, Gemma) are ordinary text and stay.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: the flag is an argument there, and nothing is shared
        return lambda text: _Ids(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True), [])
    plain = type(backend)(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    runs = {number: token for number, token in tokenizer.added_tokens_decoder.items() if not is_visible(token)}
    plain.add_tokens(list(runs.values()))
    renumbered = {plain.token_to_id(token.content): number for number, token in runs.items()}
    renumbered = {mine: number for mine, number in renumbered.items() if mine != number}

    def encode(text: str) -> _Encoding:
        encoding: _Encoding = plain.encode(text, add_special_tokens=False)
        if not renumbered:
            return encoding
        return _Ids([renumbered.get(number, number) for number in encoding.ids], encoding.offsets)

    return encode


def is_visible(token: AddedToken) -> bool:
    """Whether an added token is a mark such as `<|im_end|>`, not a run of whitespace."""
    return bool(token.content.replace("▁", " ").strip())


def _reading_after_token(tokenizer: Tokenizer, plain: PlainText) -> Follows:
    """How text right after a special token is encoded: as at the very beginning, or as going on."""
    for number, token in tokenizer.added_tokens_decoder.items():
        if is_visible(token):
            ids = tokenizer.encode(token.content + "word", add_special_tokens=False, split_special_tokens=False)
            if ids == [number, *plain.encode("word", Follows.TEXT)]:
                return Follows.TEXT
            break
    return Follows.NOTHING


class SpecialTokens:
    """The added tokens that a template may write, and how to find them in its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.added_tokens_decoder.items()
        self._numbers = {token.content: number for number, token in added if is_visible(token)}
        self._tokens = {number: token for number, token in added if is_visible(token)}
        longest_first = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __getitem__(self, number: int) -> AddedToken:
        return self._tokens[number]

    def split(self, text: str) -> Iterator[str | int]:
        """Text and token ids in turn, in order."""
        end = 0
        for match in self._pattern.finditer(text):
            if match.start() > end:
                yield text[end : match.start()]
            yield self._numbers[match.group()]
            end = match.end()
        if end < len(text):
            yield text[end:]


class PromptStream:
    """Turns template text and a person's text into segments of ids, as soon as they are certain.

    Call `template`, `text` and `open_message` in the order of the prompt, then `finish`; `take` gives what is
    ready. `follows` says at first what stands before, and in the end what the next text will follow.
    """

    def __init__(self, plain: PlainText, tokens: SpecialTokens, follows: Follows) -> None:
        self._plain, self._tokens, self.follows = plain, tokens, follows
        self._buffer = ""
        self._try_at = CHUNK + 2  # a buffer without a safe place is not searched anew for every character
        self._opens: list[int] = []  # places in the buffer where a message opens
        self._run: list[int] = []
        self._run_opens = False
        self._ready: list[Segment] = []

    def template(self, text: str) -> None:
        for piece in self._tokens.split(text):
            if isinstance(piece, int):
                self._token(piece)
            else:
                self.text(piece)

    def text(self, text: str) -> None:
        """Text in which no special token is meant."""
        for start in range(0, len(text), CHUNK):
            piece = text[start : start + CHUNK]
            if not self._buffer and self.follows is Follows.STRIPPING_TOKEN:
                piece = piece.lstrip()
            self._buffer += piece
            self._encode_certain()

    def open_message(self) -> None:
        self._opens.append(len(self._buffer))

    def finish(self) -> None:
        self._encode_until(len(self._buffer))
        self._end_run()

    def take(self) -> list[Segment]:
        ready, self._ready = self._ready, []
        return ready

    def _token(self, number: int) -> None:
        token = self._tokens[number]
        if token.lstrip:
            self._buffer = self._buffer.rstrip()
            self._opens = [min(place, len(self._buffer)) for place in self._opens]
        self._encode_until(len(self._buffer))
        if self._opens:
            self._opens.clear()
            self._start_message()
        self._run.append(number)
        self.follows = Follows.STRIPPING_TOKEN if token.rstrip else Follows.TOKEN

    def _encode_certain(self) -> None:
        while len(self._buffer) >= self._try_at:
            if cut := _safe_cut(self._buffer):
                self._encode_until(cut)
                self._end_run()
                self._try_at = CHUNK + 2
            else:
                self._try_at = len(self._buffer) + CHUNK // 4

    def _encode_until(self, cut: int) -> None:
        text, self._buffer = self._buffer[:cut], self._buffer[cut:]
        if not text:
            return
        borders = [place for place in self._opens if place < cut]
        ids, *messages = self._plain.parts(text, self.follows, borders)
        self._run += ids
        for message in messages:
            self._start_message()
            self._run += message
        self._opens = [place - cut for place in self._opens if place >= cut]
        self.follows = Follows.TEXT

    def _start_message(self) -> None:
        self._end_run()
        self._run_opens = True

    def _end_run(self) -> None:
        if self._run:
            self._ready.append(Segment(tuple(self._run), self._run_opens))
            self._run, self._run_opens = [], False


def _safe_cut(buffer: str) -> int:
    """Where to cut, or 0 while that is not certain yet. Depends on the buffer's beginning alone."""
    if len(buffer) <= CHUNK + 1:
        return 0
    if match := _LAST_SAFE.match(buffer, 0, CHUNK + 2):
        return match.end() - 1
    if match := _NEXT_SAFE.search(buffer, CHUNK + 1, LIMIT + 2):
        return match.start()
    return LIMIT if len(buffer) > LIMIT + 1 else 0


def trimmed(pieces: Iterable[str], *, left: bool, right: bool) -> Iterator[str]:
    """The pieces without the whitespace that a template strips; what may turn out to be trailing is held back."""
    held: list[str] = []
    for piece in pieces:
        if left:
            piece = piece.lstrip()
            left = not piece
        body = piece.rstrip() if right else piece
        if body:
            yield "".join((*held, body))
            held.clear()
        if len(body) < len(piece):
            held.append(piece[len(body) :])
