"""A Hugging Face Hub of a few repositories on a loopback port, and a process that loads models from it.

huggingface_hub reads its endpoint when it is imported, so the loading happens in a worker process that
was started with `HF_ENDPOINT`. It is asked one line of JSON at a time, through the public `load_model`.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Repository:
    """What the stub says when it is asked for one repository."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    gated: bool = False
    status: int | None = None
    """answer everything with this status"""
    error_code: str = ""
    page: bytes | None = None
    """answer everything with this page, as a captive portal does"""
    hang_seconds: float = 0.0
    cut: str = ""
    """the name of a file of which only the first half is ever sent"""
    claimed_size: int | None = None
    """the size that is stated for each file"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@dataclass
class StubHub:
    """`repositories` may be added to at any time; `requests` are the lines that came in."""

    repositories: dict[str, Repository]
    requests: list[str]
    endpoint: str


@contextmanager
def stub_hub(repositories: Mapping[str, Repository]) -> Iterator[StubHub]:
    """A Hub that answers on loopback until the block ends."""
    hub = StubHub(dict(repositories), [], "")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _Answer(self, hub).give()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class _Answer:
    handler: BaseHTTPRequestHandler
    hub: StubHub

    def give(self) -> None:
        path = unquote(urlsplit(self.handler.path).path)
        self.hub.requests.append(f"{self.handler.command} {path}")
        about, rest = self._split(path)
        repository = self.hub.repositories.get(about)
        if repository is None:
            return self._send(401, {"X-Error-Code": "RepoNotFound"})
        time.sleep(repository.hang_seconds)
        if repository.page is not None:
            return self._send(200, {}, repository.page)
        if repository.status is not None:
            return self._send(repository.status, {"X-Error-Code": repository.error_code})
        if path.startswith("/api/"):
            return self._api(about, rest, repository)
        return self._file(rest.removeprefix("resolve/").partition("/")[2], repository)

    @staticmethod
    def _split(path: str) -> tuple[str, str]:
        owner, name, rest = (path.removeprefix("/api/models").lstrip("/") + "//").split("/", 2)
        return f"{owner}/{name}", rest.strip("/")

    def _api(self, name: str, rest: str, repository: Repository) -> None:
        verb, _, revision = rest.partition("/")
        if revision not in ("", "main", COMMIT):
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        sizes = {
            file: len(content) if repository.claimed_size is None else repository.claimed_size
            for file, content in repository.files.items()
        }
        if verb == "tree":
            tree = [
                {"type": "file", "path": file, "size": size, "oid": _oid(repository.files[file])}
                for file, size in sizes.items()
            ]
            return self._send(200, {}, json.dumps(tree).encode())
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        info = {"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []}
        return self._send(200, {}, json.dumps(info | {"private": False, "downloads": 0}).encode())

    def _file(self, file: str, repository: Repository) -> None:
        token = self.handler.headers.get("Authorization")
        if repository.gated:
            return self._send(403 if token else 401, {"X-Error-Code": "GatedRepo"})
        content = repository.files.get(file)
        if content is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound"})
        facts = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(content))}
        if file == repository.cut:
            return self._send(200, facts, content, sent=len(content) // 2)
        return self._send(200, facts, content)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"", *, sent: int | None = None) -> None:
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(len(body)))
        self.handler.end_headers()
        if self.handler.command != "HEAD":
            self.handler.wfile.write(body[:sent])
        if sent is not None:
            self.handler.close_connection = True


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What `load_model` gave: the facts of the model, or the error."""

    error: str = ""
    message: str = ""
    hint: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    progress: tuple[str, ...] = ()
    seconds: float = 0.0


class Worker:
    """A process with a surrounding of its own in which models are loaded."""

    def __init__(self, **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            env=inherited | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def load(self, name: str, *, token: str = "", **options: Any) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"name": name, "token": token, "options": options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        outcome = json.loads(self._process.stdout.readline())
        return Outcome(**(outcome | {"progress": tuple(outcome["progress"])}))

    def close(self) -> None:
        self._process.communicate()


_WORKER = """
import json, os, sys, time
from sinkchat.errors import SinkchatError
from sinkchat.models.loading import LoadOptions, load_model

for line in sys.stdin:
    request = json.loads(line)
    os.environ.pop("HF_TOKEN", None)
    if request["token"]:
        os.environ["HF_TOKEN"] = request["token"]
    said, outcome, began = [], {}, time.monotonic()
    try:
        loaded = load_model(request["name"], LoadOptions(**request["options"]), progress=said.append)
        facts = ("name", "quant", "dtype", "device", "max_length", "notes")
        outcome["model"] = {fact: getattr(loaded, fact) for fact in facts}
    except SinkchatError as error:
        outcome = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    outcome |= {"progress": said, "seconds": time.monotonic() - began}
    print(json.dumps(outcome), flush=True)
"""
