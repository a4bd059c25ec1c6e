"""The oldest and the newest transformers that pyproject allows, each in its own environment: `pytest -m versions`.

What the other tests say of families, caches, templates, loading, compiled steps and several processes is asked again
there, `slow` ones too. An environment holds one transformers with what it pins, and sees everything else, torch
above all, where this one has it. So nothing large is fetched; without a package index all of this is skipped.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from packaging.version import Version

from sinkchat.lab.families.configs import STREAMING

TESTS = Path(__file__).parent
pytestmark = [pytest.mark.versions, pytest.mark.timeout(3 * 3600)]

STATED = re.findall(r'"transformers>=([\d.]+)"', (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
VERSIONS = "import torch, transformers; print(transformers.__version__, torch.__version__)"
NOT_SUPPORTED = "4.57.6"
SUITE = (
    "test_families.py",
    "test_cache.py",
    "test_cache_oracles.py",
    "test_probe.py",
    "test_template.py",
    "test_template_families.py",
    "test_models_loading.py",
    "test_models_gguf.py",
    "test_models_conversion.py",
    "test_models_quantization.py",
    "test_models_shipped.py",
    "test_int4_loading.py",
    "test_sections.py",
    "test_compilation.py",
    "test_graph.py",
    "test_parallel.py",
    "test_parallel_ends.py",
)
OF_EACH_FAMILY = 7
"""tests in test_families.py that look at a row"""
AT_LEAST = 1_150
"""tests of the suite that neither a compiler nor a download can keep from passing"""


@dataclass(frozen=True)
class Outcome:
    """How the tests went, by name: `test_probe.test_this[llama]`."""

    status: int
    passed: frozenset[str]
    failed: frozenset[str]
    skipped: Mapping[str, str]
    """why"""
    told: str

    @property
    def families(self) -> dict[str, int]:
        """How many tests of its row each family has passed."""
        of_families = [name for name in self.passed if name.startswith("test_families.")]
        return {family: sum(name.endswith(f"[{family}]") for name in of_families) for family in STREAMING}


class Environment:
    """A virtual environment in `folder` with what `requirement` asks for, in front of all that is installed here."""

    def __init__(self, folder: Path, requirement: str) -> None:
        venv.create(folder, with_pip=True)
        self._folder = folder
        self._python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        own = Path(self.said("import sysconfig; print(sysconfig.get_path('purelib'))"))
        behind = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in behind]
        (own / "behind.pth").write_text("".join(lines), encoding="utf-8")
        self._install(requirement)

    def _install(self, requirement: str) -> None:
        done = self._run(
            "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--upgrade", requirement
        )
        if done.returncode and ("connection broken" in done.stdout or "from versions: none" in done.stdout):
            pytest.skip(f"{requirement} cannot be had: no package index is reachable")
        assert done.returncode == 0, done.stdout

    def said(self, program: str) -> str:
        """What a program writes there."""
        done = self._run("-c", program)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def run(self, *tests: str | Path) -> Outcome:
        """Runs `tests`, the slow ones too. Those of SmolLM2 take it from where it is kept, or are skipped."""
        report = self._folder / "report.xml"
        wanted = ["-m", "not gpu and not versions", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"]
        done = self._run("-m", "pytest", *wanted, *(str(TESTS / name) for name in tests))
        cases = {
            f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": next(iter(case), None)
            for case in ElementTree.parse(report).iter("testcase")
        }
        return Outcome(
            done.returncode,
            passed=frozenset(name for name, why in cases.items() if why is None),
            failed=frozenset(name for name, why in cases.items() if why is not None and why.tag != "skipped"),
            skipped={
                name: why.get("message", "")
                for name, why in cases.items()
                if why is not None and why.tag == "skipped"
            },
            told=done.stdout[-4_000:],
        )

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        command = [str(self._python), *arguments]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, cwd=TESTS.parent, env=variables, text=True, check=False, **both)


@pytest.fixture(scope="module", params=["oldest", "newest"])
def environment(request) -> Iterator[Environment]:
    """An environment with the oldest transformers, and one with the newest that can be had."""
    assert len(STATED) == 1
    is_oldest = request.param == "oldest"
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = Environment(Path(folder), f"transformers=={STATED[0]}" if is_oldest else "transformers")
        found, torch = environment.said(VERSIONS).split()
        if is_oldest:
            assert Version(found) == Version(STATED[0])
        else:
            assert Version(found) >= Version(version("transformers"))
        assert torch == version("torch")
        yield environment


def test_all_that_is_said_of_models_holds_with_the_oldest_and_the_newest(environment):
    outcome = environment.run(*SUITE)
    assert (outcome.status, sorted(outcome.failed)) == (0, []), outcome.told
    assert outcome.families == dict.fromkeys(STREAMING, OF_EACH_FAMILY)
    assert len(outcome.passed) >= AT_LEAST, outcome.skipped


def test_a_failure_there_is_seen(environment, tmp_path):
    planted = tmp_path / "test_planted.py"
    planted.write_text("def test_right(): pass\ndef test_wrong(): assert False, 'as planted'\n")
    outcome = environment.run(planted)
    assert outcome.status == 1
    assert (outcome.passed, outcome.failed) == ({"test_planted.test_right"}, {"test_planted.test_wrong"})


def test_a_version_that_is_not_supported_is_seen_to_fail(tmp_path):
    outcome = Environment(tmp_path, f"transformers=={NOT_SUPPORTED}").run("test_probe.py")
    assert outcome.status != 0
    assert outcome.passed == set()
