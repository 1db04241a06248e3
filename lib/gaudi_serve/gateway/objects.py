"""What a gateway serves: models with their servers, the clients that may ask, and where it listens."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import ip_address

# Names of proxies and servers in HAProxy.
PLAIN = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Server:
    """One vLLM server.

    name: of the model on its host, and the host's, such as ``gaudi01.qwq-32b``; address, port: where it listens, as the
    gateway reaches it; takes: requests that it works on at a time (max_num_seqs).
    """

    name: str
    address: str
    port: int
    takes: int


@dataclass(frozen=True)
class Backend:
    """A model as clients know it, and all servers that have it.

    model: the name in a request's body. key: what its servers ask of the gateway; empty where they ask nothing.
    adapters: further names that the same servers answer to, such as those of LoRA adapters. partly: names that only
    some of them answer to, as while an adapter comes; nobody may ask for them yet. balance: which server gets a
    request: the one with the ``least`` requests, or the one that had the same ``session`` or the same ``prefix``.
    kinds: what all of its servers take in a conversation, ``text`` and ``image``; empty for models that do not talk.
    """

    model: str
    servers: tuple[Server, ...]
    key: str = ""
    adapters: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    balance: str = "least"
    kinds: tuple[str, ...] = ("text",)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names that its servers answer to."""
        return (self.model, *self.adapters)

    @property
    def places(self) -> int:
        """Return how many requests its servers work on at a time."""
        return sum(server.takes for server in self.servers)

    @property
    def quarter(self) -> int:
        """Return how many of these places one client may have with requests larger than the gateway's buffer."""
        return max(1, self.places // 4)

    @property
    def name(self) -> str:
        """Return its name in HAProxy: the model's, with a digest where that has signs that HAProxy does not take."""
        plain = PLAIN.sub("_", self.model)
        return plain if plain == self.model else f"{plain}-{hashlib.sha256(self.model.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Client:
    """One who may ask.

    name: for logs and limits. sha256: of the key, in hexadecimal; the key itself is nowhere. models: those that the
    client may use; empty for all. requests_per_minute: 0 for any number.
    """

    name: str
    sha256: str
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0


@dataclass(frozen=True)
class Chat:
    """A page on which people talk to the models.

    address, port: where it is; with the gateway's certificate, where that has one. title: its heading. system_prompt:
    what a conversation begins with. users: who may log in, as clients with the digest of ``NAME:PASSWORD``; without any
    everybody may use it who reaches it.
    """

    address: str = "127.0.0.1"
    port: int = 8090
    title: str = "Chat"
    system_prompt: str = ""
    users: tuple[Client, ...] = ()

    @property
    def clients(self) -> tuple[Client, ...]:
        """Return as whom its users ask the gateway."""
        return self.users or (Client("chat", ""),)

    @property
    def is_local(self) -> bool:
        """Return whether only users of its host reach it."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True)
class Gateway:
    """A gateway.

    address, port: where it listens; certificate: path of the file with certificate and key on its host, empty for plain
    HTTP. backends: what it serves. clients: who may ask; without any everybody may. waiting: requests of one key for
    one model that may wait for a server; wait_s: how long. body_mib: the largest request. buffer_kib: how much of a
    request is searched for the model's name. connections: at the same time; connections_per_address: of those from one
    address, 0 for a quarter. client_s: how long a client may be silent while the gateway expects something of it.
    hard_stop_s: how long an old worker may finish its requests after a reload. paths: that pass beside those of the
    model's API. cors_origins: sites whose pages may ask from a browser. usage:
    count tokens by client and model. metrics_port: of Prometheus' page, on loopback. chat: the page for people.
    virtual_address: that several gateways share, with the length of its network; virtual_router_id: which tells them
    from others in their network; virtual_interface: where it is; rank: of this gateway among them, 0 for the first.
    folder, run: of its files, and of its sockets; state: the file of what a reload and a restart must not forget. user:
    whom the workers run as; empty for whoever starts it.
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

    @property
    def ports(self) -> dict[str, int]:
        """Return the ports at which it listens, by the keys that name them."""
        found = {"port": self.port, "metrics_port": self.metrics_port}
        return {**found, "chat.port": self.chat.port} if self.chat else found

    @property
    def everyone(self) -> tuple[Client, ...]:
        """Return the clients, and as whom the users of the page ask."""
        return (*self.clients, *(self.chat.clients if self.chat else ()))

    @property
    def most_per_address(self) -> int:
        """Return how many connections one address may have at the same time."""
        return self.connections_per_address or max(1, self.connections // 4)

    @property
    def header_bytes(self) -> int:
        """Return the bytes that all headers of a request may have."""
        return min(32, self.buffer_kib // 4) * 1024

    @property
    def read_bytes(self) -> int:
        """Return the bytes of a body that certainly fit the buffer beside the headers, and beside what HAProxy adds."""
        size = self.buffer_kib * 1024
        return min(size * 3 // 4, size - self.header_bytes - 2048)

    @property
    def only_name(self) -> str:
        """Return the one name that can be requested; empty where there are several."""
        names = [name for backend in self.backends for name in backend.names]
        return names[0] if len(names) == 1 else ""

    @property
    def shared_names(self) -> bool:
        """Return whether servers of some model answer to other names too."""
        return any(len(self.beside(backend.model)) > 1 for backend in self.backends)

    def of_backend(self, backend: Backend) -> list[Client]:
        """Return the clients that may use a model."""
        return [one for one in self.everyone if not one.models or set(one.models) & set(backend.names)]

    def beside(self, name: str) -> set[str]:
        """Return all names that the servers of a name answer to."""
        own = next(backend for backend in self.backends if name in backend.names)
        places = {(server.address, server.port) for server in own.servers}
        there = (one for one in self.backends if places & {(server.address, server.port) for server in one.servers})
        return {found for one in (own, *there) for found in (*one.names, *one.partly)}

    def of_client(self, client: Client | None) -> list[str]:
        """Return the names of models that a client may use, sorted; None is one of a gateway without clients."""
        names = sorted(name for backend in self.backends for name in backend.names)
        return [name for name in names if not client or not client.models or name in client.models]
