"""Each pair of a supported Spark and Python, in a fresh environment that has nothing but the wheel.

`python -m tests.versions [--spark 4.1] [--python 3.12]` builds the wheel, installs it with the newest release
of that Spark and of everything else, runs the demo and `version_checks.py`, and prints a matrix. Exits with 0
if all pairs pass, with 1 if one fails, with 2 if there is nothing to try, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crosscut.spark.cluster.versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[1]
CHECKS_PROGRAM = Path(__file__).with_name("version_checks.py")
EXTRAS = "fast,parquet"
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "src")
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
INSTALL_TIMEOUT_S = 1200.0
TEST_INSTALL_TIMEOUT_S = 450.0
"""Less than a test may take; what pip has fetched by then is in its cache for the next try."""
CHECK_TIMEOUT_S = 600.0
CHECKS = ("demo", "micro-batch", "dataframe", "restore")
TAIL_LINES = 15
"""Of the output of a failed command."""


class CommandError(Exception):
    """A command failed or took too long; the text has the end of its output."""


def sparks() -> list[str]:
    """Return the supported versions of Spark, oldest first."""
    (major, first), (_, last) = OLDEST, NEWEST
    return [f"{major}.{minor}" for minor in range(first, last + 1)]


def pythons() -> list[str]:
    """Return the versions of Python to try: those of the classifiers."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    minors = sorted(int(found[1]) for one in classifiers if (found := re.search(r":: 3\.(\d+)$", one)))
    return [f"3.{minor}" for minor in minors]


def interpreter(version: str) -> Path | None:
    """Return an interpreter of this version: on PATH, of pyenv, or of uv."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += sorted((str(path) for path in pyenv.glob(f"{version}.*/bin/python")), reverse=True)
    if (uv := shutil.which("uv")) is not None:
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", version],
            capture_output=True,
            text=True,
            check=False,
        )
        candidates.append(found.stdout.strip() or None)
    return next((Path(one) for one in candidates if one is not None and _is_version(one, version)), None)


def _is_version(executable: str, version: str) -> bool:
    # A shim of pyenv is on PATH whether or not its version is chosen.
    asked = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([executable, "-c", asked], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def run(*command: object, cwd: Path, timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a process group of its own, which ends with this call.

    Returns:
        Its standard output.

    Raises:
        CommandError: It failed, or took too long.
    """
    words = [str(one) for one in command]
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise CommandError(f"{' '.join(words)}: not done after {timeout_s:.0f} s") from None
    finally:
        _end_group(process)
    if process.returncode != 0:
        tail = "\n".join(f"{output}\n{errors}".strip().splitlines()[-TAIL_LINES:])
        raise CommandError(f"{' '.join(words)}: exit code {process.returncode}\n{tail}")
    return output


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill what the command started and left behind, such as Spark's JVM after a killed driver."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def copy_sources(directory: Path) -> Path:
    """Copy what is packaged: a build leaves files beside the sources."""
    source = directory / "source"
    source.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    return source


