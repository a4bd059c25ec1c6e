"""What the bench times and what it makes of it: exact, on a clock that stands still between forwards."""

from itertools import islice
from statistics import median

import pytest
from scripted_bench import PLAN, SIZE, scripted_bench

from sinkchat.errors import UsageError
from sinkchat.lab.bench.bench import SETTLING, Plan, Sample
from sinkchat.lab.bench.report import Ratio, Roofline, SizeReport, Subject, TokenTimes, report
from sinkchat.lab.bench.timing import Spread, percentile, ratios, spread

SUBJECT = Subject("Tiny", "none", "float32", "cpu", 2, weight_bytes=1_000_000, kv_bytes_per_token=10_000)


def values(samples: list[Sample], of: str, measure: str) -> list[float]:
    return [sample.value for sample in samples if (sample.of, sample.measure) == (of, measure)]


def one_size(samples: list[Sample], subject: Subject = SUBJECT) -> SizeReport:
    (size,) = report(subject, PLAN, samples).sizes
    return size


def test_a_rate_counts_forwards_and_neither_settling_nor_what_comes_before() -> None:
    slow_start = [100.0] * SETTLING
    drawing = {"empty": [[*slow_start, 0.25]], "full": [[*slow_start, 0.5]], "late": [[*slow_start, 1.0, 3.0]]}
    samples = list(scripted_bench(sinkchat=drawing))
    assert values(samples, "sinkchat", "empty") == [4.0, 4.0, 4.0]
    assert values(samples, "sinkchat", "full") == [2.0, 2.0, 2.0]
    assert values(samples, "sinkchat", "late") == [4 / (1 + 3 + 3 + 3)] * 3
    assert values(samples, "sinkchat", "late token") == [1.0, 3.0, 3.0, 3.0] * 3


def test_prefill_is_timed_to_the_first_token() -> None:
    samples = list(scripted_bench())
    assert values(samples, "sinkchat", "prefill") == [64.0] * 3


def test_the_first_token_of_the_last_turns_is_timed_like_that_of_the_first() -> None:
    samples = list(scripted_bench())
    assert values(samples, "sinkchat", "first turn") == [0.5] * 3
    assert values(samples, "sinkchat", "last turn") == [0.5] * 3


def test_every_round_measures_everything_once_and_in_turns() -> None:
    even = {"full": [[1.0]]}
    samples = list(scripted_bench(dense=even, peer=even))
    in_rounds = [(s.of, s.measure) for s in samples if not s.measure.endswith((" token", " turn"))]
    assert in_rounds[0] == ("sinkchat", "cache")
    names = ("sinkchat", "dense", "peer")
    one_round = [
        ("machine", "copy"),
        *((name, "prefill") for name in names),
        ("sinkchat", "empty"),
        ("sinkchat", "full"),
        ("sinkchat", "late"),
        *((name, "full") for name in names[1:]),
        ("recomputed", "full"),
    ]
    assert in_rounds[1:] == one_round * PLAN.rounds


def test_a_ratio_is_taken_within_a_round_before_the_middle_is() -> None:
    samples = list(
        scripted_bench(
            sinkchat={"full": [[1.0], [2.0], [4.0]], "late": [[1.0], [4.0], [4.0]]},
            dense={"full": [[2.0], [2.0], [16.0]]},
        )
    )
    found = {ratio.what: ratio for ratio in one_size(samples).ratios}
    assert found["/ dense"] == Ratio("/ dense", Spread(2.0, 1.0, 4.0, 3))
    assert found["later / full"] == Ratio("later / full", Spread(1.0, 0.5, 1.0, 3), at_least=0.98)
    of_medians = median(values(samples, "sinkchat", "full")) / median(values(samples, "dense", "full"))
    assert found["/ dense"].value.median != of_medians == 1.0


def test_the_slowest_of_a_hundred_tokens_is_the_worst_and_the_second_the_ninety_ninth() -> None:
    plan = Plan(cache_sizes=(200,), rounds=1, tokens=100, windows=1)
    seconds = [1.0] * SETTLING + [float(1 + (37 * index) % 100) for index in range(100)]
    samples = list(scripted_bench(plan, sinkchat={"late": [seconds]}))
    assert one_size(samples).token_times == TokenTimes(100, 50.5, 99.0, 100.0)


