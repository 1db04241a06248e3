"""BIOS settings against OpenStack's virtual BMC, a Redfish service that this project has not written.

Its fake driver has no BIOS, so the test gives it the attributes of its libvirt driver, in memory. Paths, templates, the
registry and basic authentication are its own.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from gaudi_serve.bios.client import Bmc, BmcError, Redfish
from gaudi_serve.bios.compare import compared
from gaudi_serve.bios.observe import observed, stage
from helpers.bmc import PASSWORD, USER, certificate
from sushy_tools.emulator import main
from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver
from sushy_tools.emulator.resources.systems.libvirtdriver import LibvirtDriver
from werkzeug.serving import make_server


class WithBios(FakeDriver):  # type: ignore[misc]  # sushy-tools has no type information
    """The fake driver, with a BIOS."""

    values: dict[str, Any]

    def get_bios(self, _: str) -> dict[str, Any]:
        """Return the values."""
        return self.values

    def set_bios(self, _: str, attributes: dict[str, Any]) -> None:
        """Set values."""
        self.values.update(attributes)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmc]:
    """Return the address and login of the running virtual BMC."""
    folder = tmp_path_factory.mktemp("sushy")
    key, path = certificate(folder)
    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n", encoding="ascii")
    WithBios.values = dict(LibvirtDriver.DEFAULT_BIOS_ATTRIBUTES)
    main.fakedriver.FakeDriver = WithBios
    settings = {"SUSHY_EMULATOR_FAKE_DRIVER": True, "SUSHY_EMULATOR_STATE_DIR": str(folder)}
    main.app.configure(extra_config={**settings, "SUSHY_EMULATOR_AUTH_FILE": str(users)})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    server = make_server("127.0.0.1", 0, main.app, ssl_context=context)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    ca = Path(path).read_text(encoding="ascii")
    yield Bmc(f"127.0.0.1:{server.server_port}", USER, PASSWORD, ca, wait_s=2, pause_s=0.02)
    server.shutdown()


def test_settings_are_read_refused_and_changed(emulator: Bmc) -> None:
    with Redfish(emulator) as client:
        seen = observed(client, registry=True)
    assert seen["settings"].endswith("/BIOS/Settings")
    assert (seen["current"]["ProcTurboMode"], seen["pending"], seen["jobs"]) == ("Enabled", {}, [])
    # It shows booleans as texts; its password has no value.
    found = compared({"ProcTurboMode": "Disabled", "QuietBoot": True}, seen)
    assert (found.refusals, found.patch) == ([], {"ProcTurboMode": "Disabled"})
    (text,) = compared({"ProcTurboMode": "Sometimes"}, seen).refusals
    assert text == "ProcTurboMode: 'Sometimes' must be Enabled, Disabled"
    with Redfish(emulator) as client:
        assert stage(client, found.patch) == {"job": ""}
        assert observed(client)["current"]["ProcTurboMode"] == "Disabled"


def test_a_wrong_password_is_refused_in_one_sentence(emulator: Bmc) -> None:
    wrong = Bmc(emulator.address, USER, "hunter2", emulator.ca, wait_s=2, pause_s=0.02)
    with (
        pytest.raises(BmcError, match="it refuses user operator or the password; nothing is tried again"),
        Redfish(wrong) as client,
    ):
        observed(client)
