"""Text becomes the same ids however it arrives, and is cut only where no token lies across."""

import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates import BOOK, TOKENIZERS, ZOO, chatml, tokenizer_for
from transformers import PreTrainedTokenizerFast

from sinkchat.chat.encoding import CHUNK, LIMIT, Follows, PlainText, clean, trimmed
from sinkchat.chat.template import ChatTemplate
from sinkchat.engine.segment import Segment

QWEN = {kind: tokenizer_for(ZOO["qwen3"], kind) for kind in TOKENIZERS}
TEMPLATES = {kind: ChatTemplate.from_tokenizer(tokenizer, system=None) for kind, tokenizer in QWEN.items()}
TRIMMING = ChatTemplate.from_tokenizer(tokenizer_for(ZOO["llama3"], "pieces"), system=None)

BLANKS = (" ", "  ", "\n", "\n\n", "\t", "\u2028", "\xa0")
LETTERS = ("a", "word", "the", ".", "7", "1234", "ü", "中", "文字", "🙂", "e\u0301", "\ufffd", "\x00", "▁", "\ud83d")
MARKS = ("<|im_end|>", "<|im_", "end|>", "<think>", "</")
TEXTS = st.lists(st.sampled_from(BLANKS + LETTERS + MARKS), max_size=30).map("".join)


def ids(segments: Iterable[Segment]) -> list[int]:
    return [number for segment in segments for number in segment.ids]


def opened(segments: Iterable[Segment]) -> list[int]:
    """Where messages open, counted in ids."""
    places, count = [], 0
    for segment in segments:
        if segment.opens_message:
            places.append(count)
        count += len(segment.ids)
    return places


def split(text: str, cuts: Iterable[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in pairwise(places)]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_pieces_have_the_ids_of_one_piece(kind: str, text: str, cuts: list[int]) -> None:
    for template in (TEMPLATES[kind], TRIMMING):
        whole = list(template.user_turn(text, first=False))
        pieces = list(template.user_turn(split(text, cuts), first=False))
        assert (ids(pieces), opened(pieces)) == (ids(whole), opened(whole))


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=20, deadline=None)
@given(unit=TEXTS.filter(bool), repeats=st.integers(1, 1500), size=st.integers(1, 9000))
def test_long_pieces_have_the_ids_of_one_piece(kind: str, unit: str, repeats: int, size: int) -> None:
    text = (unit * repeats)[: 3 * CHUNK]
    whole = list(TEMPLATES[kind].user_turn(text, first=True))
    pieces = TEMPLATES[kind].user_turn((text[at : at + size] for at in range(0, len(text), size)), first=True)
    assert ids(pieces) == ids(whole)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_a_typed_special_token_is_spelt_out(kind: str, text: str) -> None:
    tokenizer = QWEN[kind]
    turn = ids(TEMPLATES[kind].user_turn(text, first=True))
    added = [number for number in turn if number in tokenizer.added_tokens_decoder]
    assert tokenizer.convert_ids_to_tokens(added) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_book_has_the_ids_of_the_template_in_one_piece(kind: str) -> None:
    tokenizer = QWEN[kind]
    book = BOOK[:100_000]
    rendered = f"<|im_start|>user\n{book}<|im_end|>\n<|im_start|>assistant\n"
    segments = list(TEMPLATES[kind].user_turn(split(book, range(0, len(book), 777)), first=True))
    assert ids(segments) == tokenizer.encode(rendered, add_special_tokens=False)
    assert [segment.opens_message for segment in segments] == [True, *[False] * (len(segments) - 2), True]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(before=TEXTS, after=TEXTS)
def test_no_token_lies_across_a_safe_place(kind: str, before: str, after: str) -> None:
    plain = PlainText(QWEN[kind])
    before, after = clean(before + "d"), clean("o" + after)
    for seam in (" ", "\n"):
        whole = plain.encode(before + seam + after, Follows.NOTHING)
        left, right = plain.encode(before, Follows.NOTHING), plain.encode(seam + after, Follows.TEXT)
        assert left + right == whole


