"""The files of a gateway: HAProxy's configuration, the maps that it looks names and keys up in, and its answers.

All of it is computed; nobody edits it. Clients' keys are there as digests alone. The servers' own keys are in one map
of mode 0600, which HAProxy reads before it drops root's rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..core.templates import ROLES, rendered
from .answers import ANSWERS
from .objects import Chat, Client, Gateway

# What HAProxy's own language cannot do; each thread has its own state, since HAProxy 2.6 crashes with a shared one.
LUA, USAGE = (Path(__file__).with_name(f"{name}.lua") for name in ("gateway", "usage"))
# The page for chats: its files with their kinds, and what it reads first.
CHAT = ROLES / "gateway/files/chat"
CHAT_FILES = {
    "index.html": "text/html",
    "chat.css": "text/css",
    **dict.fromkeys(("chat.js", "marked.js", "purify.js"), "text/javascript"),
}
CHAT_SETTINGS = "settings.json"
# A client of a gateway that asks for no key.
EVERYBODY = "-"
# Between a client's name and a model's in a map, as haproxy.cfg.j2 has it; neither name has one.
BETWEEN = "|"
ADDRESS = "keepalived.conf"
# Run by keepalived: the gateway must answer, not only run.
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
    """One file: its text, its mode, whether it holds a secret, which no diff may show, and the group that owns it."""

    text: str
    mode: str = "0644"
    secret: bool = False
    group: str = "root"


def gateway_files(gateway: Gateway) -> dict[str, File]:
    """Return the files by their paths."""
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
        **{one.name: one.read_text(encoding="utf-8") for one in programs},
        **({"usage.map": ""} if gateway.usage else {}),
        **(_address(gateway) if gateway.virtual_address else {}),
        **(_chat(gateway) if gateway.chat else {}),
    }
    files = {f"{gateway.folder}/{name}": File(text) for name, text in texts.items()}
    secrets = {"servers.map": _lines(f"{one.name} {one.key}" for one in gateway.backends if one.key)}
    if gateway.chat and gateway.chat.users:
        # Digests of passwords, which people choose.
        secrets["users.map"] = _lines(f"{one.sha256.upper()} {one.name}" for one in gateway.chat.users)
    return {**files, **{f"{gateway.folder}/{name}": File(text, "0600", secret=True) for name, text in secrets.items()}}


def _chat(gateway: Gateway) -> dict[str, str]:
    """Return the files of the page for chats, and what it reads first."""
    chat = gateway.chat or Chat()
    settings = {"title": chat.title, "system_prompt": chat.system_prompt}
    texts = {name: (CHAT / name).read_text(encoding="utf-8") for name in CHAT_FILES}
    return {f"chat-{name}": text for name, text in {**texts, CHAT_SETTINGS: json.dumps(settings) + "\n"}.items()}


def _address(gateway: Gateway) -> dict[str, str]:
    """Return the files of keepalived, which holds the address that several gateways share."""
    health = PurePosixPath(gateway.folder).with_name("current") / HEALTH_FILE
    return {ADDRESS: rendered("gateway", "keepalived.conf.j2", gateway=gateway, health=health), HEALTH_FILE: HEALTH}


def _name(client: Client | None) -> str:
    return client.name if client else EVERYBODY


def _allowed(gateway: Gateway, client: Client | None, name: str) -> str:
    """Return how much a body must say.

    ``strict`` where the client may not use all names of the servers that serve this one; ``named`` where a server would
    use another model for a body without a name; ``all`` otherwise.
    """
    beside = gateway.beside(name)
    if client and client.models and not beside <= set(client.models):
        return "strict"
    bases = {backend.model for backend in gateway.backends} & beside
    return "all" if bases == {name} else "named"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _models(gateway: Gateway, client: Client | None) -> str:
    """Return what /v1/models answers a client, on one line; users of the page for chats learn what a model takes."""
    kinds = {name: list(one.kinds) for one in gateway.backends for name in one.names}
    of_chat = gateway.chat is not None and client in gateway.chat.clients
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "gaudi-serve"}
        | ({"kinds": kinds[name]} if of_chat else {})
        for name in gateway.of_client(client)
    ]
    return json.dumps({"object": "list", "data": data}, separators=(",", ":"))
