"""A chat template as token ids that are only ever appended.

A conversation is the opening once, then for each turn: the closing of the last answer, the message, the generation
prompt. The answer is the ids that were drawn. Put together they are what the template makes of the whole history,
so nothing is ever rendered twice. `deltas.py` finds the constant texts; here they are cut where a message may later
be forgotten, and become ids. What a person should know about the template is said in `notices`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sinkchat.chat.deltas import MARKS, SYSTEM_MARK, Deltas, Renderer, derive, renderer
from sinkchat.chat.encoding import Follows, PlainText, PromptStream, SpecialTokens, clean, trimmed
from sinkchat.chat.template_notices import notices_of
from sinkchat.chat.tokenizer import Tokenizer
from sinkchat.engine.segment import Segment

_THINK = "<think>"


@dataclass(frozen=True, slots=True)
class TurnTexts:
    """The template's texts around one user message, in their order.

    `closing` ends the answer before it, `header` stands before the text, `user_closing` ends the message, then the
    generation prompt asks for the answer; `lead` comes before an answer that is given, not drawn.
    """

    closing: str
    header: str
    user_closing: str
    generation_prompt: str
    lead: str


class ChatTemplate:
    """The template of a tokenizer, under one system prompt."""

    opening: tuple[int, ...]
    opening_text: str
    notices: tuple[str, ...]
    end_of_turn: frozenset[int]
    closing: tuple[int, ...]
    """what ends an answer"""
    first_is_like_later: bool
    """whether the first message is written like the others"""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, system: str | None) -> "ChatTemplate":
        """Raises NoChatTemplate where there is none, or where its text changes with the history.

        `system=None` leaves the system prompt to the template, an empty one leaves it out where the template can.
        """
        render = renderer(tokenizer, system)
        return cls(tokenizer, render, derive(render, system))

    def __init__(self, tokenizer: Tokenizer, render: Renderer, deltas: Deltas) -> None:
        self._deltas = deltas
        self._plain, self._tokens = PlainText(tokenizer), SpecialTokens(tokenizer)
        self._turn = turn_texts(tokenizer, render, deltas, self._tokens)
        asking = self._stream(Follows.TEXT)
        self._ask(asking)
        asking.finish()
        self._after_asking = asking.follows
        tail = self._opening_tail()
        self._first_header = deltas.after_system[len(tail) :]
        self.first_is_like_later = self._first_header == self._turn.header
        closing = self._stream(Follows.TEXT)
        closing.template(self._turn.closing)
        closing.finish()
        self.closing = tuple(_ids(closing.take()))
        bos, bos_ids = _missing_bos(tokenizer, deltas.prefix)
        ids, self._after_opening = self._opening(deltas.system, tail)
        self.opening = (*bos_ids, *ids)
        self.opening_text = bos + deltas.before_system + deltas.system + tail
        self.end_of_turn = frozenset(_first_token(deltas.gap, self._tokens))
        self.notices = notices_of(render, deltas, is_exact=self._is_exact(tokenizer, render, tail))

    def user_turn(self, text: str | Iterable[str], *, first: bool, closed: bool = False) -> Iterator[Segment]:
        """The ids of a user message and what surrounds it, as soon as they are certain.

        Not `first`: the closing of the answer before it comes ahead, unless that is `closed` already. The message
        and the generation prompt each begin with a segment that opens a message. The text may arrive in pieces;
        the ids are the same.
        """
        pieces = (clean(piece) for piece in ((text,) if isinstance(text, str) else text))
        trim = self._deltas.first_trim if first else self._deltas.later_trim
        stream = self._stream(self._after_opening if first else Follows.TEXT)
        if not (first or closed):
            stream.template(self._turn.closing)
        stream.open_message()
        stream.template(self._first_header if first else self._turn.header)
        for piece in trimmed(pieces, left=trim.left, right=trim.right):
            stream.text(piece)
            yield from stream.take()
        self._ask(stream)
        stream.finish()
        yield from stream.take()

    def answer(self, text: str) -> tuple[int, ...]:
        """The ids of an answer that is given, not drawn; they follow the generation prompt."""
        stream = self._stream(self._after_asking)
        stream.template(self._turn.lead)
        stream.text(self._deltas.answer_trim(clean(text)))
        stream.finish()
        return tuple(_ids(stream.take()))

    def cut_answer(self, text: str) -> tuple[int, ...]:
        """The ids of an answer that was being drawn when it was cut; they follow the generation prompt."""
        stream = self._stream(self._after_asking)
        stream.text(clean(text))
        stream.finish()
        return tuple(_ids(stream.take()))

    def exchange(self, user: str, answer: str, *, first: bool) -> list[Segment]:
        """A past exchange from its message to the closing of its answer."""
        return [*self.user_turn(user, first=first, closed=True), Segment(self.answer(answer)), Segment(self.closing)]

    def _ask(self, stream: PromptStream) -> None:
        """What comes after the person's text."""
        stream.template(self._turn.user_closing)
        if self._turn.generation_prompt:
            stream.open_message()
            stream.template(self._turn.generation_prompt)

    def _opening(self, system: str, tail: str, *, text: str = "") -> tuple[list[int], Follows]:
        """The ids of the opening, whose last part is `tail`, and of a text after it; what the next one follows."""
        stream = self._stream(Follows.NOTHING)
        stream.template(self._deltas.before_system)
        stream.text(system)
        stream.template(tail)
        stream.text(text)
        stream.finish()
        return _ids(stream.take()), stream.follows

    def _opening_tail(self) -> str:
        """The end of the opening, cut from the first message's header where no token of the two lies across."""
        prefix, mark = self._deltas.after_system, MARKS[0]
        system = self._system_mark
        whole, _ = self._opening(system, prefix, text=mark)
        longest = prefix.removesuffix(self._turn.header)
        for tail in (longest.rstrip(" "), longest, longest.rstrip()):
            ids, follows = self._opening(system, tail)
            header = self._stream(follows)
            header.template(prefix[len(tail) :])
            header.text(mark)
            header.finish()
            if ids + _ids(header.take()) == whole:
                return tail
        return longest

    def _is_exact(self, tokenizer: Tokenizer, render: Renderer, tail: str) -> bool:
        """Whether a history of marks gets the ids that the whole of it gets in one piece."""
        system = self._system_mark
        history = MARKS[:5]
        rendered = (render.with_system(system) if system else render)(*history)
        ids, _ = self._opening(system, tail)
        for index, text in enumerate(history):
            is_answer = index % 2
            ids += self.answer(text) if is_answer else _ids(self.user_turn(text, first=index == 0))
        return ids == tokenizer.encode(rendered, add_special_tokens=False, split_special_tokens=False)

    @property
    def _system_mark(self) -> str:
        """A system prompt to compare with: the person's own may spell special tokens, which here stay text."""
        return SYSTEM_MARK if self._deltas.system else ""

    def _stream(self, follows: Follows) -> PromptStream:
        return PromptStream(self._plain, self._tokens, follows)


