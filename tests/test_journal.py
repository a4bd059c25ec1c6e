"""A journal loses its last line at most, and says so; what it gives is what was written."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disks import small_disk

from sinkchat.chat import journal
from sinkchat.chat.journal import Journal, JournalDamaged, Reading, line_of, record_of, records_backwards
from sinkchat.errors import InputError, UsageError

BEGIN = {"op": "begin", "format": 1, "id": "work", "model": {"name": "SmolLM2"}}
TURN = [{"op": "turn", "number": 1}, {"op": "user", "text": "hé 🙂"}, {"op": "answer", "text": "yo"}]
SETTLED = {"op": "settled", "ids": [1, 2]}
SHORT = [BEGIN, *TURN, SETTLED, {"op": "turn", "number": 2}, {"op": "user", "text": "x"}]


def written(path: Path, records: list[dict] = SHORT) -> Path:
    log = Journal(path)
    for record in records:
        log.append(record)
    log.close()
    return path


def read(path: Path) -> tuple[list[dict], bool, JournalDamaged | None]:
    """All that can be read, whether a last line was dropped, and the damage."""
    reading, records = Reading(path), []
    try:
        for record in reading:
            records.append(record)
    except JournalDamaged as damage:
        return records, reading.torn, damage
    return records, reading.torn, None


def test_what_is_written_is_read(tmp_path):
    assert read(written(tmp_path / "j")) == (SHORT, False, None)


def test_a_line_is_the_checksum_and_the_record(tmp_path):
    body = '{"op":"user","text":"hé 🙂"}'.encode()
    assert line_of(TURN[1]) == b"%08x " % zlib.crc32(body) + body + b"\n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), JSON))
def test_any_record_comes_back_as_it_was(values):
    record = values | {"op": "any"}
    line = line_of(record)
    assert line.count(b"\n") == 1
    assert record_of(line) == record


def test_half_a_character_comes_back_as_it_was():
    record = {"op": "user", "text": "a\udc80b\ud83d"}
    assert record_of(line_of(record)) == record


@pytest.mark.parametrize(
    "body",
    [b"[1]", b'{"text":"no op"}', b'{"op":1}', b"{", b'{"op":"\xff"}', b"[" * 100_000],
    ids=["a list", "no op", "op a number", "not JSON", "not UTF-8", "too deep"],
)
def test_a_line_that_no_program_of_ours_wrote_is_not_whole(body):
    assert record_of(b"%08x %s\n" % (zlib.crc32(body), body)) is None


def test_the_file_is_for_its_owner_alone(tmp_path):
    assert written(tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_a_journal_that_is_opened_again_goes_on(tmp_path):
    written(tmp_path / "j", SHORT[:3])
    written(tmp_path / "j", SHORT[3:])
    assert read(tmp_path / "j")[0] == SHORT


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_journal_cut_at_any_byte_loses_the_line_that_was_cut(tmp_path):
    data = written(tmp_path / "j").read_bytes()
    for length in range(len(data)):
        path = tmp_path / "cut"
        path.write_bytes(data[:length])
        whole = data[:length].count(b"\n")
        is_torn = not data[:length].endswith(b"\n") and length > 0
        assert read(path) == (SHORT[:whole], is_torn, None)
        log = Journal(path)
        assert (log.torn, log.failure) == (is_torn, None)
        log.append({"op": "next"})
        log.close()
        first = SHORT[:whole] or []
        assert [record_of(line) for line in lines_of(path)] == [*first, {"op": "next"}]


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each bit of `data` changed, with the line it stands in."""
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield data[:place].count(b"\n"), bytes(changed)


def test_each_changed_bit_is_seen_in_its_line_and_all_before_it_is_read(tmp_path):
    data, path = written(tmp_path / "j").read_bytes(), tmp_path / "flipped"
    torn = damaged = 0
    for line, changed in flips(data):
        path.write_bytes(changed)
        records, is_torn, damage = read(path)
        assert records == SHORT[:line]
        assert is_torn != (damage is not None)
        if damage is None:
            # the last line, or the line feed before it: then two became one
            assert line == len(SHORT) - 1 or changed.count(b"\n") < len(SHORT)
            assert line >= len(SHORT) - 2
            torn += 1
        else:
            assert (damage.line, damage.turns) == (line + 1, int(line > 4))
            damaged += 1
    assert torn > 0
    assert damaged + torn == 8 * len(data)


