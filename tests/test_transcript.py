"""The words of a conversation outlast its memory, in files without a name."""

import resource

import pytest

from sinkchat.chat.transcript import Said, Transcript
from sinkchat.errors import SinkchatError


def filled(count: int) -> Transcript:
    transcript = Transcript()
    for number in range(1, count + 1):
        transcript.begin()
        for piece in ("mess", f"age {number} é"):
            transcript.add_user(piece)
        for piece in ("ans", f"wer {number} 🙂"):
            transcript.add_answer(piece)
    return transcript


def test_what_was_said_comes_back_word_for_word():
    transcript = filled(3)
    assert list(transcript) == [Said(f"message {number} é", f"answer {number} 🙂") for number in (1, 2, 3)]
    assert transcript.said(2) == Said("message 2 é", "answer 2 🙂")


def test_exchanges_that_are_taken_back_are_written_over():
    transcript = filled(3)
    transcript.keep(1)
    transcript.begin()
    transcript.add_user("other")
    assert list(transcript) == [Said("message 1 é", "answer 1 🙂"), Said("other", "")]


@pytest.mark.parametrize("number", [0, 3])
def test_there_is_no_other_exchange(number):
    with pytest.raises(IndexError, match=f"there are 2 exchanges, and no number {number}"):
        filled(2).said(number)


def test_a_long_conversation_leaves_the_process():
    transcript = filled(1)
    assert not transcript._texts._rolled
    transcript.add_answer("x" * 2**21)
    assert transcript._texts._rolled
    assert len(transcript.said(1).answer) == 2**21 + len("answer 1 🙂")


def test_a_full_disk_is_told_with_what_to_do():
    transcript = filled(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(SinkchatError, match=r"what is said cannot be kept in .*: file too large") as error:
            transcript.add_answer("x" * 2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "TMPDIR" in error.value.hint
