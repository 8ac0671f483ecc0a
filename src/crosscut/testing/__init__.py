"""For tests of flows, processes, sources and sinks: a harness for one process, conformance suites, servers, a
network that fails, the simulator."""

from __future__ import annotations

from crosscut.testing.process_harness import ProcessHarness
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, check_sink
from crosscut.testing.sources import SOURCE_CHECKS, check_source

__all__ = ["SINK_CHECKS", "SOURCE_CHECKS", "ProcessHarness", "SinkTarget", "check_sink", "check_source"]


def __dir__() -> list[str]:
    return sorted(__all__)