def test_the_roofline_is_reached_by_each_round_s_own_copy() -> None:
    samples = list(scripted_bench(copies=[4e6, 8e6, 2e6], sinkchat={"full": [[1.0], [0.5], [2.0]]}))
    nbytes = 1_000_000 + SIZE * 10_000
    shares = [1.0 / (4e6 / nbytes), 2.0 / (8e6 / nbytes), 0.5 / (2e6 / nbytes)]
    assert one_size(samples).roofline == Roofline(nbytes, 4e6 / nbytes, spread(shares))
    assert shares == [0.5, 0.5, 0.5]


def test_growth_is_what_the_process_takes_more_after_the_window_rolled_over() -> None:
    taken = iter([1_000, 1_700])
    size = one_size(list(scripted_bench(resident=lambda: next(taken))))
    assert size.resident_growth == 700
    assert size.figure("sinkchat", "resident full") == Spread(1_000, 1_000, 1_000, 1)
    assert one_size(list(scripted_bench())).resident_growth is None


def test_leaving_the_loop_keeps_a_report_of_what_there_was() -> None:
    everything = list(scripted_bench(dense={}))
    for count in range(1, len(everything), 7):
        samples = list(islice(scripted_bench(dense={}), count))
        late = values(samples, "sinkchat", "late token")
        full = [sample for sample in samples if sample.measure == "full token"]
        size = one_size(samples)
        assert sum(figure.value.count for figure in size.figures) == count - len(late) - len(full)
        assert (size.token_times.count if size.token_times else 0) == len(late)


def test_the_tail_of_a_peer_is_told_beside_ours() -> None:
    slow_start = [100.0] * SETTLING
    samples = scripted_bench(
        sinkchat={"late": [[*slow_start, 2.0, 2.0, 2.0, 3.0]]}, dense={"full": [[*slow_start, 1.0, 1.0, 1.0, 4.0]]}
    )
    tails = {ratio.what: ratio.value.median for ratio in one_size(list(samples)).ratios if "99th" in ratio.what}
    assert tails == {"99th / median token": 1.5, "99th / median, dense": 4.0}


def test_targets_stand_where_they_apply() -> None:
    plan = Plan(cache_sizes=(4096,), rounds=1, tokens=2, windows=1)
    drawing = {"llama.cpp": {}, "dense": {}}
    on_cpu = list(scripted_bench(plan, **drawing))
    aims = {ratio.what: ratio.at_least or ratio.at_most for ratio in one_size(on_cpu).ratios}
    assert aims == {
        "later / full": 0.98,
        "99th / median token": 1.3,
        "99th / median, llama.cpp": None,
        "99th / median, dense": None,
        "/ llama.cpp": 1.25,
        "/ dense": None,
        "/ recomputed": 22.2,
        "prefill / llama.cpp": 3.0,
        "prefill / dense": None,
    }
    on_gpu = Subject("Tiny", "nf4", "bfloat16", "cuda:0", 2, weight_bytes=1, kv_bytes_per_token=1)
    aims = {ratio.what: ratio.at_least for ratio in one_size(on_cpu, on_gpu).ratios}
    assert (aims["/ dense"], aims["/ llama.cpp"], aims["prefill / llama.cpp"]) == (5.0, None, None)


@pytest.mark.parametrize("size", [22, 3])
def test_a_cache_that_is_too_small_to_measure_in_is_refused(size: int) -> None:
    assert Plan(cache_sizes=(23,), tokens=4).prompt(23) == 11
    with pytest.raises(UsageError, match=f"--cache-size {size} is too small to draw 4 tokens in") as caught:
        Plan(cache_sizes=(256, size), tokens=4)
    assert caught.value.hint == "--cache-size 23, or fewer --tokens"


def test_a_percentile_is_a_value_that_was_measured() -> None:
    measured = [9.0, 1.0, 5.0, 3.0]
    assert [percentile(measured, share) for share in (0.25, 0.5, 0.51, 0.99, 1.0)] == [1.0, 3.0, 5.0, 9.0, 9.0]


def test_a_round_that_one_of_two_did_not_finish_makes_no_ratio() -> None:
    assert ratios([4.0, 6.0], [2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert ratios([4.0], []) is None
