"""How many Spark tasks can run at once, from Spark's master URL and configuration."""

from __future__ import annotations

import pytest

from crosscut.errors import SettingsError
from crosscut.spark.session import configured_slots, spark_context


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[3,1000000]", {}, 3),
        ("local[ * , 4 ]", {}, 8),
        ("local[*]", {"spark.task.cpus": "3"}, 2),
        ("local-cluster[2,3,1024]", {}, 6),
        ("spark://one:7077,two:7077", {}, None),
        ("spark://one:7077", {"spark.cores.max": "12", "spark.task.cpus": "2"}, 6),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ("yarn", {"spark.executor.instances": "4"}, None),
        (
            "k8s://https://one:6443",
            {
                "spark.executor.instances": "4",
                "spark.executor.cores": "2",
                "spark.dynamicAllocation.enabled": "true",
            },
            None,
        ),
    ],
)
def test_slots_follow_from_the_configuration(master: str, conf: dict[str, str], expected: int | None) -> None:
    assert configured_slots(master, conf.get, lambda: 8) == expected


def test_spark_connect_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://one:15002")
    with pytest.raises(SettingsError, match="Spark Connect"):
        spark_context(1, "refused")
