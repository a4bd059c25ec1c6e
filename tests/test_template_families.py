"""What the templates of families do with thinking, dates and BOS; and that the README's table of them is true."""

import re
from datetime import datetime
from pathlib import Path

import pytest
from templates import BEGINS_THINKING, DATED, KEEPS_THINKING, ZOO, Shape, tokenizer_for

from sinkchat.chat.template import ChatTemplate

THOUGHT = "<think>\nseven eights\n</think>\n\nIt is 56."
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def as_told(shape: Shape, *texts: str) -> str:
    """The conversation by deltas: what was said stays as it was said."""
    tokenizer = tokenizer_for(shape)
    template = ChatTemplate.from_tokenizer(tokenizer, system=None)
    ids = list(template.opening)
    for index, text in enumerate(texts):
        if index % 2:
            ids += template.cut_answer(text)
        else:
            ids += [number for part in template.user_turn(text, first=index == 0) for number in part.ids]
    return tokenizer.decode(ids, skip_special_tokens=False)


def in_one_piece(shape: Shape, *texts: str) -> str:
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    return tokenizer_for(shape).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_thinking_that_a_template_keeps_stands_in_the_history_as_it_was_drawn() -> None:
    told = as_told(KEEPS_THINKING, "7 x 8?", THOUGHT, "Sure?")
    assert told == in_one_piece(KEEPS_THINKING, "7 x 8?", THOUGHT, "Sure?")
    assert THOUGHT in told
    assert ChatTemplate.from_tokenizer(tokenizer_for(KEEPS_THINKING), system=None).notices == ()


@pytest.mark.parametrize(
    ("shape", "asked", "left_out"),
    [
        (ZOO["qwen3"], "", "<think>\nseven eights\n</think>\n\n"),
        (BEGINS_THINKING, "<think>\n", "<think>\nseven eights\n</think>"),
    ],
    ids=["qwen3", "deepseek-r1"],
)
def test_thinking_that_a_template_drops_later_stays_until_it_leaves_memory(
    shape: Shape, asked: str, left_out: str
) -> None:
    told = as_told(shape, "7 x 8?", THOUGHT.removeprefix(asked), "Sure?")
    assert told.count(left_out) == 1
    assert told.replace(left_out, "") == in_one_piece(shape, "7 x 8?", THOUGHT, "Sure?")


def test_the_day_is_written_once_and_stays() -> None:
    today = f"{datetime.now():%d %b %Y}"
    template = ChatTemplate.from_tokenizer(tokenizer_for(DATED, "split-bytes"), system="Be brief.")
    assert f"Today Date: {today}\n\nBe brief." in template.opening_text
    assert template.notices == (f'the chat template writes a date into the opening, which stays as it is: "{today}"',)
    assert as_told(DATED, "Hi", "Hello.", "So").count(today) == 1


FAMILIES = {
    "Llama 2": "llama2",
    "Llama 3": "llama3",
    "Mistral": "mistral",
    "Gemma 2": "gemma2",
    "Qwen 3": "qwen3",
    "Phi 3": "phi3",
    "Zephyr": "zephyr",
    "ChatML": "chatml",
    "MPT": "mpt",
    "Falcon": "falcon",
}


def row(name: str) -> tuple[str, ...]:
    """What the table says of a family, found out by its shape."""
    shape = ZOO[FAMILIES[name]]
    tokenizer = tokenizer_for(shape)
    alone, asked = (ChatTemplate.from_tokenizer(tokenizer, system=system) for system in (None, "Be brief."))
    system = "begins the first message" if any("no system role" in said for said in asked.notices) else "has a role"
    if any("of its own" in said for said in alone.notices):
        system += ", and a default"
    thinking = "left out later" if any("drops thinking" in said for said in alone.notices) else "kept"
    writes_bos = shape.bos is not None and in_one_piece(shape, "Hi").startswith(shape.bos)
    bos = "none" if shape.bos is None else "the template" if writes_bos else "the tokenizer"
    ends = [f"`{tokenizer.convert_ids_to_tokens(number)}`" for number in alone.end_of_turn]
    return name, system, thinking, bos, *(ends or ["a line break"])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_of_templates_is_true(name: str) -> None:
    table = re.findall(r"^\| (.*) \|$", README[README.index("| template of ") :].partition("\n\n")[0], re.MULTILINE)
    rows = {cells[0]: cells for cells in (tuple(line.replace("\\|", "!").split(" | ")) for line in table[1:])}
    assert rows.keys() == FAMILIES.keys()
    assert rows[name] == tuple(cell.replace("|", "!") for cell in row(name))
