"""What a chat template writes around each message, found out by rendering it, once, with marked texts.

A conversation can go on for ever only if a new turn never changes what was written before. So one to four turns are
rendered with words that no template knows, and the text between them must be the same every time:

    prefix  USER  middle  ANSWER  gap  USER  middle  ANSWER  gap  USER  after

Always with the generation prompt: without it, some templates end the text (Phi 3) or write an empty thought (Qwen 3).
A template that fails is refused, with the reason. Only strings here; `template.py` makes ids of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2.exceptions import TemplateError

from sinkchat.chat.encoding import clean
from sinkchat.chat.tokenizer import Tokenizer
from sinkchat.errors import NoChatTemplate

_HINT = "give another template with --chat-template FILE, or take an instruct model"
MARKS = ("Qavoluser", "Povidanswer", "Zibrequser", "Xegolanswer", "Wuxomiuser", "Kumyranswer", "Jykafeuser")
"""a history of four turns in words that no template knows: user, answer, user, ..."""

_USER, _ANSWER, _NEXT = MARKS[:3]
SYSTEM_MARK = "Vorequesystem"
_PADDING = " \n\t"
_AWKWARD = (
    "a \"b\" 'c' \\n {d} {{ e }} {% if f %} [INST] <b>&amp;</b> # g\n\n## h  i\tj",
    '{"role": "user", "content": null}',
    "1 < 2 > 0\n[/INST]\n\n\nend",
)


@dataclass(frozen=True, slots=True)
class Trim:
    """The sides on which the template strips whitespace from a text."""

    left: bool
    right: bool

    def __call__(self, text: str) -> str:
        text = text.lstrip() if self.left else text
        return text.rstrip() if self.right else text


@dataclass(frozen=True, slots=True)
class Deltas:
    """The constant texts of a template under one system prompt.

    The prefix is in three parts, of which the second is the person's system prompt; where there is none, or the
    template rewrites it, all of the prefix is in the third. `lead` stands between the generation prompt and an
    answer; `unlike` is what the generation prompt ends with and the template leaves out of the history.
    """

    before_system: str
    system: str
    after_system: str
    middle: str
    gap: str
    after: str
    lead: str
    unlike: str
    first_trim: Trim
    later_trim: Trim
    answer_trim: Trim
    is_folded: bool

    @property
    def prefix(self) -> str:
        return self.before_system + self.system + self.after_system


class Renderer:
    """The tokenizer's template under one system prompt, which goes into the first message where it has no role."""

    def __init__(self, tokenizer: Tokenizer, system: str | None, *, is_folded: bool = False) -> None:
        self._tokenizer, self.system, self.is_folded = tokenizer, system, is_folded

    def with_system(self, system: str | None) -> "Renderer":
        return Renderer(self._tokenizer, system, is_folded=self.is_folded)

    def __call__(self, *texts: str, generation_prompt: bool = True) -> str:
        """Render user, answer, user, ... in turn."""
        roles = ("user", "assistant")
        messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
        if self.system is not None and not self.is_folded:
            messages.insert(0, {"role": "system", "content": self.system})
        elif self.system:
            messages[0]["content"] = f"{self.system}\n\n{messages[0]['content']}"
        return str(
            self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
        )


def renderer(tokenizer: Tokenizer, system: str | None) -> Renderer:
    """The template as it will be used. Raises NoChatTemplate where it cannot render one message."""
    if not tokenizer.chat_template:
        raise NoChatTemplate("the model has no chat template: it is a base model", hint=_HINT)
    system = None if system is None else clean(system)
    try:
        Renderer(tokenizer, None)(_USER)
    except (TemplateError, TypeError, ValueError) as error:
        raise NoChatTemplate(f"its chat template cannot render a message: {error}", hint=_HINT) from error
    if system is None:
        return Renderer(tokenizer, None)
    try:
        has_role = SYSTEM_MARK in Renderer(tokenizer, SYSTEM_MARK)(_USER)
    except TemplateError:  # Gemma 2, Mistral 0.1
        has_role = False
    return Renderer(tokenizer, system, is_folded=not has_role)


def derive(render: Renderer, system: str | None) -> Deltas:
    """The constant texts. Raises NoChatTemplate with the reason where they are not constant."""
    system = None if system is None else clean(system)
    try:
        return _derive(render, system)
    except (TemplateError, TypeError, ValueError) as error:
        raise NoChatTemplate(f"its chat template cannot render a history: {error}", hint=_HINT) from error


