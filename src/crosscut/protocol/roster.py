"""The workers of a job: who has which place, who waits for one, who has fallen silent.

Spark supplies zombies, and two live attempts of one Spark task; `crosscut.protocol.admission` decides
who is admitted. Everybody is known by the control link that he proved the secret on.
"""

from __future__ import annotations

from dataclasses import dataclass

from crosscut.ids import WorkerIndex
from crosscut.protocol.admission import Admit, KeepInReserve, Place, TurnAway, admission
from crosscut.protocol.effects import JobEffect, SendMessage
from crosscut.protocol.events import LinkId
from crosscut.protocol.messages import CoordinatorMessage, Peer, RegisterWorker

LIVENESS_TICKS = 4
"""Ticks of silence after which a link counts as dead; a tick is a quarter of the timeout."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """The holder of place `index` is gone; whoever waited for it has it now."""

    index: WorkerIndex
    place: Place


class Roster:
    """Places by worker index, with one attempt in reserve for each."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self.held: dict[WorkerIndex, Place] = {}
        self.reserve: dict[WorkerIndex, Place] = {}
        self._silent_ticks: dict[LinkId, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether every place is held."""
        return len(self.held) == self._parallelism

    def everybody(self) -> list[Place]:
        """Return the holders by index, then those in reserve."""
        reserve = [place for _, place in sorted(self.reserve.items())]
        return [place for _, place in sorted(self.held.items())] + reserve

    def to_holders(self, message: CoordinatorMessage) -> list[JobEffect]:
        """Return what sends `message` to the holder of every place."""
        places = sorted(self.held.values(), key=lambda one: one.link)
        return [SendMessage(place.link, message) for place in places]

    def peers(self) -> tuple[Peer, ...]:
        """Return where each holder can be reached, by index."""
        return tuple(
            Peer(index, place.registration.host, place.registration.data_port)
            for index, place in sorted(self.held.items())
        )

    def index_of(self, link: LinkId) -> WorkerIndex | None:
        """Return the place that `link` holds, if any."""
        return next((index for index, place in self.held.items() if place.link == link), None)

    def knows(self, link: LinkId) -> bool:
        """Whether `link` has registered and is not gone."""
        return any(place.link == link for place in self.everybody())

    def register(self, link: LinkId, newcomer: RegisterWorker) -> Admit | KeepInReserve | TurnAway:
        """Give `newcomer` the place it asks for, or keep it in reserve, or neither."""
        decision = admission(newcomer, self._parallelism, self.held, self.reserve)
        match decision:
            case Admit():
                self.held[newcomer.worker] = Place(link, newcomer)
            case KeepInReserve():
                self.reserve[newcomer.worker] = Place(link, newcomer)
            case TurnAway():
                pass
        return decision

    def heard(self, link: LinkId) -> None:
        """Note that `link` has said something."""
        self._silent_ticks[link] = 0

    def is_quiet(self, link: LinkId) -> bool:
        """Whether `link` has said nothing for most of the heartbeat timeout."""
        return self._silent_ticks.get(link, 0) >= LIVENESS_TICKS - 1

    def tick(self) -> list[Place]:
        """Note that a tick has passed; return those who have been silent for too long."""
        self._silent_ticks = {
            place.link: self._silent_ticks.get(place.link, 0) + 1 for place in self.everybody()
        }
        return [place for place in self.everybody() if self._silent_ticks[place.link] > LIVENESS_TICKS]

    def lose(self, link: LinkId) -> Vacated | None:
        """Note that `link` is gone; return the place that it held, if it held one."""
        self._silent_ticks.pop(link, None)
        self.reserve = {index: place for index, place in self.reserve.items() if place.link != link}
        index = self.index_of(link)
        if index is None:
            return None
        place = self.held.pop(index)
        if index in self.reserve:
            self.held[index] = self.reserve.pop(index)
        return Vacated(index, place)

    def dismiss_all(self) -> list[Place]:
        """Forget everybody; return who they were."""
        everybody = self.everybody()
        self.held.clear()
        self.reserve.clear()
        self._silent_ticks.clear()
        return everybody
