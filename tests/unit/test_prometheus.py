"""The metrics for Prometheus: their names are documented, and the board asks for nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from tests.simulation.conversation import CAUSE, K0, K1, S0, S1, at
from tests.unit.watched import E1, Watched, acknowledge, heartbeat

from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.monitoring.metrics import JobMetrics
from crosscut.protocol.events import EntryAppended
from crosscut.protocol.messages import (
    RecordsFlowing,
    TaskFailed,
    TaskStatistics,
    TransactionsCommitted,
    WorkerHeartbeat,
)
from crosscut.protocol.telemetry import MetricSample, SnapshotTimes
from crosscut.web.prometheus import exposed

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "docs" / "grafana" / "crosscut.json").read_text())
ALERTS = ROOT / "docs" / "prometheus" / "alerts.yaml"
N1 = CheckpointId(1)
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def metrics() -> JobMetrics:
    """A job with all that there can be: a checkpoint, a failover, lag, watermarks."""
    talk = Watched()
    talk.running()
    latency = MetricSample("numbers", "latency", "histogram", 0.9, (0.1, 1.0), (3, 1, 0))
    talk.message(0, WorkerHeartbeat(E1, (TaskStatistics(S0), TaskStatistics(K0, latencies=(latency,)))))
    heartbeat(talk, 1, blocked=0.3, busy=0.6)
    talk.fire("trigger", 1)
    for task in (S0, S1, K0, K1):
        acknowledge(talk, N1, task, SnapshotTimes(alignment_us=2_000, store_us=5_000))
    talk.hear(EntryAppended(at(2)))
    for index, task in enumerate((K0, K1)):
        talk.message(index, TransactionsCommitted(E1, N1, task))
    heartbeat(talk, 2, blocked=0.3, busy=0.6)
    heartbeat(talk, 3, blocked=0.3, busy=0.6)
    found = talk.metrics()
    talk.message(1, TaskFailed(E1, K1, CAUSE))
    talk.hear(EntryAppended(at(3)))
    talk.ready(2)
    talk.at(5_000).message(0, RecordsFlowing(Epoch(2)))
    return replace(found, failovers=talk.watching.failovers.all())


def samples(metrics: JobMetrics | None) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return all samples of an exposition, by name."""
    text, content_type = exposed(metrics, "")
    assert content_type.startswith("text/plain")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_what_prometheus_reads_is_what_the_job_says(metrics: JobMetrics) -> None:
    found = samples(metrics)
    (edge,) = found["crosscut_edge_records_total"]
    assert edge == ({"job": "a job", "source": "numbers", "target": "out", "input": "0", "side": ""}, 300.0)
    busy = {(labels["vertex"], labels["task"]): value for labels, value in found["crosscut_busy_ratio"]}
    assert busy["out", "0"] == pytest.approx(0.6)
    phases = {labels["phase"]: value for labels, value in found["crosscut_checkpoint_seconds"]}
    assert set(phases) == {"total", "alignment", "freeze", "store", "append", "commit"}
    assert (phases["alignment"], phases["store"]) == (0.002, 0.005)
    assert found["crosscut_lag_records"] == [({"job": "a job", "vertex": "numbers"}, 80.0)]
    assert found["crosscut_status"] == [({"job": "a job", "status": "running"}, 1.0)]


def test_buckets_of_histograms_add_up() -> None:
    talk = Watched()
    talk.running()
    for index, task in enumerate((K0, K1)):
        reading = MetricSample("pay", "amount", "histogram", 30.0, (1.0, 10.0), (1, 2, 1))
        other = MetricSample("audit", "amount", "counter", 3.0)
        talk.message(index, WorkerHeartbeat(E1, (TaskStatistics(task, readings=(reading, other)),)))
    found = samples(talk.metrics())
    buckets = {labels["le"]: value for labels, value in found["crosscut_user_amount_histogram_bucket"]}
    assert buckets == {"1.0": 2.0, "10.0": 6.0, "+Inf": 8.0}
    assert found["crosscut_user_amount_histogram_sum"][0][1] == 60.0
    assert found["crosscut_user_amount_total"] == [({"job": "a job", "operator": "audit"}, 6.0)]


