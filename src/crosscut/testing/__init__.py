"""For tests of flows, sources and sinks: conformance suites, servers, a network that fails, the simulator."""

from __future__ import annotations

from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, check_sink
from crosscut.testing.sources import SOURCE_CHECKS, check_source

__all__ = ["SINK_CHECKS", "SOURCE_CHECKS", "SinkTarget", "check_sink", "check_source"]
