"""What all tests share: hypothesis behaves the same everywhere, and tests/process carries its mark."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.left_behind import changes, shared_state

from crosscut.testing.s3 import S3Server

# Side by side, tests are told the width of a terminal: what they start would cut its lines there.
os.environ.pop("COLUMNS", None)
# Else each of the hundreds of processes that tests start would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A deadline measures the machine, not the code, and so does "too slow"; a failure must come again at the next
# run.
hypothesis.settings.register_profile(
    "crosscut",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("prove", hypothesis.settings.get_profile("crosscut"))
hypothesis.settings.load_profile("crosscut")

_TESTS = Path(__file__).parent
_PROCESS_TESTS = _TESTS / "process"
_SLOWEST_FIRST = ("process", "conformance", "simulation", "property", "conversations", "unit")
"""The order of directories in a run with several processes: at the end only small files are left to share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-conversations",
        action="store_true",
        help="write the texts of tests/conversations as the conversations are now",
    )

    parser.addoption(
        "--prove", action="store_true", help="run the tests that are marked proof too: `make prove`"
    )

    parser.addoption(
        "--rewrite-pictures",
        action="store_true",
        help="take the pictures of the guide anew, in tests/process/test_page.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--prove"):
        # Before tests are imported, which ask how many examples there are.
        hypothesis.settings.load_profile("prove")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named_by_place = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named_by_place:
        raise pytest.UsageError(
            f"{named_by_place[0]}: the name holds an address, which differs between the processes of "
            f"xdist: give the parameters ids"
        )
    if not config.getoption("--prove"):
        left_out = [item for item in items if item.get_closest_marker("proof")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        if _PROCESS_TESTS in item.path.parents:
            item.add_marker(pytest.mark.process)
    if hasattr(config, "workerinput"):
        items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    directory = item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""
    return _SLOWEST_FIRST.index(directory) if directory in _SLOWEST_FIRST else 0


def pytest_collection_finish() -> None:
    """Keep what is there now, thousands of tests and their modules, out of all garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One for all tests of this process: fsspec keeps the file systems that it has made of an environment."""
    pytest.importorskip("s3fs", reason="pip install 'crosscut[s3]'")
    pytest.importorskip("moto", reason="pip install 'moto[s3]' flask flask-cors")
    with S3Server() as server:
        yield server


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    """Fail the test that changes what the others of its process find, and not one of those."""
    before = shared_state()
    yield
    changed = changes(before, shared_state())
    assert not changed, f"this test leaves changed for those after it, as (before, after): {changed}"
