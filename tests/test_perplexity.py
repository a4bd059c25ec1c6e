"""Perplexity by each method: against plainer computations, in any order of breaking off and going on."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reference import reference_logits
from tiny import tiny_model, tiny_tokenizer

from sinkchat.cache.policy import EvictTokens
from sinkchat.errors import CannotStream, InputError, UsageError
from sinkchat.lab.perplexity.perplexity import Started, start_perplexity
from sinkchat.lab.perplexity.plan import Plan
from sinkchat.lab.perplexity.reading import DenseReading, ReadingEnded
from sinkchat.lab.perplexity.scores import Losses, Method, Progress, Result
from sinkchat.lab.perplexity.text import TextSource
from sinkchat.models.loading import LoadedModel

TEXT = "".join(f"{n * n} whales, {n} sailors and one captain.\n" for n in range(40))
TOKENS, CACHE, EVERY = 100, 16, 5
COMMON = range(CACHE, TOKENS, EVERY)
PLAN = Plan(cache_sizes=(CACHE,), sinks=(0, 1, 4), line_breaks=True, tokens=TOKENS, every=EVERY)


def loaded(model, tokenizer=None) -> LoadedModel:
    return LoadedModel(model, tokenizer or tiny_tokenizer(), "Tiny", "none", "float32", "cpu", 4096, ())


def started(model, plan: Plan = PLAN, text: str = TEXT, **options) -> Started:
    return start_perplexity(loaded(model), TextSource("-", io.BytesIO(text.encode())), plan, **options)


def results(model, plan: Plan = PLAN, **options) -> dict[str, Result]:
    events = started(model, plan, **options).events
    return {event.method.label: event for event in events if isinstance(event, Result)}


def ids_of(text: str = TEXT) -> list[int]:
    return tiny_tokenizer().encode(text, add_special_tokens=False)[:TOKENS]


def plain_perplexity(logits: torch.Tensor, ids: Sequence[int], scored: Sequence[int]) -> float:
    """exp of the mean loss of the `scored` tokens; row t of `logits` is what follows token t."""
    losses = [-logits[token - 1].double().log_softmax(-1)[ids[token]].item() for token in scored]
    return math.exp(sum(losses) / len(losses))


def afresh(model, ids: Sequence[int], cache: int) -> torch.Tensor:
    """Logits (T, V), each row of a forward over the last `cache` tokens."""
    with torch.inference_mode():
        rows = [
            model(torch.tensor([ids[max(0, end - cache) : end]]), use_cache=False).logits[0, -1]
            for end in range(1, len(ids) + 1)
        ]
    return torch.stack(rows)


@pytest.fixture(scope="module")
def found(llama) -> dict[str, Result]:
    return results(llama)


def test_every_method_is_read_once_in_this_order(found):
    assert list(found) == [
        "dense",
        "window 16",
        "recompute 16",
        "1 sink + 15",
        "4 sinks + 12",
        "4 line breaks + 12",
    ]
    assert {result.scored for result in found.values()} == {len(COMMON)}
    assert {result.read for result in found.values()} == {TOKENS}
    assert [result.scored_of_all for result in found.values()] == [99, 99, len(COMMON), 99, 99, 99]
    assert {result.ended for result in found.values()} == {""}


@pytest.mark.parametrize(("label", "sinks"), [("window 16", 0), ("1 sink + 15", 1), ("4 sinks + 12", 4)])
def test_a_cache_is_scored_as_the_plain_reference(llama, found, label, sinks):
    ids = ids_of()
    logits = reference_logits(llama, ids, EvictTokens(1), capacity=CACHE, pinned=sinks)
    assert found[label].perplexity == pytest.approx(plain_perplexity(logits, ids, COMMON), rel=1e-4)
    assert found[label].perplexity_of_all == pytest.approx(plain_perplexity(logits, ids, range(1, TOKENS)), rel=1e-4)
    others = [result.perplexity for name, result in found.items() if name != label]
    assert found[label].perplexity not in [pytest.approx(other, rel=1e-3) for other in others]


def test_dense_is_scored_as_one_forward_over_all(llama, found):
    ids = ids_of()
    with torch.inference_mode():
        logits = llama(torch.tensor([ids]), use_cache=False).logits[0]
    assert found["dense"].perplexity == pytest.approx(plain_perplexity(logits, ids, COMMON), rel=1e-4)
    assert found["dense"].perplexity_of_all == pytest.approx(
        plain_perplexity(logits, ids, range(1, TOKENS)), rel=1e-4
    )


def test_recompute_is_scored_as_a_forward_over_the_last_tokens_for_each(llama, found):
    ids = ids_of()
    logits = afresh(llama, ids, CACHE)
    assert found["recompute 16"].perplexity == pytest.approx(plain_perplexity(logits, ids, COMMON), rel=1e-4)
    one_less = afresh(llama, ids, CACHE - 1)
    assert found["recompute 16"].perplexity != pytest.approx(plain_perplexity(one_less, ids, COMMON), rel=1e-3)


def test_line_breaks_stand_in_place_of_the_first_tokens(llama, found):
    ids = ids_of("\n\n\n\n" + TEXT[4:])
    assert ids[4:] == ids_of()[4:]
    logits = reference_logits(llama, ids, EvictTokens(1), capacity=CACHE, pinned=4)
    assert found["4 line breaks + 12"].perplexity == pytest.approx(plain_perplexity(logits, ids, COMMON), rel=1e-4)


def test_the_parts_add_up_to_the_whole(found):
    for result in found.values():
        assert sum(block.count for block in result.blocks) == result.scored_of_all
        total = sum(block.total for block in result.blocks)
        assert math.exp(total / result.scored_of_all) == pytest.approx(result.perplexity_of_all)
        assert all(block.start < block.stop <= TOKENS for block in result.blocks)


def test_a_model_that_cannot_be_read_in_bands_is_read_one_by_one():
    model, ids = tiny_model("stablelm", 2), ids_of()
    plan = replace(PLAN, kinds=("streaming",), sinks=(4,), line_breaks=False)
    begun = started(model, plan)
    assert begun.subject.notes == (
        "one token at a time, which is slow: its layers are not told what the forward was",
    )
    *_, result = begun.events
    logits = reference_logits(model, ids, EvictTokens(1), capacity=CACHE, pinned=4)
    assert isinstance(result, Result)
    assert result.perplexity == pytest.approx(plain_perplexity(logits, ids, COMMON), rel=1e-4)


@pytest.mark.parametrize(
    ("family", "patience", "plan"),
    [
        ("llama", 1, Plan(("dense", "recompute", "streaming"), cache_sizes=(CACHE,), tokens=600)),
        ("stablelm", 30, replace(PLAN, kinds=("streaming",), sinks=(4,), line_breaks=False)),
    ],
    ids=["in bands", "one by one"],
)
def test_a_measurement_that_is_broken_off_again_and_again_comes_to_the_same(family, patience, plan, tmp_path: Path):
    model = tiny_model(family, 2)
    expected = {label: figures(result) for label, result in results(model, plan).items()}
    got: dict[str, Result] = {}
    reached: dict[str, int] = {}
    runs = 0
    while len(got) < len(expected):
        runs += 1
        events = started(model, plan, resume=tmp_path / "measurement").events
        told = 0
        for event in events:
            if isinstance(event, Result):
                got[event.method.label] = event
                continue
            label, read = event.so_far.method.label, event.so_far.read
            told += read > reached.get(label, 0)  # dense reads again what it knew
            reached[label] = read
            if told == patience:
                break
        events.close()
    assert runs > 3
    assert {label: figures(result) for label, result in got.items()} == expected


def figures(result: Result) -> tuple[object, ...]:
    """What does not depend on the clock."""
    return (
        result.perplexity,
        result.scored,
        result.perplexity_of_all,
        result.scored_of_all,
        result.read,
        result.blocks,
    )


def test_what_was_measured_is_not_measured_again(llama, tmp_path: Path):
    file = tmp_path / "measurement"
    first = results(llama, replace(PLAN, line_breaks=False), resume=file)
    events = list(started(llama, PLAN, resume=file).events)
    assert [event.so_far.method.label for event in events if isinstance(event, Progress)] == [
        "4 line breaks + 12"
    ] * 2
    again = {event.method.label: event for event in events if isinstance(event, Result)}
    assert {label: again[label] for label in first} == first


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"every": 6}, "--every"),
        ({"tokens": 99}, "text, or number of tokens"),
        ({"cache_sizes": (16, 32)}, "largest cache"),
    ],
)
def test_a_measurement_of_something_else_is_refused(llama, tmp_path: Path, change, what):
    file = tmp_path / "measurement"
    plan = replace(PLAN, kinds=("window",), line_breaks=False)
    results(llama, plan, resume=file)
    with pytest.raises(UsageError) as refused:
        started(llama, replace(plan, **change), resume=file)
    assert refused.value.message == f"--resume {file} was measured with another {what}"


def test_a_measurement_of_another_model_is_refused(llama, tmp_path: Path):
    file = tmp_path / "measurement"
    plan = replace(PLAN, kinds=("window",), line_breaks=False)
    results(llama, plan, resume=file)
    with pytest.raises(UsageError, match="was measured with another model"):
        started(tiny_model("llama", seed=5), plan, resume=file)


@pytest.mark.parametrize("content", [b"", b"something else", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_file_that_is_no_measurement_is_refused_and_left_alone(llama, tmp_path: Path, content):
    file = tmp_path / "thesis"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="holds no measurement of perplexity"):
        started(llama, resume=file)
    assert file.read_bytes() == content


def test_a_file_in_no_folder_is_refused(llama, tmp_path: Path):
    with pytest.raises(UsageError, match="there is no folder"):
        started(llama, resume=tmp_path / "nowhere" / "measurement")


def test_dense_ends_where_memory_does(llama):
    ids = ids_of() * 12
    room = iter([10**9, 10**9, 10**9, 1000])
    reading = DenseReading(llama, ids, free=lambda device: next(room))
    read: list[Losses] = []
    with pytest.raises(ReadingEnded, match=r"out of memory: 0\.0 GiB are free"):
        read.extend(reading.losses(1))
    assert [losses.first for losses in read] == [1, 257, 513]


def test_dense_ends_where_positions_do():
    model = tiny_model("gpt2", n_positions=64)
    found = results(model, Plan(kinds=("dense",), tokens=TOKENS, every=1))
    assert (found["dense"].read, found["dense"].ended) == (65, "this model has no positions past 64")
    ids = ids_of()
    with torch.inference_mode():
        logits = model(torch.tensor([ids[:64]]), use_cache=False).logits[0]
    assert found["dense"].perplexity == pytest.approx(plain_perplexity(logits, ids, range(1, 65)), rel=1e-4)


def test_a_model_that_cannot_stream_is_refused_before_anything_is_read():
    with pytest.raises(CannotStream) as refused:
        started(tiny_model("gpt2"), replace(PLAN, kinds=("dense", "window"), line_breaks=False))
    assert refused.value.hint == "a model with rotary positions, or --methods dense"


def test_a_cache_larger_than_the_trained_length_is_refused():
    model = tiny_model("llama", max_position_embeddings=64)
    with pytest.raises(UsageError, match="--cache-size 80 is more than the 64 positions Tiny was trained on"):
        started(model, replace(PLAN, cache_sizes=(80,)))


def test_the_default_cache_is_what_the_model_was_trained_on_where_that_is_less():
    model = tiny_model("llama", max_position_embeddings=64)
    assert started(model, Plan(tokens=80)).subject.first == 64


def test_a_text_shorter_than_the_cache_is_refused_with_what_is_lacking(llama):
    with pytest.raises(InputError) as refused:
        started(llama, replace(PLAN, cache_sizes=(64,)), "x" * 60)
    assert (refused.value.message, refused.value.hint) == (
        "stdin is 60 tokens, 5 too few to fill a cache of 64 and score one more",
        "a longer text",
    )


def test_progress_tells_what_is_left(llama):
    now = iter(range(1000))
    plan = replace(PLAN, kinds=("dense",), tokens=600, line_breaks=False, cache_sizes=(16,))
    events = started(llama, plan, clock=lambda: float(next(now))).events
    first, second, third, result = events
    assert [event.so_far.read for event in (first, second, third)] == [257, 513, 600]
    assert [event.seconds_left for event in (first, second, third)] == [
        pytest.approx(343 / 256),
        pytest.approx(2 * 87 / 512),
        0.0,
    ]
    assert isinstance(result, Result)
    assert result.seconds == 3.0
    assert result.tokens_per_s == pytest.approx(599 / 3)


def test_a_slow_measurement_is_saved_while_it_goes_on(llama, tmp_path: Path):
    hours = iter(range(0, 10**6, 3600))
    file = tmp_path / "measurement"
    plan = replace(PLAN, kinds=("window",), tokens=600, line_breaks=False)
    events = started(llama, plan, resume=file, clock=lambda: float(next(hours))).events
    next(events)
    assert not file.exists()
    next(events)
    assert file.exists()
    again = started(llama, plan, resume=file).events
    assert next(again).so_far.read > 257


def test_without_streaming_there_is_no_row_for_sinks():
    plan = Plan(kinds=("dense", "recompute"), cache_sizes=(8, 16))
    assert plan.methods(plan.cache_sizes) == (Method("dense"), Method("recompute", 8), Method("recompute", 16))


@pytest.mark.model
def test_on_smollm2_sinks_keep_the_perplexity_and_a_bare_window_loses_it(smollm2):
    from pydoc_data.topics import topics

    text = topics["assignment"] + topics["class"] + topics["import"]
    plan = Plan(cache_sizes=(64,), tokens=400, every=5)
    events = start_perplexity(smollm2, TextSource("-", io.BytesIO(text.encode())), plan).events
    by_kind = {event.method.kind: event.perplexity for event in events if isinstance(event, Result)}
    assert by_kind["streaming"] < 1.10 * by_kind["recompute"], by_kind
    assert by_kind["window"] > 1.5 * by_kind["recompute"], by_kind
    assert by_kind["dense"] < by_kind["streaming"], by_kind
