"""What a person should know about a tokenizer's chat template before a model is loaded."""

from sinkchat.chat.template import ChatTemplate
from sinkchat.chat.tokenizer import Tokenizer
from sinkchat.errors import NoChatTemplate


def template_report(tokenizer: Tokenizer) -> tuple[str, tuple[str, ...]]:
    """Whether the template can stream, else why not; and its notices."""
    if not tokenizer.chat_template:
        return "none: a base model, which continues text and does not answer", ()
    try:
        return "found, and it streams", ChatTemplate.from_tokenizer(tokenizer, system=None).notices
    except NoChatTemplate as error:
        return error.message, ()
