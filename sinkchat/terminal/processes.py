"""One of several processes that `torchrun` has started: the first is the program, the others follow it."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from sinkchat.errors import ExitStatus
from sinkchat.parallel.ranks import Ranks

if TYPE_CHECKING:
    from sinkchat.parallel.link import Followers, Order


def as_one_of(variables: Mapping[str, str], program: "Callable[[Followers | None], ExitStatus]") -> ExitStatus:
    """Runs `program` where this is the first process or the only one, given the others; else follows that."""
    ranks = Ranks.of(variables)
    if ranks is None:
        return program(None)
    from sinkchat.parallel.link import Followers, Leader

    if ranks.rank == 0:
        with Followers(ranks) as followers:
            return program(followers)

    def follow_it(orders: "Iterator[Order]") -> None:
        from sinkchat.chat.start import follow

        follow(orders, ranks)

    return Leader.met(ranks).serve(follow_it)
