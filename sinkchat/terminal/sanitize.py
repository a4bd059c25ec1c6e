"""What may reach a screen: everything except the characters that steer it.

Text comes from models, from people, from files, from error messages of servers, and none of it is
trusted. An escape sequence can clear the screen, write to the clipboard or hide a link; a bidirectional
override can make a command read backwards. So each such character is shown instead of obeyed: `\\x1b`.

The decision is made one character at a time and remembers nothing, so that it does not matter how a
text was cut on its way here. Newline and tab pass: they are what text is made of.
"""

import re
from collections.abc import Callable

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 without tab and newline, DEL
    "\x80-\x9f"  # C1: one-character forms of the escape sequences
    "\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides and isolates
    "\ud800-\udfff"  # lone surrogates: no encoding has them
    "\U000e0000-\U000e007f"  # tags: invisible text
    "]"
)


def visible(text: str, *, mark: Callable[[str], str] = str) -> str:
    """The text with every character that could steer a terminal written out, such as `\\x1b` or `\\u202e`.

    `mark` dresses each written-out character, to dim it on a terminal.
    """
    return _UNSAFE.sub(lambda found: mark(_written_out(found.group())), text)


def one_line(text: str) -> str:
    """The text made visible and free of line breaks and runs of blanks, for titles and previews."""
    return " ".join(visible(text).split())


def _written_out(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
