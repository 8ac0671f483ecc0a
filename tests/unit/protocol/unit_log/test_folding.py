"""The ends of all logs as one cut."""

from tests.unit.protocol.unit_log.conversing import INPUT, OUTPUT, at, run, up_to

from crosscut.protocol.unit_log.entries import SentRecords, UnitSnapshot
from crosscut.protocol.unit_log.folding import Fold, RecordsInFlight, RecordsLost, folded

A, B, C = SentRecords(OUTPUT, run(1, 2)), SentRecords(OUTPUT, run(3, 5)), SentRecords(OUTPUT, run(6, 6))


def sender(given: int, *kept: SentRecords) -> UnitSnapshot:
    return UnitSnapshot(at(1, 9), given=((OUTPUT, up_to(given)),), kept=kept)


def receiver(taken: int) -> UnitSnapshot:
    return UnitSnapshot(at(1, 9), received=((OUTPUT, up_to(taken)),) if taken else ())


def test_what_was_kept_and_not_taken_is_in_flight() -> None:
    assert folded([sender(6, A, B, C), receiver(4)]) == Fold(
        (RecordsInFlight(B, 2), RecordsInFlight(C, 0)), ((), ())
    )
    assert folded([receiver(6), sender(6, B, C)]) == Fold((), ((), ()))
    assert folded([receiver(0), sender(2, A)]) == Fold((RecordsInFlight(A, 0),), ((), ()))


def test_what_is_owed_belongs_to_the_cut() -> None:
    owed = ((at(1, 2), "one"), (at(1, 4), "two"))
    assert folded([UnitSnapshot(at(1, 4), owed=owed)]) == Fold((), (owed,))


def test_a_log_that_lacks_entries_is_found() -> None:
    # The receiver has more than its sender has ever sent; the sender has forgotten what the receiver lacks.
    assert folded([sender(5, B), receiver(6)]) == RecordsLost(OUTPUT, up_to(6), (3, 5), up_to(5))
    assert folded([sender(6, C), receiver(2)]) == RecordsLost(OUTPUT, up_to(2), (6, 6), up_to(6))
    assert folded([sender(6), receiver(5)]) == RecordsLost(OUTPUT, up_to(5), None, up_to(6))
    assert folded([UnitSnapshot(at(1, 1), received=((INPUT, up_to(1)),))]) == RecordsLost(
        INPUT, up_to(1), None, up_to(0)
    )


def test_news_is_in_flight_with_records_and_without() -> None:
    first = SentRecords(OUTPUT, run(1, 3, b"", 1))
    second, third = SentRecords(OUTPUT, run(4, 6, b"", 2)), SentRecords(OUTPUT, run(7, 6, b"", 3))
    sends = UnitSnapshot(at(1, 9), given=((OUTPUT, up_to(6, 3)),), kept=(first, second, third))

    def fold(record: int, news: int) -> object:
        return folded([sends, UnitSnapshot(at(1, 9), received=((OUTPUT, up_to(record, news)),))])

    last = RecordsInFlight(third, 0)
    assert fold(6, 2) == Fold((last,), ((), ()))
    assert fold(6, 3) == Fold((), ((), ()))
    # Record 4 was taken out of a batch in which two had become one: news 1 is not.
    assert fold(4, 0) == Fold((RecordsInFlight(first, 3), RecordsInFlight(second, 1), last), ((), ()))


def test_news_that_is_lost_is_found() -> None:
    sends = UnitSnapshot(
        at(1, 9), given=((OUTPUT, up_to(0, 2)),), kept=(SentRecords(OUTPUT, run(1, 0, b"", 2)),)
    )
    receives = UnitSnapshot(at(1, 9))
    assert folded([sends, receives]) == RecordsLost(OUTPUT, up_to(0), (1, 0), up_to(0, 2))
