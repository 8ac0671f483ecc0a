"""What a command in another terminal asks of a running job."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

from crosscut.errors import CheckpointError, StoreError
from crosscut.foundation.urls import local_path, shown_url
from crosscut.protocol.effects import Outcome
from crosscut.web.endpoint import Endpoint, read_endpoint
from crosscut.web.record import NAME, read_record

ANSWER_TIMEOUT_S = 330.0
"""A little longer than the job waits for a savepoint."""
_ANSWER_BYTES_MAX = 1 << 20
_LOOK_EVERY_S = 0.1


def asked(directory: str, path: str, body: dict[str, Any]) -> str:
    """Have the job in `directory` do something; return what it says of it.

    Raises:
        StoreError: The job can't be found, or it does not answer.
        CheckpointError: The job refuses.
    """
    endpoint = read_endpoint(directory)
    status, answer_text = _posted(endpoint, path, body, directory)
    if status == 401:
        raise StoreError(
            f"{endpoint.address} refuses the token of the job in {shown_url(directory)}: that job ended "
            f"without removing its file, and another program now uses its port"
        )
    if status != 200:
        raise CheckpointError(f"the job in {shown_url(directory)} refuses: {answer_text}")
    return answer_text


def ended(directory: str, since_ms: int, timeout_s: float) -> str:
    """Wait for the end of the job; return how it has ended.

    Args:
        since_ms: What the job looked like before, in milliseconds since 1970, is of an earlier run.

    Raises:
        CheckpointError: It has not ended in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        job = _record(directory).get("job")
        status, at_ms = (job.get("status"), job.get("at_ms")) if isinstance(job, dict) else (None, 0)
        if status in get_args(Outcome) and isinstance(at_ms, int) and at_ms >= since_ms:
            if status == "stopped" and isinstance(job, dict) and (why := _why_short(job)):
                raise CheckpointError(
                    f"the job in {shown_url(directory)} has stopped without a last checkpoint whose output "
                    f"is committed: {why}; its next start repeats what came after its newest one"
                )
            return str(status)
        if time.monotonic() >= deadline:
            raise CheckpointError(
                f"the job in {shown_url(directory)} has not ended after {timeout_s:g} s: it is "
                f"{status!r}; it is still stopping, and `crosscut top` shows what it waits for"
            )
        time.sleep(_LOOK_EVERY_S)


def _why_short(job: Mapping[str, Any]) -> str:
    """Return why there is no last checkpoint, "" if there is one."""
    summary = job.get("summary")
    cause = summary.get("cause") if isinstance(summary, dict) else None
    return cause if isinstance(cause, str) else ""


def _record(directory: str) -> dict[str, Any]:
    local = local_path(directory)
    if local is not None and not os.path.lexists(os.path.join(local, NAME)):
        # A job that was told to stop in its first second writes it at its end.
        return {}
    return read_record(directory)


def _posted(endpoint: Endpoint, path: str, body: dict[str, Any], directory: str) -> tuple[int, str]:
    at = urlsplit(endpoint.address)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=ANSWER_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        data = json.loads(answer.read(_ANSWER_BYTES_MAX))
        answer_text = data.get("said") if isinstance(data, dict) else None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise StoreError(
            f"the job in {shown_url(directory)} does not answer at {endpoint.address}: "
            f"{type(error).__name__}: {error}; is it still running, and on this machine?"
        ) from error
    finally:
        connection.close()
    return answer.status, str(answer_text)
