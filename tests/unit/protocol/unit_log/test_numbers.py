"""The two ends of a channel between units."""

import pytest
from tests.unit.protocol.unit_log.conversing import INPUT, OUTPUT, run, up_to

from crosscut.errors import MissingRecordsError, ProtocolError
from crosscut.net.causes import failure_cause
from crosscut.protocol.unit_log.effects import (
    AcknowledgeInputs,
    AskResume,
    DeliverRecords,
    RefuseResume,
    SendRecords,
)
from crosscut.protocol.unit_log.entries import START, SentRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.protocol.unit_log.numbers import NumberedReceiver, NumberedSender

ONE, TWO = ConnectionId(1), ConnectionId(2)


def connected(end: NumberedSender, connection: ConnectionId = ONE, number: int = 0) -> list[object]:
    assert end.handle(ChannelConnected(OUTPUT, connection)) == []
    return [*end.handle(ResumeAsked(OUTPUT, connection, up_to(number)))]


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
    assert end.logged() == [sends(ONE, 1, 1, b"a")]
    assert end.logged() == []
    end.end_group()
    assert end.logged() == [sends(ONE, 2, 2, b"b")]


def test_a_connection_goes_on_where_the_receiver_says() -> None:
    end = NumberedSender(OUTPUT, up_to(4), (run(1, 2, b"ab"), run(3, 4, b"cd")))
    assert connected(end, number=2) == [sends(ONE, 3, 4, b"cd")]
    # Within a run: all of it comes, and the receiver drops what it has.
    assert connected(end, TWO, number=1) == [sends(TWO, 1, 2, b"ab"), sends(TWO, 3, 4, b"cd")]


def test_a_resume_on_an_older_connection_has_no_effect() -> None:
    end = NumberedSender(OUTPUT, up_to(1), (run(1, 1, b"a"),))
    end.handle(ChannelConnected(OUTPUT, ONE))
    end.handle(ChannelConnected(OUTPUT, TWO))
    assert end.handle(ResumeAsked(OUTPUT, ONE, up_to(0))) == []
    assert end.dropped == {"resume on an older connection": 1}


def test_only_an_acknowledgement_forgets() -> None:
    end = NumberedSender(OUTPUT, up_to(4), (run(1, 2, b"ab"), run(3, 4, b"cd")))
    connected(end, number=4)
    assert [one.records for one in end.kept()] == [run(1, 2, b"ab"), run(3, 4, b"cd")]
    end.handle(InputsAcknowledged(OUTPUT, up_to(1)))
    assert end.kept_bytes == 4
    end.handle(InputsAcknowledged(OUTPUT, up_to(3)))
    assert [one.records for one in end.kept()] == [run(3, 4, b"cd")]
    end.handle(InputsAcknowledged(OUTPUT, up_to(2)))
    assert end.kept_bytes == 2


def test_a_receiver_that_has_more_than_is_logged_ends_the_sender() -> None:
    """It has it from a newer incarnation; or the log has lost entries, and the channel would stand still."""
    end = NumberedSender(OUTPUT, up_to(1), (run(1, 1, b"a"),))
    with pytest.raises(
        MissingRecordsError, match="its receiver has record 2 and news 0, and the log"
    ) as found:
        connected(end, number=2)
    assert failure_cause(found.value).is_final
    sender, receiver = OUTPUT.source.index, OUTPUT.target.index
    assert f"units/{sender} and units/{receiver}" in str(found.value)
    end.handle(InputsAcknowledged(OUTPUT, up_to(2)))
    assert end.kept_bytes == 1
    assert end.dropped == {"acknowledgement ahead of the log": 1}


def test_nothing_is_no_record() -> None:
    end = NumberedSender(OUTPUT)
    with pytest.raises(ProtocolError):
        end.handle(RecordsEmitted(OUTPUT, 0, b""))
    assert end.given == START


@pytest.mark.parametrize(
    ("first", "last", "skipped"),
    [(4, 5, 0), (3, 4, 1), (1, 9, 3)],
)
def test_what_follows_is_delivered_without_what_came_before(first: int, last: int, skipped: int) -> None:
    end = NumberedReceiver(INPUT, up_to(3))
    assert end.handle(RecordsArrived(INPUT, ONE, first, last)) == [DeliverRecords(INPUT, skipped)]
    assert (end.arrived, end.taken, end.safe) == (up_to(last), up_to(3), up_to(3))


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [(1, 3, "records that came before"), (5, 6, "records after a gap")],
)
def test_all_else_is_dropped(first: int, last: int, reason: str) -> None:
    end = NumberedReceiver(INPUT, up_to(3))
    assert end.handle(RecordsArrived(INPUT, ONE, first, last)) == []
    assert (end.arrived, end.dropped) == (up_to(3), {reason: 1})


def accepted(record: int = 0, news: int = 0) -> NumberedReceiver:
    end = NumberedReceiver(INPUT, up_to(record, news))
    end.handle(ChannelAccepted(INPUT, ONE))
    return end


def test_a_gap_on_the_present_connection_is_an_error() -> None:
    end = accepted(3)
    with pytest.raises(
        MissingRecordsError, match=r"arrived up to record 3 and news 0, and record 5 and news 0"
    ):
        end.handle(RecordsArrived(INPUT, ONE, 5, 6))
    with pytest.raises(MissingRecordsError, match="record 4 and news 2 came"):
        end.handle(RecordsArrived(INPUT, ONE, 4, 3, news=2))
    assert end.arrived == up_to(3)


