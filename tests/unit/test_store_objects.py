"""Object stores through fsspec: outcomes of conditional puts that a real service has shown."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from tests.proof.stores import at, opened

from crosscut.errors import SettingsError, StoreError
from crosscut.protocol.log.writer import Appended, Taken, Unknown
from crosscut.store import open_store
from crosscut.store.objects import PROOF_WRITERS


class ServiceFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Stands for a remote service: not known to be atomic, and told by tests how to answer."""

    protocol = "s3"
    store: dict[str, Any] = {}  # noqa: RUF012  # as in the base class: shared by all instances
    pseudo_dirs = [""]  # noqa: RUF012
    ignores_condition = False
    answer: BaseException | None = None
    applies = True
    one_at_a_time = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("s3://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        cls = type(self)
        answer = None if "probe" in path else cls.answer
        if answer is None or cls.applies:
            # fsspec's memory looks whether the file is there, and writes it then.
            with cls.one_at_a_time:
                super().pipe_file(path, value, "overwrite" if cls.ignores_condition else mode, **options)
        if answer is not None:
            raise answer


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ServiceFileSystem]]:
    monkeypatch.setitem(_registry, "s3", ServiceFileSystem)
    for name in ("answer", "applies", "ignores_condition"):
        monkeypatch.setattr(ServiceFileSystem, name, getattr(ServiceFileSystem, name))
    yield ServiceFileSystem
    ServiceFileSystem.store.clear()


def test_a_service_with_conditional_puts_is_used_and_keeps_no_probe(service: type[ServiceFileSystem]) -> None:
    store = open_store("s3://bucket/checkpoints")
    assert store.append(at(0), opened(1)) == Appended(at(0))
    assert store.append(at(0), opened(2)) == Taken(at(0))
    assert list(service.store) == [f"/bucket/checkpoints/log/{1:020d}.json"]


def test_a_service_that_ignores_the_condition_is_refused_before_anything_is_appended(
    service: type[ServiceFileSystem],
) -> None:
    service.ignores_condition = True
    with pytest.raises(SettingsError, match="two drivers could both own the job"):
        open_store("s3://bucket/checkpoints").append(at(0), opened(1))
    assert service.store == {}


def test_a_service_that_looks_first_and_writes_then_is_refused(
    service: type[ServiceFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: one writer after the other finds nothing wrong with it; two at once do."""
    create, all_have_looked = service.pipe_file, threading.Barrier(PROOF_WRITERS)

    def look_then_write(self: ServiceFileSystem, path: str, value: bytes, **options: Any) -> None:
        if self.exists(path):
            raise FileExistsError(path)
        all_have_looked.wait(timeout=60)
        create(self, path, value)

    monkeypatch.setattr(service, "pipe_file", look_then_write)
    with pytest.raises(SettingsError, match=r"4 have created one file.*two drivers could both own the job"):
        open_store("s3://bucket/checkpoints").append(at(0), opened(1))
    assert service.store == {}


def test_a_proof_that_can_not_be_had_refuses_the_append_and_is_tried_again_with_the_next(
    service: type[ServiceFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    create, is_down = service.pipe_file, [True]

    def sometimes(self: ServiceFileSystem, path: str, value: bytes, **options: Any) -> None:
        if is_down[0]:
            raise ConnectionError("connection reset")
        create(self, path, value, **options)

    monkeypatch.setattr(service, "pipe_file", sometimes)
    store = open_store("s3://bucket/checkpoints")
    with pytest.raises(StoreError, match="connection reset"):
        store.append(at(0), opened(1))
    is_down[0] = False
    assert store.append(at(0), opened(1)) == Appended(at(0))
    assert list(service.store) == [f"/bucket/checkpoints/log/{1:020d}.json"]


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize(
    "answer",
    [OSError(5, "connection reset"), PermissionError("expired token"), ValueError("no OSError at all")],
)
def test_any_error_of_a_service_is_an_unknown_outcome(
    service: type[ServiceFileSystem], answer: BaseException, applies: bool
) -> None:
    """B4: even a refusal, since the file system may have repeated a request that was applied."""
    service.answer, service.applies = answer, applies
    store = open_store("s3://bucket/checkpoints")
    outcome = store.append(at(0), opened(1))
    assert isinstance(outcome, Unknown) and str(answer) in outcome.reason
    assert store.read(at(0)) == (opened(1) if applies else None)


def test_a_service_that_cannot_be_read_is_a_store_error_not_an_absent_entry(
    service: type[ServiceFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cat_file(self: object, path: str) -> bytes:
        raise ValueError("Bad Request")

    monkeypatch.setattr(service, "cat_file", cat_file)
    with pytest.raises(StoreError, match="Bad Request") as caught:
        open_store("s3://bucket/checkpoints").read(at(0))
    assert not caught.value.ids["damaged"]


def test_two_threads_never_both_create_an_entry_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: fsspec's own file system looks first and writes then; both threads are made to look at once."""
    meeting = threading.Barrier(2)
    look = MemoryFileSystem.exists

    def exists(self: MemoryFileSystem, path: str, **options: Any) -> bool:
        found = bool(look(self, path, **options))
        if path.endswith(".json"):
            # With the lock in place nobody else comes, and the wait ends by itself.
            with suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=0.2)
        return found

    monkeypatch.setattr(MemoryFileSystem, "exists", exists)
    store = open_store(f"memory://{secrets.token_hex(8)}")
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(
            threads.map(lambda driver: store.append(at(0), opened(1, driver)), ("first", "second"))
        )
    assert sorted(outcomes, key=repr) == [Appended(at(0)), Taken(at(0))]
