"""How many turns a journal tells of, and what its first one is about, from its records alone."""

from collections.abc import Mapping
from typing import Any

from sinkchat.chat.turns import PREVIEW, shorten


class Tally:
    """Counts along while records are written or read. `latest` and `whole` are numbers of turns."""

    def __init__(self, *, latest: int = 0, opening: str = "") -> None:
        self.latest = latest
        """the turn that was begun last and not taken back"""
        self.whole = latest
        """the latest turn that memory has settled after"""
        self.is_empty = not latest and not opening
        """whether no turn was ever begun"""
        self._opening = opening
        self._is_opening = False
        self._before_clearing: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """The beginning of the first message."""
        return shorten(self._opening)

    @property
    def has_title(self) -> bool:
        """Whether the first message is known as far as a title shows it."""
        return bool(self._opening) and (not self._is_opening or len(self._opening) >= 4 * PREVIEW)

    def see(self, record: Mapping[str, Any]) -> None:
        """The next record."""
        match record["op"]:
            case "begin":
                self.latest = self.whole = record.get("turns", 0)
                self._opening = record.get("title", self._opening)
            case "turn":
                self.latest = record.get("number", self.latest + 1)
                self.is_empty = False
            case "settled":
                self.whole = self.latest
            case "keep":
                self.latest = record.get("count", 0)
                self.whole = min(self.whole, self.latest)
            case "clear":
                self._before_clearing = self.latest, self.whole
                self.latest = self.whole = 0
            case "unclear" if self._before_clearing is not None:
                self.latest, self.whole = self._before_clearing
        self._see_opening(record)

    def _see_opening(self, record: Mapping[str, Any]) -> None:
        if record["op"] == "turn":
            self._is_opening = not self._opening
        elif record["op"] != "user":
            self._is_opening = False
        elif self._is_opening and len(self._opening) < 4 * PREVIEW:
            self._opening += record.get("text", "")[: 4 * PREVIEW]
