"""The files of a gateway: HAProxy's configuration, its maps of names and keys, and its error responses.

The toolkit generates all files; users do not edit them. They contain only digests of the clients' keys. The keys of
the servers are in one map of mode 0600, which HAProxy reads before it drops root's rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..core.templates import ROLES, rendered
from .answers import ANSWERS
from .objects import Chat, Client, Gateway

# Logic that HAProxy's configuration cannot express. HAProxy 2.6 crashes with shared state: each thread has its own.
LUA, USAGE = (Path(__file__).with_name(f"{name}.lua") for name in ("gateway", "usage"))
# The chat page: its files with their media types, and the settings that it loads first.
CHAT = ROLES / "gateway/files/chat"
CHAT_FILES = {
    "index.html": "text/html",
    "chat.css": "text/css",
    **dict.fromkeys(("chat.js", "marked.js", "purify.js"), "text/javascript"),
}
CHAT_SETTINGS = "settings.json"
# The client's name if the gateway requires no key.
EVERYBODY = "-"
# Separates the names of a client and a model in a map, as in haproxy.cfg.j2; neither name contains it.
BETWEEN = "|"
ADDRESS = "keepalived.conf"
# keepalived runs this check: HAProxy must respond, not only run.
HEALTH_FILE = "health.py"
HEALTH = """import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
with urllib.request.build_opener(*handlers).open(sys.argv[1], timeout=2) as answer:
    sys.exit(answer.status != 200)
"""


@dataclass(frozen=True)
class File:
    """One file: its text, mode and group, and whether it contains a secret, which no diff may show."""

    text: str
    mode: str = "0644"
    secret: bool = False
    group: str = "root"


def gateway_files(gateway: Gateway) -> dict[str, File]:
    """Return the files of a gateway by path."""
    clients: list[Client | None] = [*(gateway.clients or [None]), *(gateway.chat.clients if gateway.chat else ())]
    keys = [f"{client.sha256.upper()} {client.name}" for client in gateway.clients]
    rates = [f"{client.name} {client.requests_per_minute}" for client in gateway.everyone if client.requests_per_minute]
    allowed = [
        f"{_name(client)}{BETWEEN}{name} {_allowed(gateway, client, name)}"
        for client in clients
        for name in gateway.of_client(client)
    ]
    lists = [f"{_name(client)} {_models(gateway, client)}" for client in clients]
    programs = [LUA, USAGE] if gateway.usage else [LUA]
    texts = {
        "haproxy.cfg": rendered(
            *("gateway", "haproxy.cfg.j2"),
            gateway=gateway,
            programs=[one.name for one in programs],
            everybody=EVERYBODY,
            page={**CHAT_FILES, CHAT_SETTINGS: "application/json"},
        ),
        "models.map": _lines(f"{name} {one.name}" for one in gateway.backends for name in one.names),
        "clients.map": _lines(keys),
        "rates.map": _lines(rates),
        "allowed.map": _lines(allowed),
        "lists.map": _lines(lists),
        "known.map": _lines(f"{_name(one)} {', '.join(gateway.of_client(one)) or 'none'}" for one in clients),
        **ANSWERS,
        "failed.map": "",
        "ejected.map": "",
        **{one.name: one.read_text(encoding="utf-8") for one in programs},
        **({"usage.map": ""} if gateway.usage else {}),
        **(_address(gateway) if gateway.virtual_address else {}),
        **(_chat(gateway) if gateway.chat else {}),
    }
    files = {f"{gateway.folder}/{name}": File(text) for name, text in texts.items()}
    secrets = {"servers.map": _lines(f"{one.name} {one.key}" for one in gateway.backends if one.key)}
    if gateway.chat and gateway.chat.users:
        # Digests of passwords are secret too, because people choose weak passwords.
        secrets["users.map"] = _lines(f"{one.sha256.upper()} {one.name}" for one in gateway.chat.users)
    return {**files, **{f"{gateway.folder}/{name}": File(text, "0600", secret=True) for name, text in secrets.items()}}


def _chat(gateway: Gateway) -> dict[str, str]:
    """Return the files of the chat page and its settings."""
    chat = gateway.chat or Chat()
    settings = {"title": chat.title, "system_prompt": chat.system_prompt}
    texts = {name: (CHAT / name).read_text(encoding="utf-8") for name in CHAT_FILES}
    return {f"chat-{name}": text for name, text in {**texts, CHAT_SETTINGS: json.dumps(settings) + "\n"}.items()}


def _address(gateway: Gateway) -> dict[str, str]:
    """Return the files of keepalived, which manages the address that several gateways share."""
    health = PurePosixPath(gateway.folder).with_name("current") / HEALTH_FILE
    return {ADDRESS: rendered("gateway", "keepalived.conf.j2", gateway=gateway, health=health), HEALTH_FILE: HEALTH}


def _name(client: Client | None) -> str:
    return client.name if client else EVERYBODY


def _allowed(gateway: Gateway, client: Client | None, name: str) -> str:
    """Return how much a request body must specify for a client and a model name.

    ``strict`` if the client may not use all names of the servers of this model; ``named`` if a server would use another
    model for a body without a name; ``all`` otherwise.
    """
    beside = gateway.beside(name)
    if client and client.models and not beside <= set(client.models):
        return "strict"
    bases = {backend.model for backend in gateway.backends} & beside
    return "all" if bases == {name} else "named"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _models(gateway: Gateway, client: Client | None) -> str:
    """Return the response to /v1/models for a client on one line; users of the chat page also get the input kinds."""
    kinds = {name: list(one.kinds) for one in gateway.backends for name in one.names}
    of_chat = gateway.chat is not None and client in gateway.chat.clients
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "gaudi-serve"}
        | ({"kinds": kinds[name]} if of_chat else {})
        for name in gateway.of_client(client)
    ]
    return json.dumps({"object": "list", "data": data}, separators=(",", ":"))
