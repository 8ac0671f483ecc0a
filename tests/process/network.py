"""A network between workers and driver that fails: proxies that cut connections, or swallow what is sent.

It stands where a router would: the driver hands out the proxies' addresses instead of the processes'
own. Nothing of the job knows of it.
"""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import replace
from typing import Any

import pytest

from crosscut.driver.cluster_workers import ClusterWorkers
from crosscut.driver.driver import CoordinatorDriver
from crosscut.protocol.messages import RegisterWorker

HOST = "127.0.0.1"
_CHUNK_BYTES = 16 * 1024


class Direction:
    """What one side of a connection sends to the other."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._left: int | None = None
        self.is_cut = False
        self.bytes = 0

    def clog(self) -> None:
        """Pass nothing on from now on; the connection stays open, as nobody says that it is not."""
        self._flows.clear()

    def unclog(self) -> None:
        """Pass everything on again, also what was sent meanwhile: TCP repeats what got lost."""
        self._flows.set()

    def cut_after(self, size_bytes: int) -> None:
        """Pass so many more bytes on, then reset the connection."""
        self._left = size_bytes

    def pump(self) -> None:
        try:
            while data := self._source.recv(_CHUNK_BYTES):
                self._flows.wait()
                left = self._left
                if left is not None and left <= len(data):
                    self._target.sendall(data[:left])
                    self.is_cut = True
                    break
                self._target.sendall(data)
                self.bytes += len(data)
        except OSError:
            # One of the two has gone, or `end` has closed it.
            pass
        for one in (self._source, self._target):
            _close(one, is_reset=self.is_cut)

    def end(self) -> None:
        self._flows.set()
        for one in (self._source, self._target):
            _close(one)


class Link:
    """One connection through a proxy: `there` is what the connecting side sends, `back` the answers."""

    def __init__(self, client: socket.socket, server: socket.socket, *, is_clogged: bool = False) -> None:
        self.there = Direction(client, server)
        self.back = Direction(server, client)
        if is_clogged:
            # Before the first byte passes: a handshake needs only a moment.
            self.there.clog()
            self.back.clog()
        self._threads = [threading.Thread(target=one.pump, daemon=True) for one in (self.there, self.back)]
        for thread in self._threads:
            thread.start()

    @property
    def is_open(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        self.there.end()
        for thread in self._threads:
            thread.join(10)


class Proxy:
    """Passes connections on to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._is_clogged = False
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def links(self) -> list[Link]:
        """The open connections, oldest first."""
        with self._lock:
            return [one for one in self._links if one.is_open]

    def clog(self) -> None:
        """Clog all connections in both directions, and those to come."""
        with self._lock:
            self._is_clogged = True
            for one in self._links:
                one.there.clog()
                one.back.clog()

    def unclog(self) -> None:
        with self._lock:
            self._is_clogged = False
            for one in self._links:
                one.there.unclog()
                one.back.unclog()

    def end(self) -> None:
        # Closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for one in self._links:
            one.end()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._links.append(Link(client, server, is_clogged=self._is_clogged))


class Network:
    """The proxies of the jobs that are started from now on, by this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control: Proxy | None = None
        self._data: dict[int, Proxy] = {}
        """By the port that a worker listens on for its inputs."""
        provide, heard = ClusterWorkers.provide, CoordinatorDriver.link_message

        def provide_ours(supply: ClusterWorkers, plan: Any) -> None:
            self.control = Proxy(plan.coordinator_port)
            provide(supply, replace(plan, coordinator_port=self.control.port))

        def hear_ours(driver: CoordinatorDriver, link: Any, message: Any) -> None:
            if isinstance(message, RegisterWorker):
                message = replace(message, data_port=self._passing_on_to(message.data_port).port)
            heard(driver, link, message)

        monkeypatch.setattr(ClusterWorkers, "provide", provide_ours)
        monkeypatch.setattr(CoordinatorDriver, "link_message", hear_ours)

    def into(self, job: Any, worker: int) -> Proxy:
        """The proxy of what connects to one worker: the workers with a lower index."""
        port = job._run.driver._coordinator.registry.held[worker].registration.data_port
        return next(one for one in self._data.values() if one.port == port)

    def end(self) -> None:
        for proxy in (self.control, *self._data.values()):
            if proxy is not None:
                proxy.end()

    def _passing_on_to(self, port: int) -> Proxy:
        if port not in self._data:
            self._data[port] = Proxy(port)
        return self._data[port]


def _close(one: socket.socket, *, is_reset: bool = False) -> None:
    try:
        if is_reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Closing alone does not wake a thread that waits in recv.
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is closed already.
        pass
    one.close()
