"""What a person should know about a chat template before the first turn, found out by rendering it.

None of these stops a conversation; each changes what the model reads in a way that nobody asked for.
"""

import re
from collections.abc import Iterator

from jinja2.exceptions import TemplateError

from sinkchat.chat.deltas import MARKS, SYSTEM_MARK, Deltas, Renderer

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(rf"\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b\d{{1,2}} {_MONTH} \d{{4}}\b|\b{_MONTH} \d{{1,2}}, \d{{4}}\b")
_THOUGHT = "Hixethought"


def notices_of(render: Renderer, deltas: Deltas, *, is_exact: bool) -> tuple[str, ...]:
    """Sentences, in the order in which they matter."""
    return tuple(_notices(render, deltas, is_exact=is_exact))


def _notices(render: Renderer, deltas: Deltas, *, is_exact: bool) -> Iterator[str]:
    if deltas.is_folded:
        yield "the chat template has no system role: the system prompt is the beginning of the first message"
    if default := _default_system(render, deltas):
        yield f'the chat template adds a system prompt of its own: "{default}"'
    if date := _DATE.search(f"{deltas.before_system}\n{deltas.after_system}"):
        yield f'the chat template writes a date into the opening, which stays as it is: "{date.group()}"'
    if deltas.unlike.strip():
        yield (
            f'the chat template begins a new answer with "{deltas.unlike.strip()}" and leaves that out of earlier '
            "turns; here it stays until it leaves memory"
        )
    elif not is_exact:
        yield "a token or two between messages are not those of the chat template in one piece"
    if _drops_thinking(render):
        yield "the chat template drops thinking from earlier turns; here it stays until it leaves memory"


def _default_system(render: Renderer, deltas: Deltas) -> str:
    """The system prompt that the template adds where none was given, or ""."""
    if render.system is not None:
        return ""
    try:
        rendered = render.with_system(SYSTEM_MARK)(MARKS[0])
    except TemplateError:
        return ""
    before, found, rest = rendered.partition(SYSTEM_MARK)
    after = rest.partition(MARKS[0])[0]
    prefix = deltas.prefix
    if not found or len(prefix) < len(before) + len(after):
        return ""
    if not (prefix.startswith(before) and prefix.endswith(after)):
        return ""
    return prefix[len(before) : len(prefix) - len(after)].strip()


def _drops_thinking(render: Renderer) -> bool:
    user, answer, following = MARKS[:3]
    try:
        rendered = render(user, f"<think>\n{_THOUGHT}\n</think>\n\n{answer}", following)
    except TemplateError:
        return False
    return answer in rendered and _THOUGHT not in rendered