def test_without_the_checksum_a_changed_bit_gives_wrong_records(tmp_path):
    data = written(tmp_path / "j").read_bytes()
    wrong = 0
    for line, changed in flips(data):
        try:
            records = [json.loads(text[9:]) for text in changed.splitlines()]
        except ValueError:
            continue
        wrong += records != SHORT and line < len(SHORT)
    assert wrong > 100


def test_a_damaged_journal_says_what_can_be_saved_and_how(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    path = written(folder / "00001.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"') + line_of({"op": "answer", "text": "z"}))
    _, _, damage = read(path)
    assert damage is not None
    assert damage.message == f"{path} is damaged in line 7: the turn before it is whole"
    assert damage.hint == "sinkchat sessions export work --format jsonl > chat.jsonl"


@pytest.mark.parametrize(
    ("line", "said"), [(0, "no turn before it is whole"), (10, "the 2 turns before it are whole")]
)
def test_a_damaged_journal_counts_its_whole_turns(tmp_path, line, said):
    records = [BEGIN, *TURN, SETTLED, {"op": "turn", "number": 2}, *TURN[1:], SETTLED, *TURN]
    lines = [line_of(record) for record in records]
    lines[line] = b"damaged\n"
    (tmp_path / "j").write_bytes(b"".join(lines))
    _, _, damage = read(tmp_path / "j")
    assert damage is not None
    assert damage.message == f"{tmp_path}/j is damaged in line {line + 1}: {said}"


def test_nothing_is_added_to_a_damaged_journal(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(damaged := line_of(BEGIN) + b"damaged\n" + line_of(SETTLED))
    with pytest.raises(JournalDamaged):
        Journal(path)
    assert path.read_bytes() == damaged


def test_a_journal_without_its_first_line_is_damaged(tmp_path):
    path = written(tmp_path / "j")
    path.write_bytes(b"".join(lines_of(path)[1:]))
    records, _, damage = read(path)
    assert records == []
    assert damage is not None
    assert damage.line == 1


def test_a_later_format_is_refused_with_what_to_do(tmp_path):
    path = written(tmp_path / "j", [BEGIN | {"format": 2}, *TURN])
    with pytest.raises(UsageError, match=r"written by a later sinkchat: its format is 2, and .* up to 1") as error:
        list(Reading(path))
    assert error.value.hint == "pip install --upgrade sinkchat"


def test_an_operation_that_is_not_known_is_passed_on(tmp_path):
    records = [BEGIN, {"op": "invented", "later": True}, *TURN]
    assert read(written(tmp_path / "j", records)) == (records, False, None)


def test_a_journal_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(InputError, match=r"nowhere cannot be read: no such file or directory"):
        list(Reading(tmp_path / "nowhere"))


def test_from_the_end_the_same_records_come(tmp_path):
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes() + b"torn")
    assert list(records_backwards(path)) == SHORT[::-1]


def test_from_the_end_long_lines_come_whole(tmp_path):
    records = [BEGIN, *({"op": "user", "text": "é" * length} for length in (0, 70_000, 1, 200_000, 65_536))]
    assert list(records_backwards(written(tmp_path / "j", records))) == records[::-1]


@contextmanager
def file_limit(nbytes: int) -> Iterator[None]:
    """No file may become larger than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_nothing_can_be_written_the_file_stays_whole_and_all_is_written_later(tmp_path):
    path = written(tmp_path / "j", SHORT[:1])
    size = path.stat().st_size
    log = Journal(path)
    with file_limit(size + 20):
        for record in SHORT[1:4]:
            log.append(record)
            assert log.failure == f"{path} cannot be written: file too large"
            assert path.stat().st_size == log.size == size
    log.append(SHORT[4])
    assert log.failure is None
    log.close()
    assert read(path) == (SHORT[:5], False, None)


def test_what_waits_is_written_when_the_journal_is_closed(tmp_path):
    log = Journal(tmp_path / "j")
    with file_limit(0):
        log.append(BEGIN)
    log.close()
    assert read(tmp_path / "j")[0] == [BEGIN]


def test_what_waits_is_bounded_and_what_comes_after_a_gap_is_not_written(tmp_path):
    log = Journal(tmp_path / "j")
    log.append(BEGIN)
    piece = {"op": "user", "text": "x" * 2**17}
    with file_limit(log.size):
        for count in range(1, 10):
            log.append(piece)
            assert log.has_gap == (count * len(line_of(piece)) > journal.WAITING_BYTES)
    log.append({"op": "after the gap"})
    assert log.failure == f"{tmp_path}/j cannot be written: file too large"
    log.close()
    assert read(tmp_path / "j") == ([BEGIN], False, None)


def test_a_record_larger_than_what_may_wait_is_written_where_there_is_room(tmp_path):
    record = {"op": "user", "text": "x" * (2 * journal.WAITING_BYTES)}
    assert read(written(tmp_path / "j", [BEGIN, record]))[0] == [BEGIN, record]


def test_a_full_disk_loses_nothing_that_was_whole_and_is_used_again_when_there_is_room(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=64 * 1024) as disk:
        path, filler = disk / "j", disk / "filler"
        filler.write_bytes(b"x" * 32 * 1024)
        log = Journal(path)
        records = [BEGIN, *({"op": "user", "text": f"{number} " + "x" * 900} for number in range(60))]
        for record in records:
            log.append(record)
            log.settle()
        assert log.failure == f"{path} cannot be written: no space left on device"
        kept, is_torn, damage = read(path)
        assert (kept, is_torn, damage) == (records[: len(kept)], False, None)
        assert 10 < len(kept) < len(records)
        filler.unlink()
        log.append({"op": "after"})
        assert log.failure is None
        log.close()
        assert read(path) == ([*records, {"op": "after"}], False, None)


def test_a_disk_that_becomes_read_only_is_told(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=64 * 1024) as disk:
        written(disk / "j", SHORT[:2])
        disk.make_read_only()
        log = Journal(disk / "j")
        log.append(SHORT[2])
        assert log.failure == f"{disk}/j cannot be written: read-only file system"
        disk.make_writable()
        log.append(SHORT[3])
        assert log.failure is None
        log.close()
        assert read(disk / "j")[0] == SHORT[:4]


def test_a_torn_line_that_cannot_be_cut_off_yet_is_cut_off_later(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=64 * 1024) as disk:
        (disk / "j").write_bytes(line_of(BEGIN) + b"torn")
        disk.make_read_only()
        log = Journal(disk / "j")
        log.append(SHORT[1])
        disk.make_writable()
        log.append(SHORT[2])
        log.close()
        assert (log.torn, read(disk / "j")) == (True, (SHORT[:3], False, None))


def test_a_journal_in_a_place_that_is_none_takes_what_it_is_given(tmp_path):
    (tmp_path / "file").touch()
    log = Journal(tmp_path / "file" / "j")
    log.append(BEGIN)
    assert log.failure == f"{tmp_path}/file/j cannot be written: {os.strerror(errno.ENOTDIR).lower()}"
    log.settle()
    log.close()


def test_a_journal_that_was_removed_has_a_gap(tmp_path):
    log = Journal(tmp_path / "j")
    log.append(BEGIN)
    (tmp_path / "j").unlink()
    log.append(SHORT[1])
    assert (log.has_gap, log.failure) == (True, f"{tmp_path}/j cannot be written: it was removed")
    log.close()
    assert not (tmp_path / "j").exists()


WRITER = """
import sys
from pathlib import Path
from sinkchat.chat.journal import Journal, Reading

log = Journal(Path(sys.argv[1]))
number = sum(1 for _ in Reading(log.path))
while True:
    log.append({"op": "begin", "format": 1} if not number else {"op": "user", "text": f"{number} " * 300})
    print(number, flush=True)
    number += 1
"""


def test_a_writer_killed_at_any_moment_leaves_every_record_whose_writing_was_done(tmp_path):
    for kill in range(50):
        path = tmp_path / f"{kill // 5}"
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "."}
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.000_3 * kill)
            process.kill()
            last = int((first + process.stdout.read()).split(b"\n")[-2])
        records, _, damage = read(path)
        assert damage is None
        assert last + 1 <= len(records) <= last + 2
        assert [record["text"].split()[0] for record in records[1:]] == [str(n) for n in range(1, len(records))]
