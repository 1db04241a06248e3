"""The objects of a gateway: models with their servers, clients, and listen addresses."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import ip_address

# Matches characters that are invalid in names of proxies and servers in HAProxy.
PLAIN = re.compile(r"[^A-Za-z0-9_.-]")
# The value of ``fleet_gateway.state`` that removes a gateway.
ABSENT = "absent"


@dataclass(frozen=True)
class Server:
    """One vLLM server.

    name: the host's and the model's name, such as ``gaudi01.qwq-32b``; address, port: where the gateway reaches it;
    takes: concurrent requests (max_num_seqs).
    """

    name: str
    address: str
    port: int
    takes: int


@dataclass(frozen=True)
class Backend:
    """A model by its name for clients, and all servers that have it.

    model: the name in a request's body. key: the key that its servers require from the gateway; empty if they require
    none. adapters: further names that all its servers accept, such as LoRA adapters. partly: names that only some
    servers accept, for example while an adapter is rolled out; clients cannot use them yet. balance: how a server is
    chosen: the one with the ``least`` requests, or the one that had the same ``session`` or the same ``prefix``.
    kinds: input kinds that all its servers accept, ``text`` and ``image``; empty for models without text output.
    first_byte_s: how long a server may be silent before an answer and in its middle, in addition to the time for its
    body and tokens.
    """

    model: str
    servers: tuple[Server, ...]
    key: str = ""
    adapters: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    balance: str = "least"
    kinds: tuple[str, ...] = ("text",)
    first_byte_s: int = 600

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names that its servers accept."""
        return (self.model, *self.adapters)

    @property
    def places(self) -> int:
        """Return the number of concurrent requests of all its servers."""
        return sum(server.takes for server in self.servers)

    @property
    def quarter(self) -> int:
        """Return the number of these places that one client may use for requests larger than the gateway's buffer."""
        return max(1, self.places // 4)

    @property
    def name(self) -> str:
        """Return the model's name for HAProxy; with a digest if HAProxy does not accept some characters."""
        plain = PLAIN.sub("_", self.model)
        return plain if plain == self.model else f"{plain}-{hashlib.sha256(self.model.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Client:
    """A client that may send requests.

    name: for logs and limits. sha256: digest of the key in hexadecimal; the key itself is not stored. models: those
    that the client may use; empty for all. requests_per_minute: the limit; 0 for no limit.
    """

    name: str
    sha256: str
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0


@dataclass(frozen=True)
class Chat:
    """A page on which people chat with the models.

    address, port: where it listens; it uses the gateway's certificate, if there is one. title: its heading.
    system_prompt: the beginning of each conversation. users: clients with the digest of ``NAME:PASSWORD`` that may log
    in; without users, everyone who reaches the page may use it.
    """

    address: str = "127.0.0.1"
    port: int = 8090
    title: str = "Chat"
    system_prompt: str = ""
    users: tuple[Client, ...] = ()

    @property
    def clients(self) -> tuple[Client, ...]:
        """Return the clients as which the page's users send requests."""
        return self.users or (Client("chat", ""),)

    @property
    def is_local(self) -> bool:
        """Return whether only users on its host reach the page."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True)
class Gateway:
    """A gateway.

    address, port: where it listens; certificate: path on its host of the file with certificate and key, empty for
    plain HTTP. backends: the models that it serves. clients: who may send requests; without clients, everyone may.
    waiting: requests of one key for one model that may wait for a server; wait_s: how long. body_mib: the largest
    request. buffer_kib: how much of a request is searched for the model's name. connections: concurrent connections;
    connections_per_address: those from one address, 0 for a quarter. client_s: how long a client may be silent while
    the gateway waits for its data. hard_stop_s: how long an old worker may finish its requests after a reload.
    paths: allowed paths in addition to those of the model's API. cors_origins: sites whose pages may send requests
    from a browser. usage: count tokens by client and model. metrics_port: loopback port of the metrics for
    Prometheus. chat: the page for people. virtual_address: address with prefix length that several gateways share;
    virtual_router_id: distinguishes these gateways from others in their network; virtual_interface: interface of the
    address; rank: of this gateway among them, 0 for the first. folder, run: of its files, and of its sockets; state:
    the file with the state that survives a reload and a restart. user: the user of the workers; empty for the user
    that starts HAProxy.
    """

    address: str = "127.0.0.1"
    port: int = 8080
    certificate: str = ""
    backends: tuple[Backend, ...] = ()
    clients: tuple[Client, ...] = ()
    waiting: int = 100
    wait_s: int = 60
    body_mib: int = 64
    buffer_kib: int = 256
    connections: int = 4000
    connections_per_address: int = 0
    client_s: int = 30
    hard_stop_s: int = 3600
    paths: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    usage: bool = False
    metrics_port: int = 8405
    virtual_address: str = ""
    virtual_router_id: int = 51
    virtual_interface: str = ""
    rank: int = 0
    folder: str = "/etc/gaudi-serve/gateway"
    run: str = "/run/gaudi-gateway"
    state: str = "/var/lib/gaudi-serve/gateway/state"
    user: str = "haproxy"
    chat: Chat | None = None
    present: bool = True

    @property
    def ports(self) -> dict[str, int]:
        """Return the ports at which the gateway listens, by their keys; none if it is to be removed."""
        if not self.present:
            return {}
        found = {"port": self.port, "metrics_port": self.metrics_port}
        return {**found, "chat.port": self.chat.port} if self.chat else found

    @property
    def everyone(self) -> tuple[Client, ...]:
        """Return the clients, including those of the chat page."""
        return (*self.clients, *(self.chat.clients if self.chat else ()))

    @property
    def most_per_address(self) -> int:
        """Return the maximum of concurrent connections from one address."""
        return self.connections_per_address or max(1, self.connections // 4)

    @property
    def most_per_key(self) -> int:
        """Return the maximum of concurrent requests of one key for all models."""
        return min(self.connections, sum(one.places + self.waiting for one in self.backends) or self.waiting + 1)

    @property
    def header_bytes(self) -> int:
        """Return the maximum size of all headers of a request, in bytes."""
        return min(32, self.buffer_kib // 4) * 1024

    @property
    def read_bytes(self) -> int:
        """Return the bytes of a body that fit into the buffer together with the headers and HAProxy's own data."""
        size = self.buffer_kib * 1024
        return min(size * 3 // 4, size - self.header_bytes - 2048)

    @property
    def only_name(self) -> str:
        """Return the only name that clients can request; empty if there are several."""
        names = [name for backend in self.backends for name in backend.names]
        return names[0] if len(names) == 1 else ""

    @property
    def shared_names(self) -> bool:
        """Return whether the servers of a model also accept other names."""
        return any(len(self.beside(backend.model)) > 1 for backend in self.backends)

    def of_backend(self, backend: Backend) -> list[Client]:
        """Return the clients that may use a model."""
        return [one for one in self.everyone if not one.models or set(one.models) & set(backend.names)]

    def beside(self, name: str) -> set[str]:
        """Return all names that the servers of a name accept."""
        own = next(backend for backend in self.backends if name in backend.names)
        places = {(server.address, server.port) for server in own.servers}
        there = (one for one in self.backends if places & {(server.address, server.port) for server in one.servers})
        return {found for one in (own, *there) for found in (*one.names, *one.partly)}

    def of_client(self, client: Client | None) -> list[str]:
        """Return the sorted model names that a client may use; None stands for a gateway without clients."""
        names = sorted(name for backend in self.backends for name in backend.names)
        return [name for name in names if not client or not client.models or name in client.models]
