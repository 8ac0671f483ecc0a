"""What all tests share: hypothesis behaves the same everywhere, and tests/process carries its mark."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# Side by side, tests are told the width of a terminal: what they start would cut its lines there.
os.environ.pop("COLUMNS", None)

# A deadline measures the machine, not the code; a failure must come again at the next run.
hypothesis.settings.register_profile("crosscut", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("crosscut")

_PROCESS_TIMEOUT_S = 600
"""Of a whole test: several waits, each with the deadline of jobs.py."""

_PROCESS_TESTS = Path(__file__).parent / "process"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-conversations",
        action="store_true",
        help="write the texts of tests/conversations as the conversations are now",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _PROCESS_TESTS in item.path.parents:
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.timeout(_PROCESS_TIMEOUT_S))
