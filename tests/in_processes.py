"""Work done by two processes that share a model: forked, so that they begin at once, and ended by an alarm."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sinkchat.chat.start import follow
from sinkchat.errors import ExitStatus
from sinkchat.parallel.link import Followers, Leader, Order
from sinkchat.parallel.ranks import Ranks

SECONDS = 500


def ranks_in(folder: Path, rank: int, count: int = 2) -> Ranks:
    return Ranks(rank, count, f"test-{os.getppid()}-{abs(hash(folder)) % 10**8}")


class Child:
    """A forked process that does `work`. Its answer, or the exception that ended it, is had by `answer`."""

    def __init__(self, work: Callable[[], Any], at: Path) -> None:
        self._at = at
        self.number = os.fork()
        if not self.number:
            self._be(work)

    def _be(self, work: Callable[[], Any]) -> None:
        try:
            signal.alarm(SECONDS)
            torch.set_num_threads(1)
            self._at.write_bytes(pickle.dumps(work()))
        except BaseException as error:
            self._at.with_suffix(".traceback").write_text(traceback.format_exc())
            self._at.write_bytes(pickle.dumps(error))
        finally:
            os._exit(0)

    def status(self) -> int:
        """Waits for its end: 0, the status with which it left at once, or minus a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])

    def answer(self) -> Any:
        status = self.status()
        assert status == 0, status
        return pickle.loads(self._at.read_bytes())


def obeying(orders: Iterator[Order], *, deaf_to: str) -> Iterator[Order]:
    """The orders, but for one verb."""
    return (order for order in orders if order[0] != deaf_to)


def in_two(folder: Path, lead: Callable[[Followers], Any], *, deaf_to: str = "") -> Any:
    """What `lead` gives on the first of two processes; the other follows it, and must end well."""

    def join(rank: int) -> Ranks:
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
        return ranks_in(folder, rank)

    def first() -> Any:
        with Followers(join(0)) as followers:
            return lead(followers)

    def second() -> ExitStatus:
        ranks = join(1)
        return Leader.met(ranks).serve(lambda orders: follow(obeying(orders, deaf_to=deaf_to), ranks))

    children = [Child(first, folder / "first"), Child(second, folder / "second")]
    led, followed = (child.answer() for child in children)
    if isinstance(led, BaseException):
        raise led
    assert followed == ExitStatus.OK
    return led