def build_wheel(directory: Path) -> Path:
    """Build the wheel of the sources as they are, in `directory`."""
    source = copy_sources(directory)
    run(
        sys.executable, *PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source,
        cwd=directory, timeout_s=INSTALL_TIMEOUT_S,
    )  # fmt: skip
    (wheel,) = directory.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment outside of the repository."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        """Those of this process, without what would lead to other packages or another Python."""
        left_out = {
            "PYTHONPATH",
            "PYTHONHOME",
            "SPARK_HOME",
            "PYSPARK_PYTHON",
            "PYSPARK_DRIVER_PYTHON",
            "COLUMNS",
        }
        return {name: value for name, value in os.environ.items() if name not in left_out}

    def install(self, *arguments: object, timeout_s: float = INSTALL_TIMEOUT_S) -> None:
        self.run(*PIP, "install", "--quiet", *arguments, timeout_s=timeout_s)

    def run(self, *arguments: object, timeout_s: float = CHECK_TIMEOUT_S) -> str:
        """Run its Python, away from the repository."""
        return run(
            self.python, *arguments, cwd=self.directory, timeout_s=timeout_s, environment=self.variables
        )

    def check(self, name: str) -> None:
        """Run one of `CHECKS`.

        Raises:
            CommandError: It failed.
        """
        with tempfile.TemporaryDirectory(prefix="crosscut-check-") as directory:
            if name == "demo":
                command = self.directory / "bin" / "crosscut"
                run(
                    command, "demo", "--plain", cwd=Path(directory), timeout_s=CHECK_TIMEOUT_S,
                    environment=self.variables,
                )  # fmt: skip
            else:
                self.run(CHECKS_PROGRAM, name, directory)


def make_environment(directory: Path, interpreter: Path) -> Environment:
    run(interpreter, "-m", "venv", "--clear", directory, cwd=directory.parent, timeout_s=CHECK_TIMEOUT_S)
    return Environment(directory)


def kept_environment(cache: Path, spark: str, wheel: Path) -> Environment:
    """Return an environment of this Python with a Spark, all else as in `constraints.txt`, and the wheel.

    It is kept in `cache` for the next run, by what is in it; only the wheel is installed anew.
    """
    constraints = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith(("pyspark==", "py4j=="))
    ]
    project = (ROOT / "pyproject.toml").read_text()
    contents = "\n".join([spark, sys.version, sys.executable, project, *constraints])
    directory = cache / f"spark-{spark}-{hashlib.sha256(contents.encode()).hexdigest()[:16]}"
    environment = Environment(directory)
    complete = directory / "complete"
    if not complete.exists():
        for old in cache.glob(f"spark-{spark}-*"):
            shutil.rmtree(old)
        make_environment(directory, Path(sys.executable))
        (directory / "constraints.txt").write_text("\n".join(constraints) + "\n")
        environment.install(
            "--no-compile",
            "-c",
            directory / "constraints.txt",
            f"{wheel}[{EXTRAS}]",
            f"pyspark~={spark}.0",
            timeout_s=TEST_INSTALL_TIMEOUT_S,
        )
        complete.touch()
    environment.install("--force-reinstall", "--no-deps", wheel)
    return environment


@dataclass
class Pair:
    """A Spark and a Python, and what became of each check: "" as long as it has not been run."""

    spark: str
    python: str
    results: dict[str, str] = field(default_factory=dict)
    note: str = ""
    failure: str = ""

    @property
    def has_failed(self) -> bool:
        return bool(self.failure)


def try_pair(pair: Pair, interpreter: Path, wheel: Path, space: Path, console: Console) -> None:
    """Run all checks of one pair in an environment of its own, which is removed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"spark-{pair.spark}-", dir=space) as directory:
        step = "install"
        try:
            console.print(f"Spark {pair.spark}, Python {pair.python}: installing ...", style="dim")
            environment = make_environment(Path(directory) / "environment", interpreter)
            environment.install(f"{wheel}[{EXTRAS}]", f"pyspark~={pair.spark}.0")
            asked = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
            found_spark, found_python = environment.run("-c", asked).split()
            pair.note = f"{found_spark}, {found_python}"
            for step in CHECKS:
                before = time.monotonic()
                environment.check(step)
                pair.results[step] = f"exact, {time.monotonic() - before:.0f} s"
                console.print(
                    f"Spark {pair.spark}, Python {pair.python}: {step}: {pair.results[step]}", style="dim"
                )
        except CommandError as error:
            pair.results[step], pair.failure = "failed", str(error)
            console.print(
                f"Spark {pair.spark}, Python {pair.python}: {step}: failed\n{error}",
                style="red",
                markup=False,
            )
    console.print(f"Spark {pair.spark}, Python {pair.python}: {time.monotonic() - began:.0f} s", style="dim")


def matrix(pairs: Sequence[Pair]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for title in ("Spark", "Python", "install", *CHECKS, "releases"):
        table.add_column(title, no_wrap=True)
    for pair in pairs:
        installed = pair.results.get("install", "yes" if pair.note else "-")
        table.add_row(
            pair.spark, pair.python, installed, *(pair.results.get(name, "-") for name in CHECKS), pair.note
        )
    return table


@contextmanager
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="crosscut-versions-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.versions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--spark", action="append", choices=sparks(), help="only this one; may be repeated")
    parser.add_argument("--python", action="append", choices=pythons(), help="only this one; may be repeated")
    asked = parser.parse_args(arguments)
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    interpreters: dict[str, Path] = {}
    for version in asked.python or pythons():
        found = interpreter(version)
        if found is None:
            console.print(
                f"Python {version} is left out: this machine has none (python{version}, pyenv, uv)."
            )
        else:
            interpreters[version] = found
    pairs = [Pair(spark, python) for python in interpreters for spark in asked.spark or sparks()]
    if not pairs:
        return 2
    tried: list[Pair] = []
    try:
        with workspace() as space:
            console.print("Building the wheel ...", style="dim")
            wheel = build_wheel(space)
            for pair in pairs:
                tried.append(pair)
                try_pair(pair, interpreters[pair.python], wheel, space, console)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        console.print(matrix(tried))
        return 130
    console.print(matrix(tried))
    return 1 if any(pair.has_failed for pair in tried) else 0


if __name__ == "__main__":
    # Also where a shell has started this in the background, which ignores SIGINT there, and when CI gives up:
    # the checks that run are ended, and the environments removed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
