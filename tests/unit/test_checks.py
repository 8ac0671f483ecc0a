"""What is refused before a job starts."""

import pytest

from crosscut.errors import SettingsError
from crosscut.spark.checks import check_checkpoint_dir


@pytest.mark.parametrize("url", ["memory://checkpoints", "memory:/checkpoints", "memory:"])
def test_a_checkpoint_directory_in_the_memory_of_one_process_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="each worker process has a memory file system of its own"):
        check_checkpoint_dir(url)


@pytest.mark.parametrize("url", ["checkpoints", "/var/memory", "s3://memory/checkpoints", "file:///memory"])
def test_any_other_directory_is_not(url: str) -> None:
    check_checkpoint_dir(url)
