"""What is refused before a job starts."""

from pathlib import Path

import pytest

from crosscut.errors import SettingsError
from crosscut.spark.checks import check_checkpoint_dir, check_checkpoint_dir_is_private


@pytest.mark.parametrize("url", ["memory://checkpoints", "memory:/checkpoints", "memory:"])
def test_a_checkpoint_directory_in_the_memory_of_one_process_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="each worker process has a memory file system of its own"):
        check_checkpoint_dir(url)


@pytest.mark.parametrize("url", ["checkpoints", "/var/memory", "s3://memory/checkpoints", "file:///memory"])
def test_any_other_directory_is_not(url: str) -> None:
    check_checkpoint_dir(url)


@pytest.mark.parametrize("inside", ["", "log", "parts"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_checkpoint_directory_that_others_may_write_to_is_warned_of_and_refused_if_strict(
    tmp_path: Path, inside: str, mode: int
) -> None:
    """M6: whoever writes there runs code in the workers."""
    for name in ("log", "parts"):
        (tmp_path / name).mkdir(mode=0o700)
    check_checkpoint_dir_is_private(str(tmp_path), strict=True)
    (tmp_path / inside).chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"has mode {mode:04o}"):
        check_checkpoint_dir_is_private(str(tmp_path), strict=False)
    with pytest.raises(SettingsError, match="can run code in the workers"):
        check_checkpoint_dir_is_private(f"file://{tmp_path}", strict=True)


def test_a_checkpoint_directory_of_another_user_is_refused_if_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M6."""
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(SettingsError, match="belongs to user id"):
        check_checkpoint_dir_is_private(str(tmp_path), strict=True)


@pytest.mark.parametrize("url", ["s3://bucket/checkpoints", "/no/such/directory"])
def test_where_there_is_no_local_directory_there_is_nothing_to_check(url: str) -> None:
    check_checkpoint_dir_is_private(url, strict=True)
