"""The two ends of a channel between units."""

import pytest
from tests.unit.protocol.unit_log.conversing import INPUT, OUTPUT, run

from crosscut.errors import ProtocolError
from crosscut.protocol.unit_log.effects import AcknowledgeInputs, AskResume, DeliverRecords, SendRecords
from crosscut.protocol.unit_log.entries import SentRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
)
from crosscut.protocol.unit_log.numbers import NumberedReceiver, NumberedSender

ONE, TWO = ConnectionId(1), ConnectionId(2)


def connected(end: NumberedSender, connection: ConnectionId = ONE, number: int = 0) -> list[object]:
    assert end.handle(ChannelConnected(OUTPUT, connection)) == []
    return [*end.handle(ResumeAsked(OUTPUT, connection, number))]


def sends(connection: ConnectionId, first: int, last: int, payload: bytes) -> SendRecords:
    return SendRecords(OUTPUT, connection, run(first, last, payload))


def test_records_get_the_numbers_that_follow() -> None:
    end = NumberedSender(OUTPUT)
    assert end.handle(RecordsEmitted(OUTPUT, 2, b"ab")) == []
    assert end.handle(RecordsEmitted(OUTPUT, 1, b"c")) == []
    assert end.end_group() == (SentRecords(OUTPUT, run(1, 2, b"ab")), SentRecords(OUTPUT, run(3, 3, b"c")))
    assert end.end_group() == ()
    assert end.kept_bytes == 3


def test_a_record_leaves_when_it_is_logged() -> None:
    end = NumberedSender(OUTPUT)
    assert connected(end) == []
    end.handle(RecordsEmitted(OUTPUT, 1, b"a"))
    end.end_group()
    end.handle(RecordsEmitted(OUTPUT, 1, b"b"))
    assert end.logged(1) == [sends(ONE, 1, 1, b"a")]
    assert end.logged(1) == []


def test_a_connection_goes_on_where_the_receiver_says() -> None:
    end = NumberedSender(OUTPUT, 4, (run(1, 2, b"ab"), run(3, 4, b"cd")))
    assert connected(end, number=2) == [sends(ONE, 3, 4, b"cd")]
    # Within a run: all of it comes, and the receiver drops what it has.
    assert connected(end, TWO, number=1) == [sends(TWO, 1, 2, b"ab"), sends(TWO, 3, 4, b"cd")]


def test_a_resume_on_an_older_connection_has_no_effect() -> None:
    end = NumberedSender(OUTPUT, 1, (run(1, 1, b"a"),))
    end.handle(ChannelConnected(OUTPUT, ONE))
    end.handle(ChannelConnected(OUTPUT, TWO))
    assert end.handle(ResumeAsked(OUTPUT, ONE, 0)) == []
    assert end.dropped == {"resume on an older connection": 1}


def test_only_an_acknowledgement_forgets() -> None:
    end = NumberedSender(OUTPUT, 4, (run(1, 2, b"ab"), run(3, 4, b"cd")))
    connected(end, number=4)
    assert [one.records for one in end.kept()] == [run(1, 2, b"ab"), run(3, 4, b"cd")]
    end.handle(InputsAcknowledged(OUTPUT, 1))
    assert end.kept_bytes == 4
    end.handle(InputsAcknowledged(OUTPUT, 3))
    assert [one.records for one in end.kept()] == [run(3, 4, b"cd")]
    end.handle(InputsAcknowledged(OUTPUT, 2))
    assert end.kept_bytes == 2


def test_a_receiver_that_has_more_than_is_logged_has_it_from_a_newer_incarnation() -> None:
    end = NumberedSender(OUTPUT, 1, (run(1, 1, b"a"),))
    assert connected(end, number=2) == []
    end.handle(InputsAcknowledged(OUTPUT, 2))
    assert end.kept_bytes == 1
    assert end.dropped == {"resume ahead of the log": 1, "acknowledgement ahead of the log": 1}


def test_nothing_is_no_record() -> None:
    end = NumberedSender(OUTPUT)
    with pytest.raises(ProtocolError):
        end.handle(RecordsEmitted(OUTPUT, 0, b""))
    assert end.given == 0


@pytest.mark.parametrize(
    ("first", "last", "skipped"),
    [(4, 5, 0), (3, 4, 1), (1, 9, 3)],
)
def test_what_follows_is_delivered_without_what_came_before(first: int, last: int, skipped: int) -> None:
    end = NumberedReceiver(INPUT, 3)
    assert end.handle(RecordsArrived(INPUT, first, last)) == [DeliverRecords(INPUT, skipped)]
    assert (end.taken, end.safe) == (last, 3)


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [(1, 3, "records that came before"), (5, 6, "records after a gap")],
)
def test_all_else_is_dropped(first: int, last: int, reason: str) -> None:
    end = NumberedReceiver(INPUT, 3)
    assert end.handle(RecordsArrived(INPUT, first, last)) == []
    assert (end.taken, end.dropped) == (3, {reason: 1})


def test_what_is_logged_is_acknowledged() -> None:
    end = NumberedReceiver(INPUT)
    assert end.end_group() is None
    end.handle(RecordsArrived(INPUT, 1, 2))
    assert end.end_group() == 2
    end.handle(RecordsArrived(INPUT, 3, 3))
    assert end.logged(2) == [AcknowledgeInputs(INPUT, 2)]
    # A connection goes on after what is taken. It may forget only what is safe.
    assert end.handle(ChannelAccepted(INPUT, TWO)) == [AskResume(INPUT, TWO, 3), AcknowledgeInputs(INPUT, 2)]
