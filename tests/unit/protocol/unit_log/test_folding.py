"""The ends of all logs as one cut."""

from tests.unit.protocol.unit_log.conversing import INPUT, OUTPUT, at, run

from crosscut.protocol.unit_log.entries import SentRecords, UnitSnapshot
from crosscut.protocol.unit_log.folding import Fold, RecordsInFlight, RecordsLost, folded

A, B, C = SentRecords(OUTPUT, run(1, 2)), SentRecords(OUTPUT, run(3, 5)), SentRecords(OUTPUT, run(6, 6))


def sender(given: int, *kept: SentRecords) -> UnitSnapshot:
    return UnitSnapshot(at(1, 9), given=((OUTPUT, given),), kept=kept)


def receiver(taken: int) -> UnitSnapshot:
    return UnitSnapshot(at(1, 9), received=((OUTPUT, taken),) if taken else ())


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
    assert folded([sender(5, B), receiver(6)]) == RecordsLost(OUTPUT, 6, (3, 5), 5)
    assert folded([sender(6, C), receiver(2)]) == RecordsLost(OUTPUT, 2, (6, 6), 6)
    assert folded([sender(6), receiver(5)]) == RecordsLost(OUTPUT, 5, None, 6)
    assert folded([UnitSnapshot(at(1, 1), received=((INPUT, 1),))]) == RecordsLost(INPUT, 1, None, 0)
