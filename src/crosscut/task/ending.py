"""The end of input: the operators hear of it once in the life of a job, and give their last results."""

from __future__ import annotations

from collections.abc import Iterator

from crosscut.task.chain import Chain


class TaskEnding:
    """How far a task has come with it.

    How far the operators have come, the chain knows; it is in each snapshot that is taken meanwhile.

    Args:
        is_emitted: A snapshot says that the operators have been told, and have said all.
        is_forwarded: A log says that the end has been passed on.

    Attributes:
        is_emitted: They have.
        is_under_way: The end has begun and not been passed on.
        is_forwarded: The end has been passed on, in this epoch; where it is logged, in any.
    """

    def __init__(self, chain: Chain, *, is_emitted: bool, is_forwarded: bool = False) -> None:
        self.is_emitted = is_emitted
        self.is_under_way = False
        self.is_forwarded = is_forwarded
        self._chain = chain
        self._steps: Iterator[None] | None = None

    def begin(self, *, waits: bool = False) -> bool:
        """No record will come any more, which a restored source may say again.

        Args:
            waits: The operators are not to be told yet: there are results still to come.

        Returns:
            Whether the end is to be passed on: at once, where operators have nothing to say, so that no
            barrier finds the task before that.
        """
        self._steps = self._chain.end(is_emitted=self.is_emitted)
        self.is_under_way = True
        return not waits and self.step()

    def step(self) -> bool:
        """Let the operators say one batch more; return whether the end is to be passed on."""
        if self._steps is None or next(self._steps, self) is not self:
            return False
        self._steps = None
        self.is_under_way = False
        self.is_emitted = self.is_forwarded = True
        return True
