"""A source that gives other records after a failure can't have a sink that shows records at once."""

from __future__ import annotations

import pytest

import crosscut as cc
from crosscut.contracts.connectors import Guarantee, SinkContext, SinkWriter
from crosscut.errors import FlowError


def flow_of(source: cc.Source, sink: cc.Sink, *, counted: bool = False) -> cc.Flow:
    flow = cc.Flow("copy")
    stream = flow.source(source).named("orders").map(lambda change: (change.new["id"],))
    if counted:
        stream.key_by(lambda row: row[0]).count().sink(sink).named("copy")
    else:
        stream.union(flow.source(cc.items([(1,)])).named("more")).sink(sink).named("copy")
    return flow


UPSERT = cc.postgres.upsert("", "t", {"id": "bigint"}, key="id")


class OfUser(cc.Sink):
    @property
    def guarantee(self) -> Guarantee:
        return "at least once"

    def writer(self, context: SinkContext) -> SinkWriter:
        raise NotImplementedError


EXACT = cc.postgres.sink("", "t", {"id": "bigint"}, key="id")
AT_ONCE = [UPSERT, cc.kafka.sink("localhost:1", "t", guarantee="at least once"), OfUser()]


@pytest.mark.parametrize("sink", AT_ONCE)
@pytest.mark.parametrize("counted", [False, True])
def test_first_rows_of_changed_tables_are_not_written_at_once(sink: cc.Sink, *, counted: bool) -> None:
    """A row that is read, written, deleted, and not read again after a crash would stay for ever."""
    source = cc.postgres.changes("", "p", "s")
    with pytest.raises(FlowError, match=r"source 'orders' may give other records.*sink 'copy' shows records"):
        flow_of(source, sink, counted=counted).compile(2, 128)


def test_changes_alone_and_sinks_that_wait_are_let_be() -> None:
    flow_of(cc.postgres.changes("", "p", "s", snapshot=False), UPSERT).compile(2, 128)
    # It posts on commit, though perhaps twice.
    posts = cc.http.sink("http://localhost:1/in", honours_keys=False)
    for waits in (EXACT, posts, cc.kafka.sink("localhost:1", "t")):
        flow_of(cc.postgres.changes("", "p", "s"), waits).compile(2, 128)
    flow = flow_of(cc.postgres.changes("", "p", "s"), EXACT)
    flow.source(cc.items([(1,)])).sink(UPSERT)
    flow.compile(2, 128)
