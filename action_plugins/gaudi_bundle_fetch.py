"""Fetches the items of a bundle's list into its folder on the control node, signs and verifies it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bundle.access import Access  # noqa: E402
from gaudi_serve.bundle.fetch.run import Report, fetch_bundle, verified  # noqa: E402
from gaudi_serve.bundle.fetch.settings import Settings  # noqa: E402
from gaudi_serve.bundle.items import Item, Manifest  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_bundle_fetch: {step: fetch, folder: /srv/bundle, manifest: "...", access: [...], settings: {...}}``."""

    _VALID_ARGS = frozenset(("step", "folder", "manifest", "access", "settings", "fingerprint"))
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``lines`` to show, ``errors``, and the ``fingerprint`` of the key.

        ``step`` is fetch or verify; ``manifest`` the text of the list; ``access`` the results of gaudi_bundle for the
        hosts; ``settings`` the user's variables without their prefix.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        done = self._done()
        found = {"changed": done.changed, "lines": done.lines, "errors": done.errors, "fingerprint": done.fingerprint}
        return {**result, **found}

    def _done(self) -> Report:
        args = self._task.args
        folder, settings = Path(str(args["folder"])), Settings.of(args.get("settings") or {})
        if args["step"] == "verify":
            return verified(folder, settings, str(args.get("fingerprint") or ""))
        access = Access.joined(args["access"])
        known = json.loads(args["manifest"])
        manifest = Manifest(tuple(map(Item.of, known["items"])), known["made"])
        return fetch_bundle(folder, manifest, settings, access, self._tell, self._task.check_mode)

    @staticmethod
    def _tell(line: str) -> None:
        Display().display(f"  {line}")
