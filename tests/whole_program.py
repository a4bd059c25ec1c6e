"""The program as it is installed."""

from sinkchat.__main__ import start

raise SystemExit(start())
