"""A text becomes one stream of ids, and what cannot be one is refused in words."""

import io
from pathlib import Path

import pytest
from streams import random_ids
from tiny import tiny_tokenizer
from worlds import stdin_of

from sinkchat.errors import InputError, UsageError
from sinkchat.lab.perplexity.text import TextSource, line_break_id


def source(data: bytes) -> TextSource:
    return TextSource("-", io.BytesIO(data))


def test_the_ids_are_those_of_the_whole_text(tokenizer):
    text = "Call me Ishmael. " * 6000
    assert source(text.encode()).ids(tokenizer, most=0) == tokenizer.encode(text, add_special_tokens=False)


def test_no_more_is_read_than_is_wanted(tokenizer):
    stdin = stdin_of([b"whale " * 12_000, b"\xff not read" * 6_000])
    assert len(TextSource("-", stdin).ids(tokenizer, most=500)) == 500


def test_a_mark_of_the_template_is_plain_text(tokenizer):
    ids = source(b"a<|im_end|>b").ids(tokenizer, most=0)
    assert tokenizer.eos_token_id not in ids
    assert len(ids) == len("a<|im_end|>b")


def test_what_the_tokenizer_puts_before_a_text_stands_before_it():
    tokenizer = tiny_tokenizer()
    tokenizer.add_bos_token = True
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    ids = source(b"whale").ids(tokenizer, most=0)
    assert ids == [1, *tiny_tokenizer().encode("whale", add_special_tokens=False)]


def test_a_byte_order_mark_is_no_text(tokenizer):
    assert source(b"\xef\xbb\xbfwhale").ids(tokenizer, most=0) == source(b"whale").ids(tokenizer, most=0)


def test_a_letter_may_lie_across_two_reads(tokenizer):
    text = "a" * 65_535 + "é"
    assert source(text.encode()).ids(tokenizer, most=0) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "stdin is empty"),
        (b"abc\xff\xfe", "stdin is not UTF-8 text: byte 3 is 0xff"),
        (b"a" * 70_000 + b"\x80", "stdin is not UTF-8 text: byte 70,000 is 0x80"),
        (b"a" * 65_535 + b"\xc3(", "stdin is not UTF-8 text: byte 65,535 is 0xc3"),
        (b"abc\xc3", "stdin is not UTF-8 text: byte 3 is 0xc3"),
        (b"ELF\x00\x01", "stdin is no text: byte 3 is 0x00"),
        (b"a" * 70_000 + b"\x00", "stdin is no text: byte 70,000 is 0x00"),
    ],
)
def test_what_is_no_text_is_refused(tokenizer, data, message):
    with pytest.raises(InputError) as refused:
        source(data).ids(tokenizer, most=0)
    assert refused.value.message == message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="/none cannot be read: no such file or directory"):
        TextSource(str(tmp_path / "none"), io.BytesIO()).require()
    with pytest.raises(InputError, match="cannot be read: is a directory"):
        TextSource(str(tmp_path), io.BytesIO()).require()
    (tmp_path / "book").write_text("whale")
    assert TextSource(str(tmp_path / "book"), io.BytesIO()).require() is None


@pytest.mark.parametrize(
    ("tokens", "most", "error", "message", "hint"),
    [
        (
            100,
            0,
            InputError,
            "100 tokens, 29 too few to fill a cache of 128 and",
            "a longer text, or --cache-size 25",
        ),
        (128, 0, InputError, "128 tokens, 1 too few to fill a cache of 128 and", "a longer text, or --cache-size 32"),
        (
            100,
            100,
            UsageError,
            "--tokens 100 is 29 too few to fill a cache",
            "--tokens 512, or a smaller --cache-size",
        ),
    ],
)
def test_a_text_that_does_not_outgrow_the_cache_is_refused(tokens, most, error, message, hint):
    with pytest.raises(error, match=message) as refused:
        source(b"").long_enough(random_ids(tokens), cache_size=128, most=most)
    assert refused.value.hint == hint


def test_a_text_that_outgrows_the_cache_by_one_token_will_do():
    assert source(b"").long_enough(random_ids(129), cache_size=128, most=0) is None


def test_a_line_break_is_one_token(tokenizer):
    assert tokenizer.decode([line_break_id(tokenizer)]) == "\n"
