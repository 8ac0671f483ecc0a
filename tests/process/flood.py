"""A program that connects to ports, says nothing, and does so again, as fast as it can.

Loopback only. It keeps a bounded number of connections, and ends when its standard input does, or its time
is up.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

LOOPBACK = "127.0.0.1"
CONNECTIONS_MAX = 400
SECONDS_MAX = 600.0


def flood(ports: list[int]) -> int:
    """Return how many connections there were."""
    held: deque[socket.socket] = deque()
    count = 0
    ends_s = time.monotonic() + SECONDS_MAX
    while time.monotonic() < ends_s and not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(50):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((LOOPBACK, ports[count % len(ports)]))
            held.append(one)
            count += 1
            if len(held) > CONNECTIONS_MAX:
                held.popleft().close()
    for one in held:
        one.close()
    return count


if __name__ == "__main__":
    print(flood([int(port) for port in sys.argv[1:]]))
