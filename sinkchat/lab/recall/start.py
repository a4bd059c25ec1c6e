"""From a model's name to a recall that is ready to run: the model loaded, or the induction head built."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sinkchat.chat.events import PromptRead, TurnEnded
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.session import ChatSession
from sinkchat.chat.start import build_engine, eviction_policy, session_for
from sinkchat.errors import UsageError
from sinkchat.lab.recall.induction import LineTokenizer
from sinkchat.lab.recall.measured import stream_eval
from sinkchat.lab.recall.questions import Question, Reply
from sinkchat.lab.recall.recall import Answer, Plan, Reading
from sinkchat.models.induction import induction_model
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.progress import Progress, silent

INDUCTION = "induction"
"""the name that stands for the model built by hand"""


@dataclass(frozen=True, slots=True)
class Started:
    """One recall a cache, about to run; answers come as they are pulled."""

    model: str
    caches: tuple[tuple[int, Iterator[Reading | Answer]], ...]
    """the capacity of each, its answers, and between them how far it is"""


def start_recall(
    name: str,
    load: Mapping[str, Any],
    plan: Plan,
    *,
    cache_sizes: Sequence[int],
    evict: str,
    progress: Progress = silent,
) -> Started:
    """Loads the model `name`; `load` has fields of `LoadOptions`. Caches are built one after the other."""
    eviction_policy(MemoryOptions(evict=evict))  # a slip is told before weights are loaded
    options = LoadOptions(**load, needs_template=False)
    loaded = induction() if name == INDUCTION else load_model(name, options, progress=progress)
    return start_with(loaded, plan, cache_sizes=cache_sizes, evict=evict)


def start_with(loaded: LoadedModel, plan: Plan, *, cache_sizes: Sequence[int], evict: str) -> Started:
    """The recall of a model that is loaded."""

    def answers(size: int) -> Iterator[Reading | Answer]:
        engine = build_engine(loaded, MemoryOptions(cache_size=size, evict=evict))
        yield from stream_eval(engine, loaded.tokenizer, plan)

    return Started(loaded.name, tuple((size, answers(size)) for size in cache_sizes))


def induction() -> LoadedModel:
    """The model that recalls everything it remembers, with the tokenizer of its lines."""
    model = induction_model(LineTokenizer.vocabulary_size)
    tokenizer = cast(Any, LineTokenizer())
    return LoadedModel(model, tokenizer, "induction head, built by hand", "none", "float32", "cpu", None, ())


def start_questions(
    name: str,
    load: Mapping[str, Any],
    questions: Iterable[Question],
    *,
    memory: MemoryOptions,
    max_tokens: int,
    progress: Progress = silent,
) -> tuple[str, Iterator[Reply]]:
    """The model's name, and its replies, greedy, in one conversation that forgets as every other does."""
    eviction_policy(memory)
    if name == INDUCTION:
        raise UsageError("the induction head knows its lines and no questions", hint="a chat model, such as smollm2")
    loaded = load_model(name, LoadOptions(**load), progress=progress)
    session = session_for(loaded, memory=memory, chat={"temperature": 0, "max_tokens": max_tokens})
    return loaded.name, replies(session, questions)


def replies(session: ChatSession, questions: Iterable[Question]) -> Iterator[Reply]:
    """Asks one question after the other. Leaving the loop stops the work."""
    for number, question in enumerate(questions, 1):
        read = 0
        for event in session.send(question.text):
            if isinstance(event, PromptRead):
                read = event.tokens
            elif isinstance(event, TurnEnded):
                yield Reply(number, question, event.text, read, event.state.seen, event.state.evicted)
