"""One of several processes that share a model: the first is the program, the others follow it.

The first starts the others itself, where that was asked for; else `torchrun` may have started all of them alike.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.parallel.ranks import Ranks

if TYPE_CHECKING:
    from sinkchat.parallel.link import Followers, Order


def as_one_of(
    count: int, variables: Mapping[str, str], program: "Callable[[Followers | None], ExitStatus]"
) -> ExitStatus:
    """Runs `program` where this is the first process or the only one, given the others; else follows that.

    Of more than one process that are asked for, the others are started here. Raises UsageError where something else
    has started several.
    """
    if count > 1:
        return _with_others(count, variables, program)
    ranks = Ranks.of(variables)
    if ranks is None:
        return program(None)
    if ranks.rank:
        return _following(ranks)
    from sinkchat.parallel.link import Followers

    with Followers(ranks) as followers:
        return program(followers)


def follow_the_first() -> None:
    """The whole life of a process that the first has started."""
    from sinkchat.parallel.launching import end_with_the_first

    end_with_the_first()
    ranks = Ranks.of(os.environ)
    assert ranks is not None
    raise SystemExit(_following(ranks))


def _with_others(
    count: int, variables: Mapping[str, str], program: "Callable[[Followers | None], ExitStatus]"
) -> ExitStatus:
    if {"RANK", "WORLD_SIZE"} <= variables.keys():
        raise UsageError(
            f"--processes {count} starts processes, and RANK and WORLD_SIZE say that they are started already",
            hint="either --processes or torchrun",
        )
    from sinkchat.parallel.launching import launched

    with launched(count, follow_the_first) as followers:
        return program(followers)


def _following(ranks: Ranks) -> ExitStatus:
    from sinkchat.parallel.link import Leader

    def follow_it(orders: "Iterator[Order]") -> None:
        from sinkchat.chat.start import follow

        follow(orders, ranks)

    return Leader.met(ranks).serve(follow_it)
