"""What the Kafka client says, and what of it people see."""

from __future__ import annotations

import logging

import pytest

from crosscut.connectors.kafka.client import configuration

LOADING = (
    "Failed to acquire transactional PID from broker TxnCoordinator/1: "
    "Broker: Coordinator load in progress: retrying"
)


@pytest.fixture
def client_logger() -> logging.Logger:
    logger = configuration("localhost:9092", {})["logger"]
    assert isinstance(logger, logging.Logger)
    return logger


def test_that_a_coordinator_still_loads_is_no_warning(
    client_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, client_logger.name)
    client_logger.log(logging.WARNING, "%s [%s] %s", "GETPID", "producer", LOADING)
    client_logger.log(logging.WARNING, "%s [%s] %s", "FAIL", "producer", "Connection refused")
    assert [one.getMessage() for one in caplog.records] == ["FAIL [producer] Connection refused"]


def test_it_is_not_told_by_the_error_callback_either(
    client_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    library = pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
    loading = library.KafkaError(library.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    caplog.set_level(logging.INFO, client_logger.name)
    told = configuration("localhost:9092", {})["error_cb"]
    assert callable(told)
    told(loading)
    assert not caplog.records


def test_whoever_debugs_sees_it(client_logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, client_logger.name)
    client_logger.warning("%s", LOADING)
    assert len(caplog.records) == 1
