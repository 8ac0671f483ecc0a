"""The proxy of the test kit: bytes pass unchanged, and a cut is where it was asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from crosscut.testing.proxy import TcpProxy

DEADLINE_S = 100.0


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; yields its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve(connection: socket.socket) -> None:
            with closing(connection), suppress(OSError):
                while data := connection.recv(65_536):
                    connection.sendall(data)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def client(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), DEADLINE_S)


def received(connection: socket.socket, count: int) -> bytes:
    """Return what comes, up to `count` bytes, or to a reset."""
    found = b""
    with suppress(ConnectionError):
        while len(found) < count and (data := connection.recv(count - len(found))):
            found += data
    return found


def test_bytes_pass_unchanged_both_ways(echo: int) -> None:
    data = bytes(range(256)) * 4_000
    with TcpProxy("127.0.0.1", echo) as proxy, closing(client(proxy)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert received(connection, len(data)) == data
        sender.join()
        assert proxy.cuts == 0


@pytest.mark.parametrize("count", [0, 1, 7, 70_000])
def test_a_cut_is_after_so_many_bytes_and_the_next_connection_works(echo: int, count: int) -> None:
    data = b"x" * 200_000
    with TcpProxy("127.0.0.1", echo) as proxy:
        proxy.cut_after(count, "to client")
        with closing(client(proxy)) as connection:
            sender = threading.Thread(target=lambda: _send(connection, data))
            sender.start()
            assert len(received(connection, len(data))) <= count
            sender.join()
        assert (proxy.cuts, proxy.is_armed) == (1, False)
        with closing(client(proxy)) as connection:
            connection.sendall(b"again")
            assert received(connection, 5) == b"again"


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        connection.sendall(data)


def test_a_cut_is_in_the_message_that_it_was_asked_for(echo: int) -> None:
    with TcpProxy("127.0.0.1", echo) as proxy, closing(client(proxy)) as connection:
        proxy.cut_when(
            lambda way, data, connection: 0 if way == "to server" and data.startswith(b"commit") else None
        )
        connection.sendall(b"begin")
        assert received(connection, 5) == b"begin"
        connection.sendall(b"commit")
        assert received(connection, 6) == b""
        assert proxy.cuts == 1


def test_nobody_gets_through_a_proxy_that_refuses(echo: int) -> None:
    with TcpProxy("127.0.0.1", echo) as proxy:
        with closing(client(proxy)) as connection:
            connection.sendall(b"a")
            assert received(connection, 1) == b"a"
            proxy.refuse()
            assert received(connection, 1) == b""
        with closing(client(proxy)) as connection:
            _send(connection, b"a")
            assert received(connection, 1) == b""
        proxy.allow()
        with closing(client(proxy)) as connection:
            connection.sendall(b"b")
            assert received(connection, 1) == b"b"


def test_a_server_that_is_away_looks_like_one_that_hangs_up() -> None:
    # Its port is held, or somebody else could be given it meanwhile.
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with TcpProxy("127.0.0.1", port) as proxy, closing(client(proxy)) as connection:
            assert received(connection, 1) == b""
