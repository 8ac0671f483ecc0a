from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crosscut.host.temporary import TemporaryDirectory
from crosscut.spark.cluster import local_dirs
from crosscut.spark.cluster.local_dirs import LocalDirs, chosen_parents, is_open


def test_a_directory_is_open_only_if_others_may_pass_all_directories_above_it(tmp_path: Path) -> None:
    path = tmp_path / "spark" / "blockmgr"
    path.mkdir(parents=True)

    def with_mode(private: set[Path]) -> bool:
        def status_of(name: str) -> os.stat_result:
            mode = 0o700 if Path(name) in private else 0o755
            return os.stat_result((mode, *[0] * 9))

        return is_open(str(path), status_of)

    real = Path(os.path.realpath(path))
    assert with_mode(set())
    assert not with_mode({real})
    assert not with_mode({real.parent})
    assert not with_mode({Path("/")})


def test_a_directory_is_judged_where_a_symbolic_link_to_it_leads(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    seen: list[str] = []

    def status_of(name: str) -> os.stat_result:
        seen.append(name)
        return os.stat_result((0o755, *[0] * 9))

    assert is_open(str(tmp_path / "link"), status_of)
    assert seen[0] == os.path.realpath(real)


def test_private_directories_are_made_where_the_user_wants_spark_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(local_dirs.tempfile, "gettempdir", lambda: "/default")
    assert chosen_parents() == ["/default"]
    (tmp_path / "spark-defaults.conf").write_text("# spark.local.dir /no\nspark.local.dir  /big, /bigger\n")
    assert chosen_parents() == ["/big", "/bigger"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    made = LocalDirs().make(has_jvm=False)
    assert [os.path.dirname(one) for one in made] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert [os.stat(one).st_mode & 0o777 for one in made] == [0o700, 0o700]


def test_directories_stay_while_a_jvm_may_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    dirs = LocalDirs()
    (first,) = dirs.make(has_jvm=False)
    (second,) = dirs.make(has_jvm=True)
    assert os.path.isdir(first)
    (third,) = dirs.make(has_jvm=False)
    assert [os.path.isdir(one) for one in (first, second, third)] == [False, False, True]
    dirs.remove()
    assert os.listdir(tmp_path) == []


def test_the_next_start_removes_what_a_killed_process_has_left_and_nothing_else(tmp_path: Path) -> None:
    parent = str(tmp_path)
    died = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; from crosscut.host.temporary import TemporaryDirectory as T\n"
            "one = T('crosscut-x-', sys.argv[1]); open(one.path + '/records', 'w').close(); print(one.path)\n"
            "sys.stdout.flush(); os._exit(9)",
            parent,
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    left = died.stdout.strip()
    assert os.path.exists(f"{left}/records")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "lock").touch()
    (tmp_path / "crosscut-x-link").symlink_to(other)
    alive = TemporaryDirectory("crosscut-x-", parent)
    assert not os.path.exists(left)
    another = TemporaryDirectory("crosscut-x-", parent)
    assert os.path.isdir(alive.path) and os.path.isdir(another.path)
    assert (other / "lock").exists()
