"""`sinkchat recall` at the terminal: what is written, what is refused, what an early Ctrl-C keeps."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_tokenizer
from worlds import Terminal, environment

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import session_for
from sinkchat.errors import ExitStatus, InputError, UsageError
from sinkchat.lab.recall.questions import Question, Reply, read_questions, score
from sinkchat.lab.recall.recall import Answer, Plan
from sinkchat.lab.recall.start import Started, induction, replies, start_questions, start_recall, start_with
from sinkchat.models.loading import LoadedModel
from sinkchat.terminal.lab.recall import Asked, answer, measure
from sinkchat.terminal.lab.running import Output

ANSWERS = [
    Answer(1, 3, "1234", "1234", True),
    Answer(1, 3, "2345", "2345", True),
    Answer(20, 61, "1234", "1234", True),
    Answer(20, 63, "2345", "99", False),
    Answer(400, 1201, "1234", "", False),
]

WHOLE = """\
Tiny-1: recall of a line's number, by distance (evicting by turn)

cache of 64: 4 sinks + 60
lines back  tokens back  asked  held  right
         1            3      2  100%   100%  ████████████████████
        20           62      2   50%    50%  ██████████
       400        1,201      1    0%     0%
Held: at most 20 lines back. Recalled: at most 20 lines back.
"""

ENTRY = Question("What is it?", ("a whale",))
REPLIES = [
    Reply(1, ENTRY, "A whale.", 9, 20, 0),
    Reply(2, ENTRY, "I think that it is\n\x1b[31m a whale, and a very very large one", 9, 40, 8),
    Reply(3, ENTRY, "Whales", 9, 60, 12_345),
    Reply(4, Question("Say more.", ()), "No.", 9, 80, 12_400),
]

VERDICTS = """\
   1  exact             0 forgotten  A whale.
   2  contains          8 forgotten  I think that it is \\x1b[31m a whale, an...
   3  wrong        12,345 forgotten  Whales
   4  -            12,400 forgotten  No.

Tiny-1: 4 questions in one stream, 3 with a known answer
exact 33.3%, containing the answer 66.7%
"""


class FakeLab:
    """Gives answers that were thought of elsewhere."""

    def __init__(self, answers=(), replies=()):
        self.answers, self.replies, self.asked = answers, replies, []

    def start(self, asked, progress):
        self.asked.append(asked)
        return Started("Tiny-1", tuple((size, iter(self.answers)) for size in asked.cache_sizes))

    def ask(self, asked, questions, progress):
        self.asked.append(questions)
        return "Tiny-1", iter(self.replies)


def interrupted(values):
    yield from values
    raise KeyboardInterrupt


def test_the_whole_table():
    world = environment(io.BytesIO())
    measure(world, Asked(cache_sizes=(64,)), FakeLab(ANSWERS).start)
    assert world.stdout.getvalue() == WHOLE


def test_the_table_fits_into_the_terminal():
    for columns, longest in ((200, 65), (60, 60), (50, 50)):
        world = environment(io.BytesIO(), stdout=Terminal())
        world = replace(world, terminal_size=lambda columns=columns: os.terminal_size((columns, 24)))
        measure(world, Asked(cache_sizes=(64,)), FakeLab(ANSWERS).start)
        rows = [row for row in world.stdout.getvalue().splitlines() if "%" in row]
        assert max(map(len, rows)) == longest


def test_a_table_a_cache():
    world = environment(io.BytesIO())
    measure(world, Asked(cache_sizes=(64, 128)), FakeLab(ANSWERS).start)
    assert world.stdout.getvalue() == WHOLE + WHOLE[WHOLE.index("\ncache") :].replace(
        "cache of 64: 4 sinks + 60", "cache of 128: 4 sinks + 124"
    )


def test_an_early_ctrl_c_keeps_the_answers_so_far():
    world = environment(io.BytesIO())
    lab = FakeLab(interrupted(ANSWERS[:2]))
    assert measure(world, Asked(cache_sizes=(64, 128)), lab.start) == ExitStatus.INTERRUPTED
    assert world.stdout.getvalue().splitlines()[-2:] == [
        "         1            3      2  100%   100%  ████████████████████",
        "Held: at most 1 line back. Recalled: at most 1 line back.",
    ]


def test_json_is_one_document():
    world = environment(io.BytesIO())
    measure(world, Asked(cache_sizes=(64,), output=Output(as_json=True)), FakeLab(ANSWERS).start)
    document = json.loads(world.stdout.getvalue())
    assert document["model"] == "Tiny-1"
    (cache,) = document["recalls"]
    assert (cache["capacity"], cache["edge"], cache["reach"]) == (64, 20, 20)
    assert cache["points"][1] == {"lines_back": 20, "tokens_back": 62, "asked": 2, "right": 1, "held": 1}


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    asked = Asked(cache_sizes=(64, 128), output=Output(plot=tmp_path / "recall.png"))
    measure(environment(io.BytesIO()), asked, FakeLab(ANSWERS).start)
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_refused_before_any_work():
    pytest.importorskip("matplotlib")
    lab = FakeLab(ANSWERS)
    with pytest.raises(UsageError, match="there is no folder"):
        measure(environment(io.BytesIO()), Asked(output=Output(plot=Path("/nonexistent/a.png"))), lab.start)
    assert lab.asked == []


def test_the_induction_head_goes_all_the_way():
    started = start_with(induction(), Plan(rounds=1, distances=(1, 9, 30)), cache_sizes=(48,), evict="turn")
    ((size, answers),) = started.caches
    marks = [event.is_right for event in answers if isinstance(event, Answer)]
    assert (size, marks) == (48, [True, True, False])


def test_an_eviction_that_is_none_is_refused_before_a_model_is_built():
    with pytest.raises(UsageError, match="--evict never is not known"):
        start_recall("induction", {}, Plan(), cache_sizes=(64,), evict="never")


def test_the_induction_head_is_not_asked_questions():
    with pytest.raises(UsageError, match="knows its lines and no questions"):
        start_questions("induction", {}, [ENTRY], memory=MemoryOptions(), max_tokens=5)


QUESTIONS = b'{"question": "What is it?", "answer": "a whale"}\n'


def test_each_verdict_is_written_and_then_the_score():
    world, lab = environment(io.BytesIO(QUESTIONS)), FakeLab(replies=REPLIES)
    answer(world, Asked(questions="-"), lab.ask)
    assert world.stdout.getvalue() == VERDICTS
    assert lab.asked == [[ENTRY]]


def test_an_early_ctrl_c_scores_the_questions_so_far():
    world = environment(io.BytesIO(QUESTIONS))
    lab = FakeLab(replies=interrupted(REPLIES[:1]))
    assert answer(world, Asked(questions="-"), lab.ask) == ExitStatus.INTERRUPTED
    assert world.stdout.getvalue() == (
        VERDICTS.splitlines(keepends=True)[0]
        + "\nTiny-1: 1 question in one stream, 1 with a known answer\n"
        + "exact 100.0%, containing the answer 100.0%\n"
    )


def test_questions_as_json_are_one_document():
    world = environment(io.BytesIO(QUESTIONS))
    answer(world, Asked(questions="-", output=Output(as_json=True)), FakeLab(replies=REPLIES).ask)
    document = json.loads(world.stdout.getvalue())
    assert (document["asked"], document["marked"], document["exact"], document["contained"]) == (4, 3, 1, 2)
    assert [reply["has_answer"] for reply in document["replies"]] == [True, True, False, False]


@pytest.mark.parametrize(
    ("said", "answers", "exact", "contained"),
    [
        ("Paris", ("Paris",), True, True),
        ("paris!\nIt is the capital.", ("Paris",), True, True),
        ("It is Paris.", ("Paris",), False, True),
        ("Parisian", ("Paris",), False, False),
        ("(B)", ("a", "b"), True, True),
        ("", ("Paris",), False, False),
        ("42", ("4",), False, False),
    ],
)
def test_marking(said, answers, exact, contained):
    reply = Reply(1, Question("?", answers), said, 1, 1, 0)
    assert (reply.is_exact, reply.has_answer) == (exact, contained)
    assert score([reply]).exact == exact


def test_questions_are_read_in_all_their_forms():
    lines = [
        '{"question": "Q1", "answer": "a"}',
        "",
        '{"question": "Q2", "answer": ["a", 2]}',
        '{"question": "Q3"}',
        '{"turns": ["T1", "T2"], "reference": ["r1"], "category": "math"}',
        '{"turns": ["T3"]}',
    ]
    assert list(read_questions(lines, "x")) == [
        Question("Q1", ("a",)),
        Question("Q2", ("a", "2")),
        Question("Q3", ()),
        Question("T1", ("r1",)),
        Question("T2", ()),
        Question("T3", ()),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n\n", "stdin holds no question"),
        (b"What is it?\n", "stdin line 1 is no JSON"),
        (b"[1]\n", "stdin line 1 is no JSON object"),
        (QUESTIONS + b'{"answer": "a"}\n', "stdin line 2 has no question"),
        (b'{"question": " "}\n', "stdin line 1 has no question"),
        (b'{"question": "Q", "answer": {"a": 1}}\n', "stdin line 1: answer must be"),
        (b'{"turns": "T"}\n', "stdin line 1: turns must be"),
        (b'{"turns": ["T"], "reference": ["a", "b"]}\n', "stdin line 1: reference must be"),
        (b'{"question": "caf\xe9"}\n', "--questions - is not UTF-8 text: byte 17"),
    ],
)
def test_what_is_no_file_of_questions_is_refused_before_a_model_is_loaded(data, message):
    lab = FakeLab(replies=REPLIES)
    with pytest.raises(InputError, match=message):
        answer(environment(io.BytesIO(data)), Asked(questions="-"), lab.ask)
    assert lab.asked == []


def test_a_file_of_questions_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"--questions /nonexistent/q\.jsonl cannot be read: no such file"):
        answer(environment(io.BytesIO()), Asked(questions="/nonexistent/q.jsonl"), FakeLab().ask)


def test_questions_go_through_one_conversation_that_forgets():
    loaded = LoadedModel(tiny_model(), tiny_tokenizer(), "Tiny-1", "none", "float32", "cpu", 4096, ())
    session = session_for(
        loaded, memory=MemoryOptions(cache_size=128, sinks=4), chat={"temperature": 0, "max_tokens": 5}
    )
    questions = [Question(f"Question {number}, at some length?", ("x",)) for number in range(6)]
    found = list(replies(session, questions))
    assert [reply.number for reply in found] == [1, 2, 3, 4, 5, 6]
    assert [reply.question for reply in found] == questions
    assert found[0].evicted == 0 < found[-1].evicted
    assert found[-1].seen - found[-1].evicted <= 128