def _derive(render: Renderer, system: str | None) -> Deltas:
    if system is not None:
        _check_system_stays(render.with_system(SYSTEM_MARK))
    prefix, middle, gap, after = _between(render(_USER, _ANSWER, _NEXT), (_USER, _ANSWER, _NEXT))
    for count in (1, 2, 3, 4):
        texts = MARKS[: 2 * count - 1]
        _check_constant(_between(render(*texts), texts), [prefix, *[middle, gap] * (count - 1), after])
    if not (middle.startswith(after) or after.startswith(middle)):
        raise _refusal("begins an answer in the history otherwise than it asks for one")
    before_system, kept_system, after_system = _locate_system(render, system, prefix)
    deltas = Deltas(
        before_system=before_system,
        system=kept_system,
        after_system=after_system,
        middle=middle,
        gap=gap,
        after=after,
        lead=middle.removeprefix(after) if middle.startswith(after) else "",
        unlike=after.removeprefix(middle) if not middle.startswith(after) else "",
        first_trim=_trim(render(_padded(_USER)), prefix, _USER, after),
        later_trim=_trim(
            render(_USER, _ANSWER, _padded(_NEXT)), prefix + _USER + middle + _ANSWER + gap, _NEXT, after
        ),
        answer_trim=_trim(
            render(_USER, _padded(_ANSWER), _NEXT), prefix + _USER + middle, _ANSWER, gap + _NEXT + after
        ),
        is_folded=render.is_folded and bool(system),
    )
    _check_contents(render, deltas)
    return deltas


def _refusal(reason: str, *, hint: str = _HINT) -> NoChatTemplate:
    return NoChatTemplate(f"its chat template {reason}, so a conversation cannot grow at its end", hint=hint)


def _between(rendered: str, texts: Sequence[str]) -> list[str]:
    """The parts of a render before, between and after texts that must occur once each, in order."""
    parts = re.split("|".join(map(re.escape, texts)), rendered)
    found = re.findall("|".join(map(re.escape, texts)), rendered)
    if found != list(texts):
        missing = [text for text in texts if text not in found]
        raise _refusal("leaves a message out" if missing else "repeats or reorders messages")
    return parts


def _check_system_stays(render: Renderer) -> None:
    texts = (_USER, _ANSWER, _NEXT)
    where = [part.count(SYSTEM_MARK) for part in _between(render(*texts), texts)]
    if where[0] == 0 and any(where):
        raise _refusal(
            "moves the system prompt into the last user turn", hint="leave --system out, or --chat-template FILE"
        )
    if where != [1, 0, 0, 0]:
        raise _refusal("does not write the system prompt once, at the start")


def _check_constant(parts: list[str], expected: list[str]) -> None:
    if parts[0] != expected[0]:
        raise _refusal("changes its beginning with the length of the conversation")
    if parts[-1] != expected[-1]:
        raise _refusal("changes its generation prompt with the length of the conversation")
    if parts != expected:
        raise _refusal("changes the text between messages with the length of the conversation")


def _locate_system(render: Renderer, system: str | None, prefix: str) -> tuple[str, str, str]:
    """The prefix in three parts. Where the prompt steers the template (`/no_think`), it is all template."""
    if not system or not system.strip():
        return "", "", prefix
    marked = _between(render.with_system(SYSTEM_MARK)(_USER), [_USER])[0]
    before, _, after = marked.partition(SYSTEM_MARK)
    for kept in (system, system.strip(), system.lstrip(), system.rstrip()):
        if before + kept + after == prefix:
            return before, kept, after
    return "", "", prefix


def _padded(text: str) -> str:
    return _PADDING + text + _PADDING


def _trim(rendered: str, before: str, text: str, after: str) -> Trim:
    for trim in (Trim(False, False), Trim(True, True), Trim(True, False), Trim(False, True)):
        if rendered == before + trim(_padded(text)) + after:
            return trim
    raise _refusal("changes what is written in a message")


def _check_contents(render: Renderer, deltas: Deltas) -> None:
    """Awkward texts must come out as they went in, in every place."""
    first, second, third = (_padded(text) for text in _AWKWARD)
    turn = deltas.middle + _ANSWER + deltas.gap
    expected = deltas.prefix + deltas.first_trim(first) + turn + deltas.later_trim(second) + turn
    expected += deltas.later_trim(third) + deltas.after
    if render(first, _ANSWER, second, _ANSWER, third) != expected:
        raise _refusal("changes what is written in a message")
