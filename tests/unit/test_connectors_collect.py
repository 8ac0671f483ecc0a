"""The collect sink: order, privacy and cleaning up."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from crosscut.connectors.files.collect import collect
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.testing.sinks import open_writer, permit, stage


def write(
    sink: Sink, index: int, checkpoint_id: int, records: list[object], epoch: int = 1, restore: int = 0
) -> None:
    writer = open_writer(sink, epoch, task=TaskId(VertexId("v"), index), restore=restore)
    writer.commit(permit(checkpoint_id, epoch), [stage(writer, records, checkpoint_id)])
    writer.close()


def test_records_come_by_task_then_checkpoint_then_as_written() -> None:
    rows = collect()
    assert rows.records() == []
    for index, checkpoint_id, epoch, restore in ((10, 1, 1, 0), (2, 9, 2, 0), (10, 2, 3, 1), (2, 10, 4, 9)):
        write(rows, index, checkpoint_id, [(index, checkpoint_id, i) for i in range(2)], epoch, restore)
    expected = [(2, 9), (2, 10), (10, 1), (10, 2)]
    assert rows.records() == [(*name, i) for name in expected for i in range(2)]


def test_after_clear_it_is_empty_and_can_be_used_again() -> None:
    rows = collect()
    write(rows, 0, 1, ["a"])
    stage(orphan := open_writer(rows, 1), ["b"], 2)
    rows.clear()
    orphan.close()
    assert rows.records() == []
    write(rows, 0, 1, ["c"])
    assert rows.records() == ["c"]


def test_the_temporary_directory_is_private_and_goes_with_the_object() -> None:
    rows = collect()
    rows.check()
    directory = Path(pickle.loads(pickle.dumps(rows)).directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    del rows
    gc.collect()
    assert not directory.exists()


def test_a_copy_in_a_worker_does_not_remove_the_directory() -> None:
    rows = collect()
    copy = pickle.loads(pickle.dumps(rows))
    write(copy, 0, 1, ["a"])
    del copy
    gc.collect()
    assert rows.records() == ["a"]


def test_a_forked_child_does_not_remove_the_directory_of_its_parent() -> None:
    code = (
        "import os, sys\n"
        "from crosscut.connectors.files.collect import collect\n"
        "rows = collect()\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "    rows.check()\n"
        "    print(rows.__reduce__()[1][0])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(found.stdout.strip()).exists()


def test_a_given_directory_stays(tmp_path: Path) -> None:
    rows = collect(tmp_path / "rows")
    write(rows, 0, 1, ["a"])
    del rows
    gc.collect()
    assert collect(tmp_path / "rows").records() == ["a"]


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    """M6: nothing is unpickled that others could have written."""
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConnectorError, match=r"mode 0755, expected 0700.*chmod 700"):
        collect(tmp_path / "open")
    rows = collect(tmp_path / "private")
    write(rows, 0, 1, ["a"])
    (tmp_path / "private").chmod(0o770)
    with pytest.raises(ConnectorError, match="mode 0770"):
        rows.records()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_unpickled(tmp_path: Path) -> None:
    """M6."""
    rows = collect(tmp_path / "rows")
    write(rows, 0, 1, ["a"])
    (file,) = (tmp_path / "rows").glob("part-*")
    os.chown(file, 65_534, 65_534)
    with pytest.raises(ConnectorError, match="belongs to user id 65534"):
        rows.records()


@dataclass(frozen=True)
class Visit:
    page: str


class Runs:
    """Pickles as a call, as a compromised worker may write it."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.witness),)


def test_a_record_that_would_run_code_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    """The driver has the key of the job log, and the connection to Spark."""
    rows, witness = collect(), tmp_path / "witness"
    write(rows, 0, 1, [Visit("/"), {"a": (1, 2.5)}])
    assert rows.records() == [Visit("/"), {"a": (1, 2.5)}]
    write(rows, 0, 2, [1, Runs(witness)], 2, 1)
    with pytest.raises(ConnectorError, match=r"part-.*: it holds posix\.mkdir.*records\(trust=True\)"):
        rows.records()
    assert not witness.exists()
    assert rows.records(trust=True) == [Visit("/"), {"a": (1, 2.5)}, 1, None]
    assert witness.exists()


def test_several_files_and_checkpoints_are_read_as_data_to_their_ends() -> None:
    rows = collect()
    for n in range(1, 4):
        write(rows, 0, n, [Visit(f"/{n}/{i}") for i in range(1_000)] + [n], n, n - 1)
    assert rows.records() == [
        one for n in range(1, 4) for one in [*[Visit(f"/{n}/{i}") for i in range(1_000)], n]
    ]


def test_a_record_that_cannot_be_pickled_is_shown() -> None:
    rows = collect()
    writer = open_writer(rows, 1)
    with pytest.raises(ConnectorError, match=r"records \[<function .* can't be collected"):
        writer.write([lambda: 1])
    writer.close()
