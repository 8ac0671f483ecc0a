"""Which Java is chosen, and what Java says of itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import crosscut.spark.cluster.java
from crosscut.errors import SettingsError
from crosscut.spark.cluster.java import Java, find_java, parsed_settings

OPENJDK_17 = """Property settings:
    file.encoding = UTF-8
    java.home = /usr/lib/jvm/java-17-openjdk-amd64
    java.specification.maintenance.version = 1
    java.specification.name = Java Platform API Specification
    java.specification.version = 17
    java.vm.specification.version = 17

openjdk version "17.0.15" 2025-04-15
"""
OPENJDK_8 = """Property settings:
    java.home = /opt/java 8/jre
    java.specification.version = 1.8
    java.vm.specification.version = 1.8
"""
EARLY_ACCESS_26 = """Eigenschaftseinstellungen:
    java.home = /opt/jdk-26
    java.specification.version = 26
    java.version = 26-ea
"""


def fake_java(home: Path, prints: str, exit_code: int = 0) -> Path:
    """Make `home`/bin/java a program that prints `prints` where Java prints its settings."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'END'\n{prints}END\nexit {exit_code}\n")
    program.chmod(0o700)
    return home


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPENJDK_17, (Path("/usr/lib/jvm/java-17-openjdk-amd64"), 17)),
        (OPENJDK_8, (Path("/opt/java 8/jre"), 8)),
        (EARLY_ACCESS_26, (Path("/opt/jdk-26"), 26)),
        (OPENJDK_17.replace("\n", "\r\n"), (Path("/usr/lib/jvm/java-17-openjdk-amd64"), 17)),
        ('openjdk version "17.0.15" 2025-04-15\n', None),
        ("", None),
    ],
    ids=["17", "8", "26 early access, in German", "17 on Windows", "banner only", "nothing"],
)
def test_home_and_version_are_read_from_the_settings(text: str, expected: tuple[Path, int] | None) -> None:
    assert parsed_settings(text) == expected


def test_java_home_comes_before_java_on_path(tmp_path: Path) -> None:
    first, second = tmp_path / "first", fake_java(tmp_path / "second", OPENJDK_17)
    fake_java(first, EARLY_ACCESS_26)
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert found == Java(Path("/opt/jdk-26"), 26, bundled=False)


def test_java_on_path_is_used_if_java_home_is_too_old(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", OPENJDK_8), fake_java(tmp_path / "new", OPENJDK_17)
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).version == 17


@pytest.mark.parametrize("exit_code", [0, 1], ids=["too old", "broken"])
def test_a_java_that_cannot_run_spark_gives_way_to_the_bundled_one(tmp_path: Path, exit_code: int) -> None:
    java = fake_java(tmp_path / "java", OPENJDK_8 if exit_code == 0 else OPENJDK_17, exit_code)
    found = find_java({"PATH": str(java / "bin")})
    assert found.bundled and found.version == 21


def test_without_any_java_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crosscut.spark.cluster.java, "find_spec", lambda name: None)
    old = fake_java(tmp_path / "old", OPENJDK_8)
    with pytest.raises(SettingsError) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(old / "bin")})
    assert f"JAVA_HOME={tmp_path / 'nothing'} gives no working Java" in str(raised.value)
    assert f"{old / 'bin' / 'java'} is Java 8" in str(raised.value)


@pytest.mark.parametrize("bundled", [True, False])
def test_java_starts_through_a_script_that_leaves_out_only_the_incubator_module(
    tmp_path: Path, *, bundled: bool
) -> None:
    """The bundled runtime lacks it, and every other one warns of it at each start."""
    home = tmp_path / "it's a home"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$JAVA_HOME"\nfor argument do echo "<$argument>"; done\n')
    program.chmod(0o700)
    with Java(home, 21, bundled=bundled).launch_home() as launch_home:

        def printed(*arguments: str) -> list[str]:
            command = [str(launch_home / "bin" / "java"), *arguments]
            environment = {**os.environ, "JAVA_HOME": str(launch_home)}
            found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            return found.stdout.splitlines()

        arguments = ("-cp", "a b", "", "$HOME *")
        shown = ["<-cp>", "<a b>", "<>", "<$HOME *>"]
        assert printed("--add-modules=jdk.incubator.vector", *arguments) == [str(home), *shown]
        # The launcher makes the command line of Spark with the home that it sees.
        assert printed(*arguments) == [str(launch_home), *shown]
    assert not launch_home.exists()
