"""Local files: what is made durable when, who may lead where, and what the errors say."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.stores import at, checkpoint, claim, opened

from crosscut.errors import SettingsError, StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.log.writer import Appended, Unknown
from crosscut.store import CheckpointStore, open_store
from crosscut.store.files import Files, LocalFiles, Put, UncertainError

TASK = TaskId(VertexId("vertex"), 0)


class RecordedFsync:
    """fsync that notes what was made durable, and what had which name at that moment."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.seen: list[tuple[str, list[str]]] = []
        self.fail_at: Callable[[str], bool] = lambda path: False

    def __call__(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        names = [entry.name for entry in self._root.rglob("*") if entry.is_file()]
        kind = "file" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "directory"
        self.seen.append((f"{kind} {Path(path).relative_to(self._root)}", sorted(names)))
        if self.fail_at(path):
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(descriptor)


@pytest.fixture
def fsync(tmp_path: Path) -> RecordedFsync:
    return RecordedFsync(tmp_path)


@pytest.fixture
def files(tmp_path: Path, fsync: RecordedFsync) -> Files:
    local = LocalFiles(str(tmp_path), fsync=fsync)
    local.make_directory("log")
    fsync.seen.clear()
    return local


def test_an_entry_is_durable_before_it_has_its_name_and_its_name_before_it_is_reported(
    files: Files, fsync: RecordedFsync
) -> None:
    """D2."""
    assert files.put_if_absent("log/1.json", b"entry") is Put.CREATED
    (first, names_first), (second, names_second) = fsync.seen
    assert first.startswith("file log/temporary-") and "1.json" not in names_first
    assert (second, names_second) == ("directory log", ["1.json"])


def test_a_file_of_the_log_that_a_killed_process_has_left_is_listed_and_deleted(tmp_path: Path) -> None:
    """B1: it died between the file and its name."""
    store = open_store(str(tmp_path))
    assert store.append(at(0), opened(1)) == Appended(at(0))
    assert store.append(at(1), checkpoint(1, 1)) == Appended(at(1))
    left = [f"log/{1:020d}/temporary-{'ab' * 8}", f"log/temporary-{'cd' * 8}"]
    for path in left:
        (tmp_path / path).write_bytes(b"half")
    (tmp_path / "log" / "temporary-of-somebody-else").touch()
    assert store.list_log() == ([at(1)], left)
    assert store.delete_parts(left) == []
    assert store.list_log() == ([at(1)], [])
    assert len(store.delete_parts(["log/temporary-of-somebody-else", f"log/{1:020d}.json"])) == 2


def test_who_still_writes_a_file_that_was_taken_for_a_dead_ones_writes_it_again(tmp_path: Path) -> None:
    """B5: a driver sweeps while another one is about to take over."""
    swept: list[str] = []

    def fsync(descriptor: int) -> None:
        os.fsync(descriptor)
        for path in (tmp_path / "log").glob("temporary-*"):
            if not swept:
                swept.append(path.name)
                path.unlink()

    store = CheckpointStore(LocalFiles(str(tmp_path), fsync=fsync))
    (tmp_path / "log").mkdir()
    assert store.append(at(0), opened(1)) == Appended(at(0))
    assert len(swept) == 1
    assert store.read(at(0)) == opened(1)


def test_a_part_its_directory_and_the_name_of_that_are_durable_before_it_is_reported(
    files: Files, fsync: RecordedFsync
) -> None:
    """D2."""
    files.make_directory("parts")
    fsync.seen.clear()
    for name in ("a", "b"):
        files.write_new(f"parts/7/{name}", (b"one", b"two"))
        # Also the second time: whoever made the directory may not have made it durable.
        assert [path for path, _ in fsync.seen] == [
            "directory parts",
            f"file parts/7/{name}",
            "directory parts/7",
        ]
        fsync.seen.clear()


def test_a_new_store_is_durable_up_to_the_directory_that_existed(tmp_path: Path) -> None:
    """D2."""
    fsync = RecordedFsync(tmp_path)
    LocalFiles(str(tmp_path / "a" / "b"), fsync=fsync)
    assert [path for path, _ in fsync.seen] == ["directory .", "directory a"]


def test_what_another_process_made_visible_is_durable_before_it_is_returned(
    tmp_path: Path, fsync: RecordedFsync
) -> None:
    """D2: it may have died before its own fsync of the directory."""
    assert open_store(str(tmp_path)).append(at(0), opened(1)) == Appended(at(0))
    store = CheckpointStore(LocalFiles(str(tmp_path), fsync=fsync))
    assert store.read(at(0)) == opened(1)
    assert [path for path, _ in fsync.seen] == ["directory log"]
    assert store.tail() == [(at(0), opened(1))]
    assert [path for path, _ in fsync.seen] == ["directory log"] * 2


def test_a_failed_fsync_of_the_file_is_certainly_no_append(
    tmp_path: Path, files: Files, fsync: RecordedFsync
) -> None:
    fsync.fail_at = os.path.isfile
    with pytest.raises(StoreError, match=r"log/0{19}1\.json: Input/output error; check") as caught:
        CheckpointStore(files).append(at(0), opened(1))
    assert not caught.value.ids["damaged"]
    assert os.listdir(tmp_path / "log") == []


def test_a_failed_fsync_of_the_directory_is_an_unknown_outcome(
    tmp_path: Path, files: Files, fsync: RecordedFsync
) -> None:
    """B4: the entry may be gone after a power cut, or not."""
    fsync.fail_at = os.path.isdir
    outcome = CheckpointStore(files).append(at(0), opened(1))
    assert isinstance(outcome, Unknown) and "Input/output error" in outcome.reason
    assert os.listdir(tmp_path / "log") == [f"{1:020d}.json"]


@pytest.mark.parametrize(
    ("code", "is_certain"),
    [(errno.ENOSPC, True), (errno.EOPNOTSUPP, True), (errno.EIO, False), (errno.ESTALE, False)],
)
def test_only_errors_that_say_so_mean_that_a_link_was_not_made(
    files: Files, monkeypatch: pytest.MonkeyPatch, code: int, is_certain: bool
) -> None:
    """B4."""

    def link(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), source, None, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError) as caught:
        files.put_if_absent("log/1.json", b"entry")
    assert isinstance(caught.value, UncertainError) is not is_certain


