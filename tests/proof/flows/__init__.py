"""Flows that are drawn from a seed, for any engine, and what their output has to be.

A `Description` is plain data. `built_flow` makes the real flow of it through the public API;
`expected_output` computes with plain Python what each of its sinks has to get; `drawn_flow` draws one from a
seed; `shrunk_flow` makes a failing one small. Nothing here knows how a flow is run.
"""

from __future__ import annotations

from tests.proof.flows.building import built_flow, source_records
from tests.proof.flows.description import Description, parsed
from tests.proof.flows.drawing import drawn_flow
from tests.proof.flows.oracle import expected_output
from tests.proof.flows.shrinking import shrunk_flow

__all__ = [
    "Description",
    "built_flow",
    "drawn_flow",
    "expected_output",
    "parsed",
    "shrunk_flow",
    "source_records",
]
