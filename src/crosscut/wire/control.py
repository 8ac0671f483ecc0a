"""Control messages as bytes: JSON, checked field by field against the message's class (rule S6).

Workers and the coordinator speak it. No code is looked up or run, so a worker can at most lie about
its own tasks, never reach into the Spark driver.
"""

from __future__ import annotations

import json
from typing import TypeVar, get_args

from crosscut.contracts.codec import from_json, to_text
from crosscut.errors import WireError
from crosscut.protocol.messages import CoordinatorMessage, WorkerMessage

Message = TypeVar("Message")

# Made once: json.loads looks at all of its options at each call.
_DECODER = json.JSONDecoder()

WORKER_MESSAGES: tuple[type[WorkerMessage], ...] = get_args(WorkerMessage)
"""What the coordinator accepts."""

COORDINATOR_MESSAGES: tuple[type[CoordinatorMessage], ...] = get_args(CoordinatorMessage)
"""What a worker accepts."""


def encode_control(message: WorkerMessage | CoordinatorMessage) -> bytes:
    """Return the payload of a CONTROL frame.

    Raises:
        StateError: A field does not hold what its type says; most often a position or handle of a
            connector that is not JSON. The message names it.
    """
    # Not orjson: it refuses lone surrogates, which file names (so positions) do contain.
    return to_text(message).encode("ascii")


def decode_control(data: bytes | memoryview, kinds: tuple[type[Message], ...]) -> Message:
    """Return the message that `encode_control` made `data` from.

    Args:
        data: Payload of a CONTROL frame.
        kinds: What the peer may send: `WORKER_MESSAGES` or `COORDINATOR_MESSAGES`.

    Raises:
        WireError: `data` is not one of these messages; nothing else is ever raised.
    """
    try:
        text = str(data, "utf-8")
        # Not `decode`: it looks for blanks around the value, which takes as long as the value.
        content, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a CONTROL frame of {len(data)} bytes is not JSON: {error}") from error
    if end < len(text):
        raise WireError(f"a CONTROL frame of {len(data)} bytes is not JSON: its value ends before it does")
    message: Message = from_json(content, kinds, WireError)
    return message
