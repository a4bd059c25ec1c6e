"""What cannot be a stream of deltas is refused with the reason; what a template does unasked is told."""

import pytest
from templates import BEGINS_THINKING, MOVES_SYSTEM, ZOO, Shape, chatml, tokenizer_for

from sinkchat.chat.template import ChatTemplate
from sinkchat.errors import NoChatTemplate


def test_a_template_that_cuts_tokens_otherwise_is_told() -> None:
    template = ChatTemplate.from_tokenizer(tokenizer_for(ZOO["llama3"], "bytes"), system=None)
    natural = ChatTemplate.from_tokenizer(tokenizer_for(ZOO["llama3"], "split-bytes"), system=None)
    sentence = "a token or two between messages are not those of the chat template in one piece"
    assert sentence in template.notices
    assert sentence not in natural.notices


def refusal(shape: Shape, system: str | None = None) -> NoChatTemplate:
    with pytest.raises(NoChatTemplate) as caught:
        ChatTemplate.from_tokenizer(tokenizer_for(shape), system=system)
    return caught.value


def test_a_template_that_moves_the_system_prompt_is_refused() -> None:
    error = refusal(MOVES_SYSTEM, "Be brief.")
    assert error.message == (
        "its chat template moves the system prompt into the last user turn, so a conversation cannot grow at its end"
    )
    assert error.hint == "leave --system out, or --chat-template FILE"


def test_a_model_without_template_is_called_a_base_model() -> None:
    tokenizer = tokenizer_for(chatml())
    tokenizer.chat_template = None
    with pytest.raises(NoChatTemplate) as caught:
        ChatTemplate.from_tokenizer(tokenizer, system=None)
    assert caught.value.message == "the model has no chat template: it is a base model"
    assert "--chat-template FILE" in caught.value.hint


LOOP = "{% for m in messages %}"
REFUSED = {
    "leaves a message out": LOOP + "{% if not loop.first %}{{ m.content }}{% endif %}{% endfor %}",
    "repeats or reorders messages": LOOP + "{{ m.content + ' or ' + m.content }}{% endfor %}",
    "changes its beginning with the length of the conversation": (
        "{{ messages | length }}" + LOOP + "{{ m.role + m.content }}{% endfor %}"
    ),
    "changes its generation prompt with the length of the conversation": (
        LOOP + "{{ m.role + m.content }}{% endfor %}{{ messages | length }}"
    ),
    "changes the text between messages with the length of the conversation": (
        LOOP + "{{ m.role + m.content + ('!' if loop.revindex > 2 else '') }}{% endfor %}"
    ),
    "changes what is written in a message": (LOOP + "{{ m.role + ': ' + (m.content | e) }}{% endfor %}"),
    "begins an answer in the history otherwise than it asks for one": (
        LOOP + "{{ m.role + ': ' + m.content }}{% endfor %}{% if add_generation_prompt %}bot{% endif %}"
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_template_that_is_not_incremental_is_refused_with_the_reason(reason: str) -> None:
    error = refusal(chatml(REFUSED[reason]))
    assert error.message == f"its chat template {reason}, so a conversation cannot grow at its end"


def test_a_template_that_cannot_render_is_refused_with_its_own_words() -> None:
    error = refusal(chatml("{{ raise_exception('only tools may speak') }}"))
    assert error.message == "its chat template cannot render a message: only tools may speak"


@pytest.mark.parametrize(
    ("shape", "system", "notices"),
    [
        (ZOO["smollm2"], None, ('the chat template adds a system prompt of its own: "You are a small model"',)),
        (ZOO["smollm2"], "", ()),
        (ZOO["smollm2"], "Be brief.", ()),
        (
            ZOO["gemma2"],
            "Be brief.",
            ("the chat template has no system role: the system prompt is the beginning of the first message",),
        ),
        (ZOO["gemma2"], None, ()),
        (
            ZOO["qwen3"],
            None,
            ("the chat template drops thinking from earlier turns; here it stays until it leaves memory",),
        ),
        (
            BEGINS_THINKING,
            None,
            (
                'the chat template begins a new answer with "<think>" and leaves that out of earlier turns; '
                "here it stays until it leaves memory",
                "the chat template drops thinking from earlier turns; here it stays until it leaves memory",
            ),
        ),
    ],
)
def test_what_a_template_does_unasked_is_told(shape: Shape, system: str | None, notices: tuple[str, ...]) -> None:
    assert ChatTemplate.from_tokenizer(tokenizer_for(shape), system=system).notices == notices


def test_a_date_in_the_template_is_told_and_one_in_the_persons_prompt_is_not() -> None:
    tokenizer = tokenizer_for(ZOO["llama3"], "split-bytes")
    template = ChatTemplate.from_tokenizer(tokenizer, system=None)
    assert template.notices == (
        'the chat template writes a date into the opening, which stays as it is: "26 Jul 2024"',
    )
    dated = ChatTemplate.from_tokenizer(tokenizer_for(ZOO["zephyr"]), system="It is 2024-07-26.")
    assert dated.notices == ()
