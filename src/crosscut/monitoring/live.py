"""A job in a notebook: a panel that is renewed while the job runs, in a thread of its own.

It needs no widgets, and nothing of the notebook's page: the kernel replaces what it has shown. IPython is
there where this is called; nothing else of Crosscut knows it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

EVERY_S = 1.0
PANELS_MAX = 5
"""Of one job that are renewed; older ones stay as they are."""


def kernel_shell() -> Any:
    """Return the shell of the notebook's kernel that this program is, None if it is none."""
    # Not imported for the question: it takes half a second, and a kernel has imported it.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class Panels:
    """The panels of one job.

    Args:
        look: Returns what they show, by type ("text/html", "text/plain").
        ended: Set when the job has ended: then they are renewed for the last time.
    """

    def __init__(self, name: str, look: Callable[[], dict[str, str]], ended: threading.Event) -> None:
        self._name = name
        self._look = look
        self._ended = ended
        self._lock = threading.Lock()
        self._handles: list[Any] = []
        self._is_watched = False

    def show(self) -> None:
        """Show one below the cell that runs."""
        from IPython.display import display as displayed

        is_live = kernel_shell() is not None and not self._ended.is_set()
        # A terminal can't take back what it has printed.
        display: Callable[..., Any] = displayed
        handle = display(self._look(), raw=True, display_id=True if is_live else None)
        if not is_live:
            return
        with self._lock:
            self._handles = [*self._handles, handle][-PANELS_MAX:]
            if self._is_watched:
                return
            self._is_watched = True
        threading.Thread(target=self._watch, name=f"crosscut-panel-{self._name}", daemon=True).start()

    def _watch(self) -> None:
        shown: dict[str, str] = {}
        is_over = False
        while not is_over:
            is_over = self._ended.wait(EVERY_S)
            looks_like = self._look()
            with self._lock:
                handles = list(self._handles)
                # One that comes later shows the end at once.
                self._is_watched = not is_over
            if looks_like != shown or is_over:
                shown = looks_like
                for handle in handles:
                    handle.update(looks_like, raw=True)