def _ids(segments: Iterable[Segment]) -> list[int]:
    return [number for segment in segments for number in segment.ids]


def turn_texts(tokenizer: Tokenizer, render: Renderer, deltas: Deltas, tokens: SpecialTokens) -> TurnTexts:
    """Cut the constant texts where one message ends and the next begins."""
    closing = _closing(tokenizer, deltas, tokens)
    user_closing, generation_prompt = _asking(render, deltas, closing)
    is_thinking = deltas.unlike.strip() == _THINK
    return TurnTexts(
        closing=closing,
        header=deltas.gap.removeprefix(closing),
        user_closing=user_closing,
        generation_prompt=generation_prompt,
        lead="\n</think>\n\n" if is_thinking else deltas.lead,
    )


def _closing(tokenizer: Tokenizer, deltas: Deltas, tokens: SpecialTokens) -> str:
    """The beginning of the gap that ends the answer: whitespace, a special token, whitespace.

    A token that begins the next message instead (GLM's `<|user|>`) is left to it.
    """
    space, first, rest = _leading_token(deltas.gap, tokens)
    begins_message = (
        first != tokenizer.eos_token
        and deltas.prefix.endswith(first + rest)
        and not any(isinstance(piece, int) for piece in tokens.split(rest))
    )
    if not first or begins_message:
        return space
    return space + first + rest[: len(rest) - len(rest.lstrip())]


def _leading_token(text: str, tokens: SpecialTokens) -> tuple[str, str, str]:
    """Whitespace, the special token after it or "", and the rest."""
    body = text.lstrip()
    space = text[: len(text) - len(body)]
    token = next((tokens[number].content for number in _first_token(text, tokens)), "")
    return space, token, body.removeprefix(token)


def _first_token(text: str, tokens: SpecialTokens) -> Iterator[int]:
    """The special token that a text begins with, if any, after whitespace."""
    piece = next(tokens.split(text.lstrip()), "")
    if isinstance(piece, int):
        yield piece


def _asking(render: Renderer, deltas: Deltas, closing: str) -> tuple[str, str]:
    """What comes after the user's text, cut where the generation prompt begins."""
    asked, unasked = render(MARKS[0]), render(MARKS[0], generation_prompt=False)
    if asked.startswith(unasked):
        prompt = asked.removeprefix(unasked)
    elif closing and deltas.after.startswith(closing):  # Phi 3 ends the text where no answer is asked for
        prompt = deltas.after.removeprefix(closing)
    else:
        prompt = ""
    return deltas.after.removesuffix(prompt), prompt


def _missing_bos(tokenizer: Tokenizer, prefix: str) -> tuple[str, tuple[int, ...]]:
    """The BOS that the tokenizer puts before a text and the template does not write, as text and ids."""
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    if bos is None or number is None or prefix.startswith(bos):
        return "", ()
    if tokenizer.encode("x", add_special_tokens=True, split_special_tokens=False)[:1] != [number]:
        return "", ()
    return bos, (number,)
