"""Keyed state in memory and on a disk, for modules that say whose (`TASK`), in how many groups (`GROUPS`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crosscut.operators.building import NewState
from crosscut.state.keyed import KeyedState
from crosscut.worker.backends import OnDisk


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OnDisk]:
    backend = OnDisk(str(tmp_path / "state"), request.module.GROUPS)
    yield backend
    backend.close()


@pytest.fixture(params=["memory", "rocksdb"])
def new(request: pytest.FixtureRequest, disk: OnDisk) -> NewState:
    return KeyedState if request.param == "memory" else disk.new_state(request.module.TASK)
