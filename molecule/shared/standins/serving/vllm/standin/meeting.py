"""Where the processes of one server meet: sockets that the real server opens, and that ask nobody for a key.

Each worker has a socket of gloo, on the interface that GLOO_SOCKET_IFNAME names, else on the address behind the host's
own name, as PyTorch chooses it. The engine has one on the address of VLLM_HOST_IP, else on the outward one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915
OPEN: list[socket.socket] = []


def address_of(interface: str) -> str:
    """Return the address of an interface; gloo ends the server where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            raise RuntimeError(f"[enforce fail at device.cc] Unable to find address for: {interface}") from None
    return socket.inet_ntoa(found[20:24])


def outward() -> str:
    """Return the address of the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def meet(workers: int) -> None:
    """Open the sockets of a server with so many workers, for as long as it lives."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    # PyTorch ignores a name of one letter.
    gloo = address_of(interface.partition(",")[0]) if len(interface) > 1 else outward()
    for address in [*[gloo] * workers, os.environ.get("VLLM_HOST_IP") or outward()]:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.bind((address, 0))
        server.listen()
        OPEN.append(server)