def test_what_is_logged_is_acknowledged() -> None:
    end = NumberedReceiver(INPUT)
    end.handle(RecordsArrived(INPUT, ONE, 1, 2))
    end.end_group(up_to(2))
    end.handle(RecordsArrived(INPUT, ONE, 3, 3))
    assert end.logged() == [AcknowledgeInputs(INPUT, up_to(2))]
    # A connection goes on after what has arrived. The sender may forget only what is safe.
    assert end.handle(ChannelAccepted(INPUT, TWO)) == [
        AskResume(INPUT, TWO, up_to(3)),
        AcknowledgeInputs(INPUT, up_to(2)),
    ]


# News.


def test_news_gets_numbers_of_its_own() -> None:
    end = NumberedSender(OUTPUT)
    end.handle(RecordsEmitted(OUTPUT, 2, b"ab", has_news=True))
    end.handle(RecordsEmitted(OUTPUT, 0, b"c", has_news=True))
    end.handle(RecordsEmitted(OUTPUT, 1, b"d"))
    assert [one.records for one in end.end_group()] == [
        run(1, 2, b"ab", 1),
        run(3, 2, b"c", 2),
        run(3, 3, b"d"),
    ]
    assert end.given == up_to(3, 2)


def test_news_without_records_is_kept_until_it_is_acknowledged() -> None:
    end = NumberedSender(OUTPUT, up_to(2, 2), (run(1, 2, b"ab", 1), run(3, 2, b"c", 2)))
    end.handle(InputsAcknowledged(OUTPUT, up_to(2, 1)))
    assert [one.records for one in end.kept()] == [run(3, 2, b"c", 2)]
    assert connected(end, number=2) == [RefuseResume(OUTPUT, ONE, up_to(2, 1))]
    end.handle(ChannelConnected(OUTPUT, TWO))
    sent = end.handle(ResumeAsked(OUTPUT, TWO, up_to(2, 1)))
    assert sent == [SendRecords(OUTPUT, TWO, run(3, 2, b"c", 2))]
    end.handle(InputsAcknowledged(OUTPUT, up_to(2, 2)))
    assert end.kept() == () and end.kept_bytes == 0


def test_news_that_has_become_part_of_a_later_batch_is_sent_again() -> None:
    """The receiver has merged two batches, and taken a record of the second: not the news of the first."""
    runs = (run(1, 3, b"abc", 1), run(4, 4, b"d"), run(5, 6, b"ef", 2))
    end = NumberedSender(OUTPUT, up_to(6, 2), runs)
    end.handle(InputsAcknowledged(OUTPUT, up_to(4, 0)))
    assert [one.records for one in end.kept()] == [*runs]
    sent = connected(end, number=4)
    assert sent == [SendRecords(OUTPUT, ONE, one) for one in (runs[0], runs[2])]
    receiver = accepted(4)
    assert receiver.handle(RecordsArrived(INPUT, ONE, 1, 3, news=1)) == [DeliverRecords(INPUT, 3)]
    assert receiver.handle(RecordsArrived(INPUT, ONE, 5, 6, news=2)) == [DeliverRecords(INPUT, 0)]
    assert receiver.arrived == up_to(6, 2)


def test_news_comes_once() -> None:
    end = accepted(3, 1)
    assert end.handle(RecordsArrived(INPUT, ONE, 4, 3, news=1)) == []
    assert end.handle(RecordsArrived(INPUT, ONE, 4, 3, news=2)) == [DeliverRecords(INPUT, 0)]
    assert end.handle(RecordsArrived(INPUT, ONE, 4, 3, news=2)) == []
    assert end.dropped == {"records that came before": 2}


# What the sender has forgotten.


def test_a_sender_says_that_it_has_forgotten_what_a_receiver_asks_for() -> None:
    end = NumberedSender(OUTPUT, up_to(4), (run(1, 2, b"ab"), run(3, 4, b"cd")))
    end.handle(InputsAcknowledged(OUTPUT, up_to(2)))
    assert connected(end, number=1) == [RefuseResume(OUTPUT, ONE, up_to(2))]
    assert end.logged() == []
    end.handle(InputsAcknowledged(OUTPUT, up_to(4)))
    assert end.handle(ResumeAsked(OUTPUT, ONE, up_to(3))) == [RefuseResume(OUTPUT, ONE, up_to(4))]
    assert end.handle(ResumeAsked(OUTPUT, ONE, up_to(4))) == []


def test_a_receiver_that_lacks_what_is_forgotten_ends() -> None:
    end = accepted(3)
    with pytest.raises(
        MissingRecordsError, match="its sender keeps only what comes after record 4 and news 0"
    ):
        end.handle(ResumeRefused(INPUT, ONE, up_to(4)))
    assert end.handle(ResumeRefused(INPUT, TWO, up_to(4))) == []
    assert end.dropped == {"refusal on an older connection": 1}


def test_a_receiver_that_has_it_meanwhile_asks_again() -> None:
    """It came, and was acknowledged, on the connection before, after this one had asked."""
    end = accepted(3)
    end.handle(ChannelAccepted(INPUT, TWO))
    end.handle(RecordsArrived(INPUT, ONE, 4, 5))
    assert end.handle(ResumeRefused(INPUT, TWO, up_to(5))) == [AskResume(INPUT, TWO, up_to(5))]
