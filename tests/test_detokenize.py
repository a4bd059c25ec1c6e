"""Text comes out whole: no half characters, no lost ones, no stop texts."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates import BOOK, TOKENIZERS, ZOO, tokenizer_for
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from sinkchat.chat.detokenize import Detokenizer, StopText

TOKENIZER = {kind: tokenizer_for(ZOO["qwen3"], kind) for kind in TOKENIZERS}
HARD = [
    "🇩🇪🇫🇷",
    "👨‍👩‍👧‍👦",
    "สวัสดีครับ",
    "漢字かな交じり文",
    "\ufffd",
    "é e\u0301",
    "🙂",
    " ",
    "  ",
    "\n",
    "a",
    "the",
    ". ",
    "\t",
]
TEXTS = st.lists(st.one_of(st.sampled_from(HARD), st.text(max_size=3)), max_size=12).map("".join)


def encode(kind: str, text: str) -> list[int]:
    return TOKENIZER[kind].encode(text, add_special_tokens=False)


def spell(kind: str, data: bytes) -> list[int]:
    """One token a byte."""
    tokenizer = TOKENIZER[kind]
    if kind.endswith("pieces"):
        return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in data]
    letters = bytes_to_unicode()
    return [tokenizer.convert_tokens_to_ids(letters[byte]) for byte in data]


def decode(kind: str, ids: list[int]) -> str:
    detokenizer = Detokenizer(TOKENIZER[kind])
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_the_ids_of_a_text_come_back_as_the_text(kind: str, text: str) -> None:
    ids = encode(kind, text)
    assert decode(kind, ids) == TOKENIZER[kind].decode(ids)
    if kind.endswith("bytes"):  # SentencePiece itself loses a `▁`, and a space that is all of a text
        assert decode(kind, ids) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cut=st.integers(0, 200))
def test_an_answer_that_is_cut_anywhere_is_a_beginning_of_its_text(kind: str, text: str, cut: int) -> None:
    ids = encode(kind, text)
    assert TOKENIZER[kind].decode(ids).startswith(decode(kind, ids[:cut]))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_character_comes_with_its_last_byte(kind: str) -> None:
    detokenizer = Detokenizer(TOKENIZER[kind])
    assert [detokenizer.push(token) for token in spell(kind, "a🙂中".encode())] == [
        "a",
        "",
        "",
        "",
        "🙂",
        "",
        "",
        "中",
    ]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_half_a_character_at_the_end_is_dropped_and_a_replacement_character_is_kept(kind: str) -> None:
    assert decode(kind, spell(kind, "a🙂".encode()[:-1])) == "a"
    assert decode(kind, spell(kind, "a\ufffd".encode())) == "a\ufffd"
    assert decode(kind, spell(kind, "a\ufffd".encode()[:-1])) == "a"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_invalid_bytes_are_shown_at_once_and_hold_nothing_back(kind: str) -> None:
    detokenizer = Detokenizer(TOKENIZER[kind])
    shown = [detokenizer.push(token) for token in spell(kind, b"\x80" * 50)]
    assert shown == ["\ufffd"] * 50
    assert decode(kind, spell(kind, b"\xe4\xe4a")) == "\ufffd\ufffda"


@pytest.mark.parametrize("kind", ["pieces", "first-pieces"])
def test_the_first_word_of_an_answer_has_no_space_and_later_words_have_theirs(kind: str) -> None:
    tokenizer = TOKENIZER[kind]
    words = tokenizer.convert_tokens_to_ids(["▁the", "▁if", "▁", "▁the"])
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(word) for word in words] == ["the", " if", " ", " the"]


def test_special_tokens_are_skipped_and_added_ones_are_not() -> None:
    tokenizer = TOKENIZER["bytes"]
    ids = tokenizer.encode("<think>so</think> it is<|im_end|>\n<|im_start|>")
    assert decode("bytes", ids) == "<think>so</think> it is\n"
    shown = Detokenizer(tokenizer, skip_special_tokens=False)
    assert "".join(map(shown.push, ids)) == "<think>so</think> it is<|im_end|>\n<|im_start|>"


def test_an_id_without_a_piece_says_nothing() -> None:
    assert decode("bytes", [*encode("bytes", "a"), 1_000_000, *encode("bytes", "b")]) == "ab"


def test_a_long_answer_takes_no_longer_for_each_token() -> None:
    ids = encode("bytes", BOOK[:200_000])
    detokenizer = Detokenizer(TOKENIZER["bytes"])

    def seconds(some: list[int]) -> float:
        started = time.process_time()
        for token in some:
            detokenizer.push(token)
        return time.process_time() - started

    half = len(ids) // 2
    first, second = seconds(ids[:half]), seconds(ids[half:])
    assert second < 3 * first


def test_a_tokenizer_that_spells_in_no_known_way_is_decoded_in_pairs() -> None:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in (1, 2, 3, 1, 2)] == ["play", "ing", " now", " play", "ing"]


def pushed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stop_text = StopText(stops)
    return "".join(map(stop_text.push, pieces)) + stop_text.flush(), stop_text.found


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["User:"], ["a Us", "er: b"], ("a ", True)),
        (["User:"], ["a Us", "ual"], ("a Usual", False)),
        (["User:"], ["a Us"], ("a Us", False)),
        (["aab"], ["a", "a", "a", "b"], ("a", True)),
        (["abcabd"], ["abcabcabd!"], ("abc", True)),
        (["abcd", "bc"], ["abcd"], ("a", True)),
        (["bc", "abc"], ["abc"], ("", True)),
        (["", "x"], ["yx"], ("y", True)),
        ([], ["all"], ("all", False)),
    ],
)
def test_text_ends_where_the_first_stop_text_is_complete(
    stops: list[str], pieces: list[str], expected: tuple[str, bool]
) -> None:
    assert pushed(stops, pieces) == expected


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(st.text("ab", max_size=4), max_size=3),
    text=st.text("abc", max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
def test_stop_texts_are_found_however_the_text_is_cut(stops: list[str], text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    assert pushed(stops, pieces) == pushed(stops, list(text))
    shown, found = pushed(stops, pieces)
    assert text.startswith(shown)
    assert found or shown == text
    assert not any(stop and stop in shown for stop in stops)


def test_text_that_cannot_become_a_stop_text_is_passed_on_at_once() -> None:
    stop_text = StopText(["\nUser:"])
    assert [stop_text.push(piece) for piece in ("Hi", "\n", "Us", "ual", "\nUser:", "x")] == [
        "Hi",
        "",
        "",
        "\nUsual",
        "",
        "",
    ]
