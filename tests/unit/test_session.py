"""How many Spark tasks can run at once, from Spark's master URL and configuration."""

from __future__ import annotations

import pytest

from crosscut.errors import SettingsError
from crosscut.spark.cluster.session import configured_slots, spark_context
from crosscut.spark.cluster.slots import lack


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


NEEDED = "each worker needs one for as long as the job runs"


@pytest.mark.parametrize(
    ("count", "others", "expected"),
    [
        (2, [], ""),
        (2, [("a", 2)], ""),
        (5, [], f"parallelism=5, but Spark has 4 task slots in all; {NEEDED}: lower parallelism"),
        (5, [("a", 2)], f"parallelism=5, but Spark has 4 task slots in all; {NEEDED}: lower parallelism"),
        (
            3,
            [("a", 2)],
            f"parallelism=3, but Spark has 4 task slots in all, of which job 'a' holds 2; {NEEDED}: wait for "
            f"that job or stop it, lower parallelism",
        ),
        (
            1,
            [("a", 2), ("b", 2)],
            f"parallelism=1, but Spark has 4 task slots in all, of which job 'a' holds 2 and job 'b' holds "
            f"2; {NEEDED}: wait for one of them or stop it, lower parallelism",
        ),
    ],
)
def test_slots_that_are_not_there_are_told_from_those_that_other_jobs_hold(
    count: int, others: list[tuple[str, int]], expected: str
) -> None:
    assert lack(count, 4, others) == expected
