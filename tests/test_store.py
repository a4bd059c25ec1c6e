"""Conversations on disk: found again, kept apart, bounded, and never the reason why a conversation stops."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from small_disks import small_disk

from sinkchat.chat.journal import JournalDamaged
from sinkchat.chat.lock import Lock, LockTaken
from sinkchat.chat.saved import PARTS_KEPT, Saved, Unkept
from sinkchat.chat.store import Store, Summary
from sinkchat.errors import UsageError

MODEL = {"name": "SmolLM2", "quant": "none", "dtype": "float32"}
BEGIN = {"op": "begin", "format": 1, "model": MODEL}


def turn(number: int, user: str = "", answer: str = "yes") -> list[dict]:
    return [
        {"op": "turn", "number": number},
        {"op": "user", "text": user or f"question {number}"},
        {"op": "answer", "text": answer},
        {"op": "settled", "count": number},
    ]


def recorded(
    store: Store, name: str | None = None, *, turns: int = 1, user: str = "", at: float | None = None
) -> str:
    """A conversation that was held and left."""
    with store.create(name) as saved:
        for record in [BEGIN, *(record for number in range(1, turns + 1) for record in turn(number, user))]:
            saved.append(record)
    if at is not None:
        os.utime(saved.folder / "00001.jsonl", (at, at))
    return saved.id


def test_a_conversation_is_found_again_whole(tmp_path):
    store = Store(tmp_path / "sessions")
    recorded(store, "work", turns=2)
    with store.open("work") as saved:
        assert list(saved.records()) == [BEGIN, *turn(1), *turn(2)]
        assert not saved.torn
        saved.append({"op": "turn", "number": 3})
    assert list(store.read("work")) == [BEGIN, *turn(1), *turn(2), {"op": "turn", "number": 3}]


def test_folders_and_files_are_for_their_owner_alone(tmp_path):
    store = Store(tmp_path / "sessions")
    recorded(store, "work")
    paths = [store.folder, *store.folder.rglob("*")]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in paths} == {
        "sessions": "0o700",
        "work": "0o700",
        "00001.jsonl": "0o600",
        "lock": "0o600",
    }


def test_an_id_without_a_name_is_the_minute_it_began_in(tmp_path):
    began = time.mktime((2026, 11, 29, 21, 30, 5, 0, 0, -1))
    store = Store(tmp_path, clock=lambda: began)
    ids = [recorded(store) for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(each.startswith("2026-11-29-2130-") and len(each) == 20 for each in ids)


@pytest.mark.parametrize("name", ["work", "a", "v1.2_b-c", "übung", "x" * 60])
def test_a_name_may_have_letters_digits_and_three_signs(tmp_path, name):
    store = Store(tmp_path)
    recorded(store, name)
    assert [summary.id for summary in store.saved()] == [name]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-x", ".x", "_x", "a.", "a b", "a\x1b", "a\n", "x" * 61, "\udc80"]
)
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"cannot name a conversation") as error:
        Store(tmp_path).create(name)
    assert error.value.hint == "up to 60 letters, digits, - _ . of which the first is a letter or digit"
    with pytest.raises(UsageError, match="there is no conversation"):
        Store(tmp_path).open(name)


def test_a_letter_with_an_accent_is_one_letter_however_it_is_typed(tmp_path):
    store = Store(tmp_path)
    recorded(store, "e\u0301cole")
    assert list(store.read("\u00e9cole")) == list(store.read("e\u0301cole"))


def test_a_name_is_not_given_twice(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work")
    assert "work" in store
    assert "play" not in store
    with pytest.raises(UsageError, match="there is a conversation work already") as error:
        store.create("work")
    assert error.value.hint == "sinkchat resume work"


def test_a_conversation_in_which_nothing_was_said_leaves_nothing(tmp_path):
    store = Store(tmp_path / "sessions")
    with store.create("work") as saved:
        saved.append(BEGIN)
        saved.append({"op": "options", "temperature": 0.0})
        assert store.saved() == []
    assert list(store.folder.iterdir()) == []


def test_what_was_chosen_before_the_first_turn_stands_before_it(tmp_path):
    store = Store(tmp_path)
    chosen = {"op": "options", "temperature": 0.0}
    with store.create("work") as saved:
        for record in [BEGIN, chosen, *turn(1)]:
            saved.append(record)
    assert list(store.read("work")) == [BEGIN, chosen, *turn(1)]


def test_a_name_whose_first_holder_died_before_anything_was_said_is_free(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "00001.jsonl").touch()
    assert "work" not in store
    recorded(store, "work")
    assert len(list(store.read("work"))) == 5


def test_what_died_before_anything_was_said_is_swept_a_day_later(tmp_path):
    store = Store(tmp_path)
    kept = recorded(store, "kept")
    for name, age in (("old", 90_000), ("new", 80_000), ("kept", 90_000)):
        (tmp_path / name).mkdir(exist_ok=True)
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    other = recorded(store, "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([kept, "new", other])


def test_the_latest_is_the_one_written_to_last_and_of_several_the_last_by_name(tmp_path):
    store = Store(tmp_path)
    assert store.latest() is None
    for name, at in (("a", 100.0), ("d", 200.0), ("c", 200.0), ("b", 50.0)):
        recorded(store, name, at=at)
    assert store.latest() == "d"
    assert [summary.id for summary in store.saved()] == ["d", "c", "a", "b"]
    with store.open() as saved:
        assert saved.id == "d"


@pytest.mark.parametrize("jump", [-(10**9), 0.0, 4e9], ids=["back", "1970", "far ahead"])
def test_a_clock_that_jumps_breaks_nothing(tmp_path, jump):
    times = iter([1.7e9, jump, *[1.7e9] * 9])
    store = Store(tmp_path, clock=lambda: next(times))
    ids = [recorded(store, at=1.7e9), recorded(store, at=max(0.0, jump))]
    assert sorted(summary.id for summary in store.saved()) == sorted(ids)
    with store.open() as saved:
        assert saved.id == ids[jump > 1.7e9]


def test_no_conversation_at_all_is_told(tmp_path):
    with pytest.raises(UsageError, match="no conversation is saved yet") as error:
        Store(tmp_path / "nowhere").open()
    assert error.value.hint == "sinkchat run"
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_id_is_told_with_the_one_that_was_meant(tmp_path):
    store = Store(tmp_path)
    recorded(store, "holiday")
    with pytest.raises(UsageError, match=r"there is no conversation holidy, did you mean holiday\?") as error:
        store.open("holidy")
    assert error.value.hint == "sinkchat resume holiday"
    with pytest.raises(UsageError, match=r"there is no conversation xyz$") as error:
        store.open("xyz")
    assert error.value.hint == "sinkchat sessions list"


def test_a_summary_tells_what_a_conversation_is_about(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work", turns=3, user="How do I\nsort   a list? " + "x" * 100, at=1000.0)
    size = sum(path.stat().st_size for path in (tmp_path / "work").iterdir())
    title = ("How do I sort a list? " + "x" * 100)[:79] + "…"
    assert store.saved() == [Summary("work", title, "SmolLM2", 3, 1000.0, size)]
    assert store.summary("work") == store.saved()[0]


@pytest.mark.parametrize(
    ("more", "turns"),
    [
        ([], 2),
        ([{"op": "turn", "number": 3}], 3),
        ([{"op": "keep", "count": 1}], 1),
        ([{"op": "clear"}], 0),
        ([{"op": "clear"}, *turn(1)], 1),
        ([{"op": "clear"}, {"op": "unclear"}], 2),
        ([{"op": "keep", "count": 1}, {"op": "clear"}, {"op": "unclear"}, {"op": "options"}], 1),
        ([{"op": "answer", "text": "x" * 200_000}], 2),
    ],
    ids=["two", "in flight", "keep", "clear", "clear and one", "unclear", "keep before", "long"],
)
def test_a_summary_counts_the_turns_that_were_not_taken_back(tmp_path, more, turns):
    store = Store(tmp_path)
    recorded(store, "work", turns=2)
    with store.open("work") as saved:
        for record in more:
            saved.append(record)
    assert store.summary("work").turns == turns


def test_a_summary_of_a_damaged_conversation_says_what_can_be_read(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work", turns=2)
    path = tmp_path / "work" / "00001.jsonl"
    path.write_bytes(b"damaged" + path.read_bytes())
    [summary] = store.saved()
    assert (summary.id, summary.title, summary.model, summary.turns) == ("work", "", "", 2)


def test_a_damaged_conversation_is_not_gone_on_with(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work", turns=2)
    path = tmp_path / "work" / "00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"question 2", b"question 3"))
    with pytest.raises(JournalDamaged, match="is damaged in line 7: the turn before it is whole"):
        store.open("work")
    Lock.take(tmp_path / "work" / "lock").release()


@pytest.mark.parametrize(("line", "turns"), [(0, 3), (1, 3), (5, 3), (6, 4)])
def test_a_damaged_part_counts_the_turns_of_those_before_it(tmp_path, line, turns):
    store = Store(tmp_path, part_bytes=5_000)
    with store.create("work") as saved:
        saved.append(BEGIN)
        run_on(saved, range(1, 6))
    path = tmp_path / "work" / "00002.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = b"damaged\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalDamaged) as damage:
        store.open("work")
    assert damage.value.message == (f"{path} is damaged in line {line + 1}: the {turns} turns before it are whole")


def test_a_torn_last_record_is_dropped_and_told(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work")
    path = tmp_path / "work" / "00001.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with store.open("work") as saved:
        assert saved.torn
        for record in turn(2):
            saved.append(record)
        assert list(saved.records()) == [BEGIN, *turn(1)[:-1], *turn(2)]


def test_a_conversation_is_removed_with_all_that_is_kept_of_it(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work")
    (tmp_path / "work" / "memory.safetensors").touch()
    store.remove("work")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="there is no conversation work"):
        store.remove("work")


HOLDER = """
import sys
from pathlib import Path
from sinkchat.chat.store import Store