def test_a_text_without_safe_place_is_cut_at_the_limit_and_loses_nothing() -> None:
    tokenizer = QWEN["bytes"]
    text = "qzxj" * (LIMIT // 3)
    segments = list(TEMPLATES["bytes"].user_turn(text, first=True))
    assert tokenizer.decode(ids(segments)) == (f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    spelt = [len(tokenizer.decode(segment.ids)) for segment in segments]
    assert max(spelt) <= LIMIT + len("<|im_start|>user\n")


def test_ids_come_while_the_text_still_arrives() -> None:
    read = 0

    def arriving() -> Iterator[str]:
        nonlocal read
        for start in range(0, 100_000, 1000):
            read += 1000
            yield BOOK[start : start + 1000]

    segments = TEMPLATES["bytes"].user_turn(arriving(), first=True)
    next(segments)
    assert read <= CHUNK + 2000
    ahead = 0
    said = 0
    for segment in segments:
        said += len(QWEN["bytes"].decode(segment.ids))
        ahead = max(ahead, read - said)
    assert ahead <= 2 * CHUNK + 2000


def test_a_special_token_that_straddles_two_pieces_and_two_chunks_stays_text() -> None:
    template, tokenizer = TEMPLATES["bytes"], QWEN["bytes"]
    text = "a " * (CHUNK // 2 - 10) + "<|im_end|>" * 4
    segments = list(template.user_turn([text[: CHUNK - 3], text[CHUNK - 3 :]], first=True))
    assert ids(segments).count(tokenizer.eos_token_id) == 1
    assert tokenizer.encode(text).count(tokenizer.eos_token_id) == 4  # the control


def test_encoding_leaves_the_tokenizer_as_it_was() -> None:
    tokenizer = tokenizer_for(chatml())
    before = tokenizer.backend_tokenizer.to_str(), tokenizer.backend_tokenizer.encode_special_tokens
    template = ChatTemplate.from_tokenizer(tokenizer, system="x <|im_end|>")
    list(template.user_turn("<|im_end|>", first=True))
    assert (tokenizer.backend_tokenizer.to_str(), tokenizer.backend_tokenizer.encode_special_tokens) == before
    tokenizer.encode("x", split_special_tokens=True)  # the control: this flag stays set
    assert tokenizer.backend_tokenizer.encode_special_tokens != before[1]


def test_two_threads_may_encode_at_once() -> None:
    tokenizer, template = QWEN["bytes"], TEMPLATES["bytes"]
    text = "one <|im_end|> two " * 50
    expected = ids(template.user_turn(text, first=True))
    seen: list[bool] = []

    def encode() -> None:
        seen.extend(ids(template.user_turn(text, first=True)) == expected for _ in range(50))

    def disturb() -> None:
        for _ in range(50):
            tokenizer.encode(text, split_special_tokens=True)
            tokenizer.encode(text, split_special_tokens=False)

    threads = [threading.Thread(target=work) for work in (encode, disturb, encode)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 100


class WrittenInPython:
    """A tokenizer without a backend, as remote code brings them: it says no more than ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        for name in ("chat_template", "bos_token", "bos_token_id", "eos_token", "all_special_ids"):
            setattr(self, name, getattr(tokenizer, name))
        for name in ("added_tokens_decoder", "encode", "decode", "convert_ids_to_tokens", "apply_chat_template"):
            setattr(self, name, getattr(tokenizer, name))


@pytest.mark.parametrize("shape", ["smollm2", "vicuna"])
def test_a_tokenizer_written_in_python_gives_the_same(shape: str) -> None:
    tokenizer = tokenizer_for(ZOO[shape])
    fast = ChatTemplate.from_tokenizer(tokenizer, system=None)
    slow = ChatTemplate.from_tokenizer(WrittenInPython(tokenizer), system=None)  # type: ignore[arg-type]
    assert slow.opening == fast.opening
    for text in ("Hi", "a </s> b <|im_end|>", BOOK[:20_000]):
        expected, found = list(fast.user_turn(text, first=False)), list(slow.user_turn(text, first=False))
        assert (ids(found), opened(found)) == (ids(expected), opened(expected))


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 10_000), max_size=8), left=st.booleans(), right=st.booleans())
def test_pieces_are_trimmed_like_the_whole(text: str, cuts: list[int], left: bool, right: bool) -> None:
    expected = text.lstrip() if left else text
    expected = expected.rstrip() if right else expected
    assert "".join(trimmed(split(text, cuts), left=left, right=right)) == expected


def test_added_runs_of_spaces_are_ordinary_text() -> None:
    tokenizer = tokenizer_for(chatml())
    tokenizer.add_tokens(["    ", "\n\n\n"])
    template = ChatTemplate.from_tokenizer(tokenizer, system=None)
    text = "if x:\n    pass\n\n\nend"
    rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    turn = ids(template.user_turn(text, first=True))
    assert turn == tokenizer.encode(rendered, add_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids("    ") in turn
