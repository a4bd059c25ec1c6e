"""`sinkchat doctor`: what this machine and this terminal can do, and what to do where they cannot.

The status is a word, so that nothing depends on colour; each line is written as soon as it is known.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TextIO

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.models.diagnosis import Finding, Probe, examined, is_writable, machine_probes
from sinkchat.terminal.asked.config import CONFIG_FILE, Key, read_config
from sinkchat.terminal.asked.request import request_for
from sinkchat.terminal.environment import ColorChoice, Environment
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.screen import Screen

_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def diagnose(
    environment: Environment,
    keys: Sequence[Key],
    *,
    offline: bool = False,
    as_json: bool = False,
    color: ColorChoice = "auto",
) -> ExitStatus:
    """Writes every finding to stdout. `UNEXPECTED` where something fails."""
    findings = examined(chain(surroundings(environment, keys), machine_probes(offline=offline)))
    screen = Screen.on(environment.stdout, environment, color)
    if as_json:
        found = list(findings)
        screen.line(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        found = list(_told(findings, screen, environment.stdout))
    return ExitStatus.UNEXPECTED if any(finding.status == "FAIL" for finding in found) else ExitStatus.OK


def _told(findings: Iterator[Finding], screen: Screen, stdout: TextIO) -> Iterator[Finding]:
    """The findings, each written before the next is looked for."""
    for finding in findings:
        status = screen.styled(f"{finding.status:<4}", _STYLES[finding.status])
        stdout.write(f"{status}  {finding.subject:<12}  {screen.encodable(one_line(finding.fact))}\n")
        if finding.fix and finding.status != "ok":
            stdout.write(f"{'':<4}  {'fix:':<12}  {screen.encodable(one_line(finding.fix))}\n")
        stdout.flush()
        yield finding


def surroundings(environment: Environment, keys: Sequence[Key]) -> tuple[Probe, ...]:
    """What is known without a model library: the terminal, the file of options, the place of the history."""
    return (
        Probe("terminal", lambda: _terminal(environment)),
        Probe("config", lambda: _config(environment, keys)),
        Probe("state", lambda: _state(environment)),
    )


def _terminal(environment: Environment) -> Finding:
    stream, variables = environment.stdout, environment.variables
    encoding = stream.encoding or "utf-8"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    if not stream.isatty():
        facts = ["stdout is no terminal"]
    else:
        columns, rows = _size(environment)
        facts = [f"{columns} x {rows}" if columns else "of unknown size"]
        facts.append("colour" if environment.is_coloured(stream, "auto") else "no colour")
    facts += [encoding.upper(), f"TERM={variables.get('TERM') or '(not set)'}"]
    if variables.get("TMUX"):
        facts.append("in tmux")
    if environment.is_accessible:
        facts.append("accessible mode")
    fact = ", ".join(facts)
    if not is_utf8:
        return Finding("terminal", fact, "warn", "a UTF-8 locale, such as LC_ALL=C.UTF-8, or --ascii")
    return Finding("terminal", fact)


def _size(environment: Environment) -> tuple[int, int]:
    try:
        return os.get_terminal_size(environment.stdout.fileno())
    except (OSError, ValueError):
        return 0, 0


def _config(environment: Environment, keys: Sequence[Key]) -> Finding:
    path = environment.config_folder / CONFIG_FILE
    try:
        chosen = read_config(environment.config_folder, keys)
        request_for(chosen)  # refuses what is out of its range
    except UsageError as error:
        return Finding("config", error.message, "FAIL", error.hint or f"correct {path}")
    if not path.exists():
        return Finding("config", f"{path}, not there: all options as built in")
    return Finding("config", f"{path}, {', '.join(name.replace('_', '-') for name in chosen) or 'nothing chosen'}")


def _state(environment: Environment) -> Finding:
    folder = environment.state_folder
    if is_writable(folder):
        return Finding("state", f"{folder}, can be written")
    return Finding("state", f"{folder} cannot be written", "warn", "set XDG_STATE_HOME, or --no-history")
