"""Which of several processes this is: whoever starts them, ourselves or `torchrun`, tells each in variables.

All are on one machine, and each holds a part of every layer (tensor parallelism, arXiv 1909.08053).
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sinkchat.errors import SinkchatError, UsageError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is number `rank` of `count`. Rank 0 owns the terminal, the others follow it."""

    rank: int
    count: int
    run: str
    """what tells this run from others on the machine"""
    is_elastic: bool = False
    """started by torchrun, which hands Ctrl-C on and then gives thirty seconds to leave"""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Ranks | None":
        """What the variables say; None for a process on its own. Raises UsageError for more than one machine."""
        numbers = [variables.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
        if not all(number.isdecimal() for number in numbers) or int(numbers[1]) < 2:
            return None
        rank, count, port = map(int, numbers)
        if int(variables.get("LOCAL_WORLD_SIZE", count)) != count:
            raise UsageError(
                f"{count} processes on more than one machine: a model is cut across the devices of one",
                hint="sinkchat run MODEL --processes 2",
            )
        return cls(rank, count, str(port), is_elastic="TORCHELASTIC_RUN_ID" in variables)

    @property
    def meeting_place(self) -> Path:
        """The socket at which the others find rank 0, in a folder that is this user's alone."""
        folder = Path(tempfile.gettempdir()) / f"sinkchat-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise SinkchatError(f"{folder} can be entered by others", hint=f"chmod 700 {folder}")
        return folder / f"{self.run}.sock"


def mute_followers(variables: Mapping[str, str]) -> None:
    """Has this process, if it is not rank 0, say nothing on stdout and stderr, whoever writes to them."""
    try:
        ranks = Ranks.of(variables)
    except UsageError:  # all of them say so
        return
    if ranks is None or ranks.rank == 0:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
