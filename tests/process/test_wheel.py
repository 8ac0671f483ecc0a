"""The sdist and the wheel: complete, accepted by `twine check`; the wheel runs in an empty environment."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from tests.versions import ROOT, copy_sources

import crosscut
from crosscut.cli.demo.corpus import write_corpus

DEMO_BYTES = 1_000_000
"""In test_demo.py it has enough to kill a worker in the middle."""

APP = """
import crosscut as cc

flow = cc.Flow("words")
words = flow.source(cc.items(["to", "be", "or", "not", "to", "be"])).named("words")
words.key_by(lambda word: word).count().named("counts").sink(cc.files.write_jsonl("out")).named("out")
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    directory = tmp_path_factory.mktemp("dist")
    # The wheel is built from the unpacked sdist, which is thereby known to be complete.
    run(
        sys.executable, "-m", "build", "--outdir", directory, copy_sources(tmp_path_factory.mktemp("tree")),
        cwd=directory,
    )  # fmt: skip
    (sdist,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture
def wheel(distributions: Distributions) -> Path:
    return distributions.wheel


def test_an_index_would_accept_sdist_and_wheel(distributions: Distributions, tmp_path: Path) -> None:
    pytest.importorskip("twine", reason="pip install twine")
    shown = run(
        sys.executable, "-m", "twine", "check", "--strict", distributions.sdist, distributions.wheel,
        cwd=tmp_path,
    )  # fmt: skip
    assert shown.count("PASSED") == 2


def test_both_have_the_version_of_the_package_and_the_sdist_its_sources(distributions: Distributions) -> None:
    stem = f"crosscut-{crosscut.__version__}"
    assert distributions.sdist.name == f"{stem}.tar.gz"
    assert distributions.wheel.name == f"{stem}-py3-none-any.whl"
    with tarfile.open(distributions.sdist) as archive:
        names = set(archive.getnames())
    assert {f"{stem}/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")} <= names
    assert f"{stem}/src/crosscut/__init__.py" in names


def test_the_wheel_has_what_the_package_needs_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(info).decode())
    ours = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "crosscut").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert ours <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert {"kafka", "metrics", "parquet", "postgres", "rocksdb"} <= set(
        metadata.get_all("Provides-Extra", [])
    )
    assert not any(name.startswith(("tests/", "bench/")) for name in names)


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the wheel is installed in, outside of the repository."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=environment.parent)
    pip = (environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input")
    run(*pip, "install", "--quiet", "--no-deps", distributions.wheel, cwd=environment.parent)
    # What Crosscut needs is taken from here: PySpark alone is hundreds of megabytes. Files that put the
    # sources of this project on the path are not read there. test_oldest_spark.py installs it all.
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return environment


def test_the_demo_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "corpus", DEMO_BYTES)
    program = installed / "bin" / "crosscut"
    shown = run(program, "demo", "--plain", "--input", text, "--kills", "0", cwd=tmp_path)
    assert "each exactly once" in shown


def test_a_flow_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    python = installed / "bin" / "python"
    where = run(python, "-c", "import crosscut; print(crosscut.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    (tmp_path / "app.py").write_text(APP)
    command = installed / "bin" / "crosscut"
    run(command, "doctor", "--checkpoint-dir", tmp_path / "cp", cwd=tmp_path)
    shown = run(command, "run", "app.py", "--checkpoint-dir", tmp_path / "cp", "--web", cwd=tmp_path)
    assert "finished: everything is processed and committed" in shown
    assert "its page: http://127.0.0.1:" in shown
    lines = [line for path in (tmp_path / "out").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(lines) == ['["be",1]', '["be",2]', '["not",1]', '["or",1]', '["to",1]', '["to",2]']
    top = run(command, "top", tmp_path / "cp", cwd=tmp_path)
    assert "words: finished" in top


# README and quickstart, to the letter, with nothing but the wheel.

COMMANDS = {"mkdir", "printf", "python", "cat", "crosscut"}
SAVED_AS = re.compile(r"\(`(\w+\.py)`\):|Save this as `(\w+\.py)`")


def followed(installed: Path, directory: Path, page: str, left_out: tuple[str, ...]) -> dict[str, str]:
    """Save the programs of a page under their names, and run its commands; return what each has printed.

    Args:
        left_out: How commands begin that need a checkout, or run without end.
    """
    path = f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}"
    shown: dict[str, str] = {}
    text = (ROOT / page).read_text(encoding="utf-8")
    for before, language, block in re.findall(r"((?:[^\n]+\n)?\n?)```(\w*)\n(.*?)```", text, re.DOTALL):
        name = SAVED_AS.search(before)
        if language == "python" and name is not None:
            (directory / (name[1] or name[2])).write_text(block)
        elif not language:
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                if command.split(" ", 1)[0] in COMMANDS and not command.startswith(left_out):
                    done = subprocess.run(
                        ["bash", "-ec", command],
                        cwd=directory,
                        env={**os.environ, "PATH": path},
                        capture_output=True,
                        text=True,
                        timeout=600,
                    )
                    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
                    shown[command] = done.stdout
    return shown


def test_the_example_of_the_readme_prints_what_it_says(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    session = text.partition("$ cat events.jsonl\n")[2].partition("```")[0]
    events, _, expected = session.partition("$ python unpaid.py && cat unpaid/*.jsonl\n")
    assert len(events.splitlines()) == 3
    (tmp_path / "events.jsonl").write_text(events)
    shown = followed(installed, tmp_path, "README.md", ("cat",))
    assert shown == {"python unpaid.py && cat unpaid/*.jsonl": expected}


def test_the_quickstart_works_as_it_stands(installed: Path, tmp_path: Path) -> None:
    shown = followed(installed, tmp_path, "docs/guide/quickstart.md", ("crosscut broker",))
    counts = shown["cat error-counts/*.jsonl"].split()
    assert sorted(counts) == ['["ERROR",1]', '["ERROR",2]', '["ERROR",3]', '["WARN",1]']
    assert "finished" in shown["python errors.py"] and "nothing to do" in shown["crosscut run errors.py:flow"]
    (levels,) = [text for command, text in shown.items() if "sqlite3" in command]
    assert sorted(ast.literal_eval(levels)) == [("ERROR", 3), ("INFO", 2), ("WARN", 1)]
