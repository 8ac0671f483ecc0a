"""The oldest supported Spark. All other tests run with the newest one, which requirements.lock has."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.versions import CommandError, Environment, build_wheel, kept_environment, sparks

NOT_REACHED = (
    "No matching distribution found",
    "Could not find a version",
    "NewConnectionError",
    "ReadTimeout",
    "not done after",
)
"""Of pip, when there is no index, or when it does not answer in time."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "crosscut-tests"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Other checkouts on this machine use it, too.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            made = kept_environment(cache, sparks()[0], build_wheel(tmp_path_factory.mktemp("wheel")))
        except CommandError as error:
            if any(one in str(error) for one in NOT_REACHED):
                pytest.skip(f"PySpark {sparks()[0]} can't be fetched: {error}")
            raise
        yield made


@pytest.mark.parametrize("name", ["micro-batch", "dataframe", "restore"])
def test_output_is_exact_on_the_oldest_spark(environment: Environment, name: str) -> None:
    shown = environment.run("-c", "import pyspark; print(pyspark.__version__)")
    assert shown.startswith(f"{sparks()[0]}.")
    environment.check(name)