def test_names_that_prometheus_would_make_the_same_are_told_apart() -> None:
    talk = Watched()
    talk.running()
    readings = (
        MetricSample("pay", "paid", "counter", 1.0),
        MetricSample("pay", "paid_total", "gauge", 2.0),
        MetricSample("audit", "paid_total", "counter", 3.0),
        MetricSample("pay", "wait", "histogram", 4.0, (1.0,), (1, 1)),
        MetricSample("pay", "wait_sum", "gauge", 5.0),
        MetricSample("pay", "wait_count", "counter", 6.0),
    )
    talk.message(0, WorkerHeartbeat(E1, (TaskStatistics(K0, readings=readings),)))
    metrics = talk.metrics()
    found = {
        name: sum(value for _, value in several)
        for name, several in samples(metrics).items()
        if "user_" in name and "bucket" not in name
    }
    assert found == {
        "crosscut_user_paid_total": 1.0,
        "crosscut_user_paid_total_counter_total": 3.0,
        "crosscut_user_paid_total_gauge": 2.0,
        "crosscut_user_wait_sum": 4.0,
        "crosscut_user_wait_count": 2.0,
        "crosscut_user_wait_sum_gauge": 5.0,
        "crosscut_user_wait_count_counter_total": 6.0,
    }
    families = [one.name for one in open_metrics(exposed(metrics, OPEN_METRICS)[0].decode())]
    assert len(families) == len(set(families))


def test_a_job_that_has_ended_is_scraped_without_anything() -> None:
    assert samples(None) == {}


def test_open_metrics_are_given_to_who_asks_for_them(metrics: JobMetrics) -> None:
    text, content_type = exposed(metrics, OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert "crosscut_records_in" in {family.name for family in open_metrics(text.decode())}


def queries() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_board_finds_something(query: str, metrics: JobMetrics) -> None:
    found = samples(metrics)
    names = re.findall(r"\bcrosscut_\w+", query)
    assert names
    for name in names:
        assert found.get(name), name
        labels = set(found[name][0][0])
        grouped = re.search(r"by \(([^)]*)\)", query)
        wanted = {one.strip() for one in grouped[1].split(",")} if grouped else set()
        wanted |= set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|!~|=)", query))
        assert wanted <= labels


def test_the_legends_of_the_board_name_labels_that_are_there(metrics: JobMetrics) -> None:
    found = samples(metrics)
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            (name, *_) = re.findall(r"\bcrosscut_\w+", target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(found[name][0][0]), target


def test_latencies_are_a_histogram_by_vertex_and_source(metrics: JobMetrics) -> None:
    found = samples(metrics)
    labels = {"job": "a job", "vertex": "out", "source": "numbers"}
    assert found["crosscut_latency_seconds_bucket"] == [
        ({**labels, "le": "0.1"}, 3.0),
        ({**labels, "le": "1.0"}, 4.0),
        ({**labels, "le": "+Inf"}, 4.0),
    ]
    assert found["crosscut_latency_seconds_count"] == [(labels, 4.0)]
    assert found["crosscut_latency_seconds_sum"] == [(labels, 0.9)]


def test_every_name_is_documented_and_every_documented_name_is_there(metrics: JobMetrics) -> None:
    guide = (ROOT / "docs" / "guide" / "seeing.md").read_text()
    documented = set(re.findall(r"`(crosscut_\w+)`", guide)) - {"crosscut_user_"}
    names = (re.sub(r"_(bucket|count|sum)$", "", name) for name in samples(metrics))
    there = {name for name in names if not name.startswith("crosscut_user_")}
    assert there == documented


def test_a_name_with_quotes_is_a_label_and_no_more(metrics: JobMetrics) -> None:
    hostile = 'x"} 1\ncrosscut_evil 1 # <script>'
    seen = samples(replace(metrics, name=hostile))
    assert "crosscut_evil" not in seen
    assert {labels["job"] for labels, _ in seen["crosscut_epoch"]} == {hostile}


def test_alerts_ask_for_metrics_that_are_there_and_each_has_a_runbook(metrics: JobMetrics) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found = set(samples(metrics))
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/guide/operations.md").read_text(), re.MULTILINE)
    for rule in group["rules"]:
        asked = re.findall(r"crosscut_\w+", rule["expr"])
        assert asked and set(asked) <= found, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/guide/operations.md#{rule['alert'].lower()}"
        assert rule["alert"] in headings
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 8