def test_a_part_whose_write_fails_is_removed(tmp_path: Path, files: Files, fsync: RecordedFsync) -> None:
    for fail_at in (os.path.isfile, lambda path: path.endswith("/7")):
        fsync.fail_at = fail_at
        with pytest.raises(OSError):
            files.write_new("parts/7/x", (b"x" * 100_000,))
        assert os.listdir(tmp_path / "parts" / "7") == []


def test_no_file_is_ever_written_twice(files: Files) -> None:
    files.write_new("parts/7/x", (b"first",))
    with pytest.raises(FileExistsError):
        files.write_new("parts/7/x", (b"second",))
    assert files.read("parts/7/x") == b"first"


def test_directories_and_files_are_for_the_owner_only(tmp_path: Path) -> None:
    """S8."""
    root = tmp_path / "store"
    store = open_store(str(root))
    store.append(at(0), opened(1))
    store.append(at(1), claim(2))
    store.write_part(CheckpointId(1), TASK, Epoch(1), (b"x" * 5_000,))
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../x", "/etc/x", "log/../../x", "log//x", "log/a\0b", "log/.x"]
)
def test_a_path_that_is_not_of_plain_names_is_refused(files: Files, path: str) -> None:
    """M5."""
    for call in (files.read, files.delete, files.delete_directory, files.settle):
        with pytest.raises(StoreError, match="not a path of the checkpoint store"):
            call(path)
    with pytest.raises(StoreError):
        files.put_if_absent(path, b"x")
    with pytest.raises(StoreError):
        files.write_new(path, (b"x",))


@pytest.mark.parametrize("target", ["outside", "outside/secret"])
def test_a_symbolic_link_that_leaves_the_root_is_refused(tmp_path: Path, target: str) -> None:
    """M5."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    files = LocalFiles(str(tmp_path / "root"))
    files.make_directory("parts")
    (tmp_path / "root" / "parts" / "1").symlink_to(tmp_path / target)
    path = "parts/1/secret" if target == "outside" else "parts/1"
    with pytest.raises(StoreError, match="symbolic link"):
        files.read(path)
    with pytest.raises(StoreError, match="symbolic link"):
        files.delete(path)
    with pytest.raises(StoreError, match="symbolic link"):
        files.write_new("parts/1/new", (b"x",))
    assert os.listdir(tmp_path / "outside") == ["secret"]


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    assert open_store(str(tmp_path / "checkpoints")).append(at(0), opened(1)) == Appended(at(0))
    assert open_store(str(tmp_path / "disk")).read(at(0)) == opened(1)


def test_a_file_where_a_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("file", "file/below"):
        with pytest.raises(StoreError, match="is not a directory"):
            open_store(str(tmp_path / root))
    (tmp_path / "log").write_text("")
    with pytest.raises(StoreError, match="log"):
        open_store(str(tmp_path))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a file system that holds no directory of ours")
@pytest.mark.parametrize("root", ["/proc/store", "/proc/store/below/that"])
def test_where_no_directory_can_be_made_the_error_names_the_one_that_failed(root: str) -> None:
    """There, mkdir says of a parent that exists what it says elsewhere of one that does not."""
    with pytest.raises(StoreError, match="can't make /proc/store: No such file or directory; choose"):
        open_store(root)


def test_a_store_that_is_only_looked_at_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such directory"):
        open_store(str(tmp_path / "typo"), create=False)
    assert os.listdir(tmp_path) == []
    assert open_store(str(tmp_path), create=False).tail() == []
    assert os.listdir(tmp_path) == []


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/store").append(at(0), opened(1))
    assert open_store(str(tmp_path / "store")).read(at(0)) == opened(1)


def test_an_entry_that_is_a_fifo_is_an_error_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    os.mkfifo(tmp_path / "log" / f"{1:020d}.json")
    with pytest.raises(StoreError, match="not a regular file"):
        store.tail()


@pytest.mark.parametrize("url", ["nonsense://x", "simplecache::memory://x"])
def test_a_file_system_without_atomic_put_if_absent_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="checkpoint_dir="):
        open_store(url)
