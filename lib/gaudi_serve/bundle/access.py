"""Data that a download needs in addition to the list: complete addresses, logins and tokens. No list contains it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.hide import hidden, logins, without_credentials
from ..host.secret import given_secrets
from ..platforms import runtimes
from ..stages.apt_access import apt_access
from .host import BundleHost
from .items import Item
from .weights import sources_of


@dataclass(frozen=True)
class Access:
    """Data that a download needs in addition to the list.

    origins: complete addresses by their redacted form in the list. repositories: package repositories by release, as
    inventories write them. logins: of registries. tokens: of hubs, by kind. weights: the sources of weights, each
    with the ``name``, ``version`` and ``origin`` of its item. systems: the releases of the hosts, by host name.
    """

    origins: Mapping[str, str] = field(default_factory=dict)
    repositories: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    logins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    weights: Sequence[Mapping[str, Any]] = ()
    systems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Iterable[Mapping[str, Any]]) -> Access:
        """Return the joint access data of all hosts, from results of host_access; the first login for a key counts."""
        repositories: dict[str, list[Mapping[str, Any]]] = {}
        merged: dict[str, dict[str, Any]] = {key: {} for key in ("origins", "logins", "tokens", "systems")}
        weights: list[Mapping[str, Any]] = []
        for part in parts:
            for system, given in part["repositories"].items():
                known = repositories.setdefault(system, [])
                known += [one for one in given if one not in known]
            for key, value in merged.items():
                merged[key] = {**part[key], **value}
            weights += [one for one in part["weights"] if one not in weights]
        return cls(repositories=repositories, weights=weights, **merged)

    def origin(self, item: Item) -> str:
        """Return the complete address of an item, with its login."""
        return self.origins.get(item.origin, item.origin)

    def cleaned(self, text: str, more: Sequence[Any] = ()) -> str:
        """Return a text without secrets: it contains no login of an address and no other secret.

        Args:
            text: the output of a program.
            more: further values with addresses, such as package sources of the settings.
        """
        passwords = [login["password"] for login in self.logins.values()]
        proxies = [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
        addresses = logins(*self.origins.values(), *self.repositories.values(), *proxies, *more)
        return hidden(text, [*passwords, *self.tokens.values(), *addresses])


def host_access(host: BundleHost, items: Sequence[Item]) -> dict[str, Any]:
    """Return the data that the download of a host's items needs.

    Args:
        host: the host of the items.
        items: the listed items, with their logins.
    """
    known = host.known
    shown = [(one.redacted().origin, one.origin) for one in items]
    sources = sources_of(host) if any(one.kind == "weights" for one in items) else []
    weights = [
        {"name": item.name, "version": item.version, "origin": item.origin, "source": dict(source)}
        for item, source in ((one.redacted(), source) for one, source in sources)
    ]
    return {
        "origins": {clean: whole for clean, whole in shown if clean != whole},
        "repositories": {host.release: _repositories(host, items)} if known.get("gaudi_system") else {},
        "logins": dict(given_secrets(known.get("vllm_image_registries") or {}) or {}),
        "tokens": {key: str(one) for key, one in (known.get("model_weights_tokens") or {}).items() if one},
        "weights": weights,
        "systems": {host.name: host.release} if known.get("gaudi_system") else {},
    }


def _repositories(host: BundleHost, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the repositories in the list of a host, as the inventory writes them."""
    names = ["driver_repository", *(f"container_runtime_{one.name}_repository" for one in runtimes())]
    given = [host.known.get(name) or {} for name in names]
    own = "container_runtime_vendor_"
    if host.known.get("container_runtime_engine") == "vendor":
        place = f"{host.known[f'{own}uri']}/{host.system['id']}"
        key = host.known[f"{own}key_url"] or f"{place}/gpg"
        suites = [str(host.system.get("codename") or "")]
        given.append({"uris": [place], "suites": suites, "components": ["stable"], "signed_by": key})
    listed = {one.name for one in items if one.kind == "repository"}
    return [dict(one) for one in given if one and listed & {str(without_credentials(uri)) for uri in uris_of(one)}]


def uris_of(repository: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a repository without logins."""
    return [str(one) for one in apt_access(repository["uris"])["uris"]]
