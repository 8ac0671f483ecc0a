"""Tells listeners what happens to a job, in a thread of their own: the job never waits for them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from crosscut.events import JobEvent

LOGGER = logging.getLogger("crosscut.job")

Listener = Callable[[JobEvent], object]

KEPT_MAX = 1_000
"""Events that a listener may be behind, or come too late for; older ones are dropped, and that is said."""


class Listeners:
    """The listeners of one job. All methods may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        # With their numbers, from 1 on.
        self._events: deque[tuple[int, JobEvent]] = deque(maxlen=KEPT_MAX)
        self._count = 0
        self._subscriptions: list[_Subscription] = []
        self._news = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def add(self, listener: Listener) -> None:
        """Tell `listener` all events from the job's beginning on, those that have been too."""
        with self._news:
            self._subscriptions.append(_Subscription(listener))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"crosscut-events-{self._name}", daemon=True
                )
                self._thread.start()
            self._news.notify_all()

    def notify(self, event: JobEvent) -> None:
        """Have the listeners told of `event`; returns at once."""
        with self._news:
            self._count += 1
            self._events.append((self._count, event))
            self._news.notify_all()

    def close(self, timeout_s: float) -> None:
        """No event will come; wait until all were told of the last one, but no longer than this."""
        with self._news:
            self._is_over = True
            self._news.notify_all()
            if self._thread is None or self._thread is threading.current_thread():
                return
            if not self._news.wait_for(lambda: not self._behind(), timeout_s):
                LOGGER.warning(
                    "job %r: a listener has not returned %g s after the end of the job", self._name, timeout_s
                )

    def _behind(self) -> list[_Subscription]:
        return [one for one in self._subscriptions if one.number < self._count]

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._behind() or self._is_over)
                if not self._behind():
                    # A listener may come all the same.
                    self._thread = None
                    return
                turns = [(one, *self._next(one)) for one in self._behind()]
            for subscription, number, event in turns:
                self._call(subscription, event)
                with self._news:
                    subscription.number = number
                    self._news.notify_all()

    def _next(self, subscription: _Subscription) -> tuple[int, JobEvent]:
        for number, event in self._events:
            if number > subscription.number:
                if (missed := number - subscription.number - 1) and not subscription.has_missed:
                    subscription.has_missed = True
                    LOGGER.warning("job %r: a listener is slow: %d events were dropped", self._name, missed)
                return number, event
        raise AssertionError("a listener is behind, and there is no event for it")

    def _call(self, subscription: _Subscription, event: JobEvent) -> None:
        try:
            subscription.listener(event)
        except BaseException:
            # Also sys.exit(): it would leave the others without a thread.
            if not subscription.has_raised:
                subscription.has_raised = True
                LOGGER.warning(
                    "job %r: a listener has raised at %s; it is told of further events, and this is not said "
                    "again",
                    self._name,
                    type(event).__name__,
                    exc_info=True,
                )


class _Subscription:
    """A listener, and the newest event that it has been told of."""

    __slots__ = ("has_missed", "has_raised", "listener", "number")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.number = 0
        self.has_raised = self.has_missed = False
