"""Small processes for tests of launching, without torch: what the first does, and what the others do."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from sinkchat.errors import DeviceLost
from sinkchat.parallel.launching import end_with_the_first, launched
from sinkchat.parallel.link import Followers, Leader
from sinkchat.parallel.ranks import Ranks

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def main(first: str, other: str, count: int = 2) -> None:
    """The first, which does `first`, with others that do `other`."""
    functions: dict[str, Callable[..., None]] = globals()
    try:
        with launched(count, functions[other]) as followers:
            functions[first](followers)
    except DeviceLost as error:
        print(f"lost: {error}")
    except KeyboardInterrupt:
        print("interrupted")
    print(f"{len(psutil.Process().children())} left")


def leave(followers: Followers) -> None:
    """At once."""


def meet_and_leave(followers: Followers) -> None:
    followers.tell("begin")


def wait(followers: Followers) -> None:
    time.sleep(60)


def meet_and_wait(followers: Followers) -> None:
    followers.tell("begin")
    print("met", flush=True)
    time.sleep(60)


def interrupt_all_at_the_terminal(followers: Followers) -> None:
    """What Ctrl-C does: SIGINT for the whole group of the process that the person started."""
    signal.signal(signal.SIGINT, lambda *_: None)
    os.killpg(0, signal.SIGINT)
    for _ in range(3):
        followers.tell("begin")
        time.sleep(0.1)
    print("all goes on")


def look_around(followers: Followers) -> None:
    followers.tell("begin")
    print(json.dumps({name: os.environ[name] for name in NAMES}))


def try_the_port(followers: Followers) -> None:
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    for reuses in (False, True):
        with socket.socket() as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
            try:
                ours.bind(address)
                ours.listen()
                with socket.create_connection(address):
                    print("had")
            except OSError:
                print("taken")


def known(function: Callable[[], None]) -> None:
    """Leaves the number of this process in the folder, and whatever it finds about itself."""
    facts = {
        "variables": {name: os.environ[name] for name in NAMES},
        "in a session of its own": os.getsid(0) == os.getpid(),
        "stdout": os.path.samestat(os.fstat(1), os.stat(os.devnull)),
    }
    place = Path(os.environ["FOLDER"]) / f"{function.__name__}-{os.environ['RANK']}"
    place.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), **facts}))
    place.with_suffix(".new").rename(place)


def obey() -> None:
    known(obey)
    end_with_the_first()
    ranks = Ranks.of(os.environ)
    assert ranks is not None
    sys.exit(Leader.met(ranks).serve(lambda orders: [None for _ in orders].clear()))


def never_meet() -> None:
    known(never_meet)
    end_with_the_first()
    time.sleep(60)


def never_end() -> None:
    known(never_end)
    time.sleep(60)


def fail() -> None:
    known(fail)
    raise ImportError("there is no torch here")


def die() -> None:
    known(die)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    import launched as itself  # whose functions others can import

    itself.main(*sys.argv[1:3], *map(int, sys.argv[3:]))