saved = Store(Path(sys.argv[1])).open("work")
print("open", flush=True)
sys.stdin.readline()
saved.append({"op": "turn", "number": 2})
saved.close()
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_second_process_is_told_who_has_it_and_damages_nothing(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work")
    process = holder(tmp_path)
    for attempt in (store.open, store.remove, store.create):
        with pytest.raises(UsageError) as error:
            attempt("work")
        if attempt != store.create:
            assert error.value.message == f"conversation work is open in another sinkchat (process {process.pid})"
            assert error.value.hint == "--session OTHER"
    assert list(store.read("work")) == [BEGIN, *turn(1)]
    process.communicate("\n")
    with store.open("work") as saved:
        assert list(saved.records()) == [BEGIN, *turn(1), {"op": "turn", "number": 2}]


def test_a_name_that_another_process_is_about_to_use_is_told(tmp_path):
    store = Store(tmp_path)
    with store.create("work"), pytest.raises(UsageError, match="conversation work is open in another sinkchat"):
        store.create("work")


def test_a_name_that_was_given_between_two_looks_is_not_given_twice(tmp_path):
    class Overtaken(Store):
        """Another process is faster after the first look, and has left before the second."""

        looks = 0

        def __contains__(self, name: str) -> bool:
            self.looks += 1
            if self.looks > 1:
                return super().__contains__(name)
            recorded(Store(tmp_path), name)
            return False

    with pytest.raises(UsageError, match="there is a conversation work already"):
        Overtaken(tmp_path).create("work")
    assert list(Store(tmp_path).read("work")) == [BEGIN, *turn(1)]


def test_what_a_killed_process_held_can_be_opened(tmp_path):
    store = Store(tmp_path)
    recorded(store, "work")
    process = holder(tmp_path)
    process.kill()
    process.communicate()
    store.open("work").close()


RUNNER = """
import sys
from pathlib import Path
from sinkchat.chat.store import Store

store = Store(Path(sys.argv[1]), part_bytes=20_000)
saved = store.open("work") if "work" in store else store.create("work")
begin, latest = {"op": "begin", "format": 1}, int(sys.argv[2])
if not latest:
    saved.append(begin)
for number in range(latest + 1, 10**6):
    saved.append({"op": "turn", "number": number})
    saved.append({"op": "answer", "text": "x" * 2_000})
    saved.append({"op": "settled", "count": number})
    if saved.is_part_due:
        saved.begin_part(begin, {"op": "settled", "whole": number})
    print(number, flush=True)
"""


def test_a_process_killed_at_any_moment_loses_no_turn_whose_recording_was_done(tmp_path):
    store = Store(tmp_path, part_bytes=20_000)
    latest = 0
    for kill in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", RUNNER, tmp_path, str(latest)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.000_7 * kill)
            process.kill()
            done = int((first + process.stdout.read()).split(b"\n")[-2])
        records = list(store.read("work"))
        whole = [record.get("count") for record in records if record["op"] == "settled" and "count" in record]
        assert whole == list(range(whole[0], whole[-1] + 1))
        assert whole[0] == 1 or records[1]["op"] == "settled"
        assert done <= whole[-1] <= done + 1
        latest = whole[-1]
    assert store.summary("work").nbytes < (PARTS_KEPT + 1) * 23_000


def test_a_lock_on_a_file_that_its_holder_removed_is_not_taken_for_one(tmp_path):
    first = Lock.take(tmp_path / "lock")
    with pytest.raises(LockTaken) as taken:
        Lock.take(tmp_path / "lock")
    assert taken.value.process == os.getpid()
    (tmp_path / "lock").unlink()
    second = Lock.take(tmp_path / "lock")
    with pytest.raises(LockTaken):
        Lock.take(tmp_path / "lock")
    first.release()
    second.release()
    Lock.take(tmp_path / "lock").release()


def run_on(saved: Saved | Unkept, turns: range, *, size: int = 2_000) -> None:
    """Turns, with a new part wherever one is due."""
    for number in turns:
        for record in turn(number, answer="x" * size):
            saved.append(record)
        if saved.is_part_due:
            saved.begin_part(BEGIN, {"op": "settled", "whole": number})


def test_a_conversation_that_runs_for_months_takes_bounded_room_and_no_more_descriptors(tmp_path):
    store = Store(tmp_path, part_bytes=20_000)
    with store.create("work") as saved:
        run_on(saved, range(1, 20))
        before = psutil.Process().num_fds()
        for start in range(20, 500, 20):
            run_on(saved, range(start, start + 20))
            assert psutil.Process().num_fds() == before
            assert store.summary("work").nbytes < PARTS_KEPT * (20_000 + 3_000)
    parts = sorted(path.name for path in (tmp_path / "work").glob("*.jsonl"))
    assert len(parts) in (PARTS_KEPT - 1, PARTS_KEPT)
    assert parts[-1] > "00040.jsonl"
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [*parts, "lock"]


def test_each_part_begins_with_all_that_is_needed_to_go_on(tmp_path):
    store = Store(tmp_path, part_bytes=5_000)
    with store.create("work") as saved:
        run_on(saved, range(1, 31))
        saved.append({"op": "turn", "number": 31})
    records = list(store.read("work"))
    begins = [index for index, record in enumerate(records) if record["op"] == "begin"]
    assert len(begins) > 2
    for index in begins:
        begin, settled, following = records[index : index + 3]
        assert begin == {**BEGIN, "turns": settled["whole"], "title": "question 1"}
        assert following == {"op": "turn", "number": settled["whole"] + 1}
    summary = store.summary("work")
    assert (summary.title, summary.turns, summary.model) == ("question 1", 31, "SmolLM2")


def test_the_part_that_was_just_begun_is_kept_however_large(tmp_path):
    store = Store(tmp_path, part_bytes=500)
    with store.create("work") as saved:
        for record in [BEGIN, *turn(1, answer="x" * 5_000)]:
            saved.append(record)
        saved.begin_part(BEGIN, settled := {"op": "settled", "window": list(range(2_000))})
        saved.append({"op": "turn", "number": 2})
        assert saved.failure is None
    assert list(store.read("work")) == [
        {**BEGIN, "turns": 1, "title": "question 1"},
        settled,
        {"op": "turn", "number": 2},
    ]


def test_a_conversation_that_is_opened_again_goes_on_in_its_latest_part(tmp_path):
    store = Store(tmp_path, part_bytes=5_000)
    for start in range(1, 31, 3):
        with store.open("work") if "work" in store else store.create("work") as saved:
            if start == 1:
                saved.append(BEGIN)
            run_on(saved, range(start, start + 3))
    numbers = [record["number"] for record in store.read("work") if record["op"] == "turn"]
    assert numbers == list(range(numbers[0], 31))


def test_a_gap_is_healed_by_a_new_part(tmp_path):
    store = Store(tmp_path)
    with store.create("work") as saved:
        saved.append(BEGIN)
        run_on(saved, range(1, 3))
        (tmp_path / "work" / "00001.jsonl").unlink()
        run_on(saved, range(3, 5))
        assert saved.failure is None
    assert [record["op"] for record in store.read("work")] == ["begin", "settled", *(r["op"] for r in turn(4))]


def test_a_full_disk_is_told_and_all_is_written_when_there_is_room(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=256 * 1024) as disk:
        (disk / "filler").write_bytes(b"x" * 128 * 1024)
        store = Store(disk / "sessions")
        with store.create("work") as saved:
            saved.append(BEGIN)
            run_on(saved, range(1, 50), size=3_000)
            assert saved.failure == f"{saved.folder}/00001.jsonl cannot be written: no space left on device"
            (disk / "filler").unlink()
            run_on(saved, range(50, 51), size=3_000)
            assert saved.failure is None
        assert [record["number"] for record in store.read("work") if record["op"] == "turn"] == list(range(1, 51))


def test_after_more_than_can_wait_the_conversation_goes_on_in_new_parts_and_none_is_dropped(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=2**21) as disk:
        (disk / "filler").write_bytes(b"x" * (2**21 - 2**17))
        store = Store(disk / "sessions")
        with store.create("work") as saved:
            saved.append(BEGIN)
            run_on(saved, range(1, 11), size=3_000)
            run_on(saved, range(11, 201), size=200_000)
            parts = sorted(path.name for path in saved.folder.glob("*.jsonl"))
            assert len(parts) > PARTS_KEPT
            (disk / "filler").unlink()
            run_on(saved, range(201, 211), size=1_000)
            assert (saved.failure, saved.is_part_due) == (None, False)
        records = list(store.read("work"))
        assert records[:41] == [BEGIN, *(r for number in range(1, 11) for r in turn(number, answer="x" * 3_000))]
        assert records[-8:] == [*turn(209, answer="x" * 1_000), *turn(210, answer="x" * 1_000)]
        for index, record in enumerate(records):
            if record["op"] == "begin" and index:
                assert records[index + 1] == {"op": "settled", "whole": record["turns"]}


def test_a_disk_without_any_room_keeps_nothing_and_says_why(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=4096) as disk:
        (disk / "filler").write_bytes(b"x" * 4096)
        saved = Store(disk / "sessions").create()
        run_on(saved, range(1, 3))
        assert saved.failure is not None
        assert "no space left on device" in saved.failure
        saved.settle()
        saved.close()


def test_a_read_only_folder_keeps_nothing_and_says_why(tmp_path):
    with small_disk(tmp_path / "disk", nbytes=128 * 1024) as disk:
        recorded(Store(disk), "old")
        disk.make_read_only()
        store = Store(disk)
        saved = store.create("work")
        assert isinstance(saved, Unkept)
        assert saved.failure == f"{disk} cannot be written: read-only file system"
        with store.open("old") as old:
            assert list(old.records()) == [BEGIN, *turn(1)]
            old.append({"op": "turn", "number": 2})
            assert old.failure == f"{disk}/old/00001.jsonl cannot be written: read-only file system"
        with pytest.raises(UsageError, match=r"old cannot be removed: read-only file system"):
            store.remove("old")
        assert [summary.id for summary in store.saved()] == ["old"]


@pytest.mark.parametrize(
    ("place", "said"),
    [("file/sessions", "not a directory"), ("file", "file exists")],
    ids=["below a file", "a file"],
)
def test_a_place_that_is_no_folder_keeps_nothing_and_says_why(tmp_path, place, said):
    (tmp_path / "file").touch()
    store = Store(tmp_path / place)
    saved = store.create()
    assert saved.failure == f"{tmp_path / place} cannot be written: {said}"
    assert store.saved() == []


def test_without_a_home_nothing_is_kept_and_no_folder_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = Store(Path("~/.local/state/sinkchat/sessions")).create("work")
    assert saved.failure == "~/.local/state/sinkchat/sessions is no place to keep it: HOME is not set"
    run_on(saved, range(1, 3))
    assert list(tmp_path.iterdir()) == []
