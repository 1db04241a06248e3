"""Connection plugin: hosts that are a file each, so that a controller can be shown a fleet without one.

Everything on the controller is real: forks, action plugins, packing of modules, arguments, results. What a module is
sent with is read here, where ssh would hand it to Python, and answered from the file as that module would answer.
What this host does not know is an error, never a success. A module's own work has its tests on the hosts of molecule.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))
from gaudi_serve.bench.tool import NEEDED
from gaudi_serve.core.run import sha256_text
from gaudi_serve.gateway.haproxy import FOLDER, UNIT
from gaudi_serve.host import observe_bios, observe_metrics, observe_mirror, observe_network
from gaudi_serve.host.secret import secret_changed, text_differs, with_stored_secrets

DOCUMENTATION = """
name: simulated
short_description: A host that is a file
description:
  - Needs E(GAUDI_SERVE_SIMULATED), the folder of the hosts' files, C(<host>.json).
extends_documentation_fragment:
  - connection_pipelining
options:
  remote_addr:
    description: The host's name, by which its file is found.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
"""

CONFIG, UNITS = "/etc/gaudi-serve", "/etc/systemd/system"
CHECKED = ("gaudi_files", "gaudi_lock", "vllm_bench")  # modules that do something under check mode
SUPERVISOR = "/usr/local/lib/gaudi-serve/vllm-supervisor"
BIOS = "/var/lib/gaudi-serve/bios.json"
DROPIN, SYSCTL = "/etc/default/grub.d/zz-gaudi-serve.cfg", "/etc/sysctl.d/zz-gaudi-serve.conf"
RELEASE = "1.21.3"
DRIVER = [f"habanalabs-{name}" for name in ("dkms", "firmware", "firmware-tools", "graph", "thunk", "rdma-core")]
IMAGE = f"sha256:{'1' * 64}"
CARDS = [
    {
        **{"module_id": number, "index": number, "in_use": False, "numa_node": number // 4},
        "cpus": [f"{number // 4 * 40}-{number // 4 * 40 + 39}"],
    }
    for number in range(8)
]
WEIGHTS = {
    **{"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8},
    **{"max_position_embeddings": 40960, "intermediate_size": 27648, "architectures": ["Qwen2ForCausalLM"]},
}
VIRGIN: dict[str, Any] = {
    "files": {},
    "images": {},
    "units": {},
    "sysctl": {"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"},
    "governor": "powersave",
    "entries": [["root=/dev/sda1"]],
    "cmdline": ["root=/dev/sda1", "cpufreq.default_governor=performance", "intel_idle.max_cstate=0"],
    "held": {},
    **{"hccl": {}, "qualification": {}},
    # Seconds from a unit's start until it serves.
    "warm_up_s": 0.0,
    # What is broken: a stage of FAULTS, or models that are "slow", "garbled" or "crash" since a change, or nothing.
    "fault": "",
    # Its engine is "stopped", units of it are "masked", so many bytes are "free", and "daemon" is its daemon.json.
    **{"engine": "", "masked": [], "free": 2**40, "daemon": None},
    # The config.toml of its habana runtime.
    "habana": "[habana-container-runtime]\nvisible_devices_all_as_default = false\n",
    # Devices in place of eight Gaudi cards: accelerator, device_name, driver_version and modules of gaudi_host; and
    # the runtimes that its engine has, with the packages that install them.
    **{"devices": {}, "runtimes": {}, "packages": {}},
    # How often it was rebooted, and where the tests' BMC hears of it.
    **{"boots": 0, "bmc": ""},
    # How often it has asked its BMC itself.
    "asked": 0,
    # As a gateway: the hosts that it does not ask, each with whether for a reboot; and what it was given, with how
    # often the host had been rebooted then.
    **{"drained": {}, "told": []},
    # How the permissions of its files differ, lines by role.
    "permissions": {},
    # Its connection is lost for so many "seconds" when this module is sent ("at", perhaps with its state).
    "away": {},
}
FAULTS = ("host", "images", "models")
# What module gaudi_facts reads where it is not given.
SUBSETS = (
    *("system", "tuning", "runtime", "services", "hccl", "host", "driver"),
    *("network", "qualification", "bios", "mirror"),
)


class Connection(ConnectionBase):  # type: ignore[misc]  # ansible-core has no type information
    """Hands what would be run on a host to the host's file."""

    transport = "simulated"
    has_pipelining = True

    def _connect(self) -> Connection:
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Answer a module that is sent through the pipe; nothing else is."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        name = str(self.get_option("remote_addr"))
        path = Path(os.environ["GAUDI_SERVE_SIMULATED"], f"{name}.json")
        if not in_data and (answer := rebooted(cmd, path)) is not None:
            return 0, answer.encode(), b""
        if not in_data:
            return 127, b"", f"{name} is simulated and runs modules only, not: {cmd}".encode()
        module, given = sent(in_data.decode())
        host = Host({**VIRGIN, **json.loads(path.read_text(encoding="utf-8"))}, path.parent)
        away = host.state["away"]
        if away.get("at") in (module, f"{module} {given.get('state')}") or "until" in away:
            host.state["away"] = away = {"until": away.get("until") or time.time() + away["seconds"]}
            if time.time() < away["until"]:
                keep(path, host.state)
                raise AnsibleConnectionFailure("No route to host")
            host.state["away"] = {}
        if module == "bios_settings":
            # The module itself, as it was packed: its BMC is as real for this host as for the controller.
            keep(path, {**host.state, "asked": host.state["asked"] + 1})
            done = subprocess.run([sys.executable, "-"], input=in_data, capture_output=True, timeout=60, check=False)
            return done.returncode, done.stdout, done.stderr
        answer = host.answer(module, given)
        keep(path, host.state)
        return int(bool(answer.get("failed"))), json.dumps(answer).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        """Refuse: with pipelining nothing is copied but what a role asks for."""
        raise AnsibleConnectionFailure(f"a simulated host takes no files: {out_path}")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Refuse."""
        raise AnsibleConnectionFailure(f"a simulated host has no files: {in_path}")

    def reset(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def keep(path: Path, state: dict[str, Any]) -> None:
    """Write what a host has, whole or not at all."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(state), encoding="utf-8")
    beside.replace(path)


def rebooted(cmd: str, path: Path) -> str | None:
    """Return what a command prints by which Ansible reboots a host; None for another one.

    A reboot sets the kernel arguments of the menu, and takes settings that nobody has kept. The host's BMC, where it
    has one ("bmc", its control address), resets the system.
    """
    state = {**VIRGIN, **json.loads(path.read_text(encoding="utf-8"))}
    if "/proc/sys/kernel/random/boot_id" in cmd:
        return f"boot-{state['boots']}"
    if "whoami" in cmd:
        return "root"
    if "/sbin/shutdown -r" not in cmd:
        return None
    keep(
        path,
        {**state, "boots": state["boots"] + 1, "cmdline": state["entries"][0], "governor": "powersave", "held": {}},
    )
    if state["bmc"]:
        urllib.request.urlopen(urllib.request.Request(state["bmc"], method="POST"), timeout=10).close()  # noqa: S310 - http
    return ""


def sent(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a module as Ansible has packed it."""
    end = text[text.rindex("_ansiballz_main(") :]
    found = {key: re.search(rf"^{key}=(.*),$", end, re.MULTILINE) for key in ("ansible_module", "params")}
    module, params = (ast.literal_eval(match[1]) if match else "" for match in found.values())
    return str(module).rpartition(".")[2], dict(json.loads(params)["ANSIBLE_MODULE_ARGS"])


def digest(text: str | None) -> str | None:
    """Return what files are compared by."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


class Host:
    """A host with eight cards, engine and driver, which has none of the toolkit's own yet."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self.state, self.folder = state, folder
        self.marks: dict[str, str] = {}

    def answer(self, module: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return what a module would; a failure for one that is not known here."""
        known = getattr(self, f"do_{module}", None)
        if known is None:
            return failure(f"a simulated host knows no module {module}")
        check = bool(given.get("_ansible_check_mode"))
        given = {key: value for key, value in given.items() if not key.startswith("_ansible_")}
        if check and module not in (
            "gaudi_files",
            "gaudi_facts",
            "mirror_read",
            "gaudi_lock",
            "haproxy_config",
            "vllm_bench",
        ):
            return {"changed": False, "skipped": True}
        answer: dict[str, Any] = known(given, check) if module in CHECKED else known(given)
        return {"changed": False, **answer}

    # ---- what is there

    def do_gaudi_facts(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the subsets that are asked for."""
        facts: dict[str, Any] = {"gaudi_observed_at": time.monotonic(), "gaudi_boot_id": f"boot-{self.state['boots']}"}
        gather, self.marks = given.get("gather") or SUBSETS, given.get("secrets") or {}
        for name in [*gather, *(["system"] if "host" in gather else [])]:
            key = {"weights_store": "weights"}.get(name, name)
            facts[f"gaudi_{key}"] = getattr(self, f"see_{key}")()
        if "gaudi_services" in facts and self.state.get("monitoring"):
            facts["gaudi_metrics"] = self.see_metrics()
        facts["gaudi_permissions"] = self.state["permissions"]
        return {"ansible_facts": facts}

    def see_system(self) -> dict[str, Any]:
        """Return system, kernel and kind."""
        debian = {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"}
        kind = self.state["devices"].get("accelerator", "gaudi")
        debian |= {"codename": "bookworm", "architecture": "x86_64"}
        return {**debian, "kernel": "6.1.0-1-amd64", "accelerator": kind, "accelerators": [kind]}

    def see_tuning(self) -> dict[str, Any]:
        """Return settings, of which a boot has set the arguments already."""
        files = self.state["files"]
        return {
            "cmdline": self.state["cmdline"],
            "grub": {
                **{"present": True, "entries": self.state["entries"], "cfg_mtime": 2.0},
                "dropin_sha256": digest(files.get(DROPIN)),
                **{"dropin_mtime": 1.0 if DROPIN in files else None, "dropin_folder_mtime": 1.0},
            },
            "governor": {
                "values": {f"cpu{number}": self.state["governor"] for number in range(2)},
                **{"available": ["performance", "powersave"], "cpupower": True},
            },
            "sysctl": self.state["sysctl"],
            "sysctl_file_sha256": digest(files.get(SYSCTL)),
            **{"sysctl_others": [], "hugepage_kib": 2048, "mem_total_kib": 2**30, "cpuidle_driver": "intel_idle"},
        }

    def see_weights(self) -> dict[str, Any]:
        """Return that no folder of weights was looked at."""
        return {
            "folders": {},
            "tools": {"git": True, "git_lfs": True, "venv_module": True, "clients": ""},
            "address": None,
        }

    def see_runtime(self) -> dict[str, Any]:
        """Return an engine that someone has repaired."""
        path = "/usr/bin/habana-container-runtime"
        habana = {"path": path, "runtimeArgs": []}
        runtimes = {"habana": habana, **self.state["runtimes"]}
        daemon = {"runtimes": runtimes, "live-restore": True}
        info: dict[str, Any] = {
            "containers_running": 0,
            "server_version": "20.10.24",
            "default_runtime": "runc",
            "live_restore": True,
        }
        info |= {"data_root": "/var/lib/docker", "runtimes": {**runtimes, "runc": {"path": "runc"}}}
        silent, masked, text = self.stopped, self.state["masked"], self.state["daemon"]
        return {
            "packages": {
                **{"docker.io": "20.10.24", "habanalabs-container-runtime": f"{RELEASE}-57"},
                **self.state["packages"],
            },
            "cdi": False,
            **{"interrupted": [], "daemon_json": text or json.dumps(daemon), "daemon_json_mode": "0644"},
            **{"info": None if silent else info, "reason": "Cannot connect to the Docker daemon" if silent else None},
            **{"habana_problem": None, "enabled": "docker.service" not in masked, "masked": masked},
            "habana_config": self.state["habana"],
            "habana_programs": {"habana-container-hook": True, "habana-container-cli": True},
            **{"nvidia_config": None, "nvidia_programs": {"nvidia-ctk": True}, "nvidia_problem": None},
            **{"proxies_sha256": None, "proxies_dropin_sha256": None, "proxies_running": None},
        }

    @property
    def stopped(self) -> bool:
        """Return whether the engine does not answer."""
        return bool(self.state["engine"] == "stopped")

    def see_driver(self) -> dict[str, Any]:
        """Return the driver of the release, or one of NVIDIA's that is whole, or none where its cards do not answer."""
        if self.state["devices"].get("accelerator") == "cuda":
            bare = {"packages": {}, "modules": [], "driver_version": None, "offered": {"nvidia-open": ["580.95.05-1"]}}
            package = {"version": "580.95.05-1", "held": True, "whole": True}
            nothing: dict[str, Any] = {"available": [], "offered": {}, "broken": "", "problem": None, "services": {}}
            nothing |= {"ports": {}, "unread": {}, "needs_companion": False, "driver_version": "580.95.05"}
            whole = {"packages": {"nvidia-open-580": package}, "modules": ["nvidia", "nvidia_uvm"]}
            return {**nothing, **(bare if self.state["devices"].get("problem") else whole)}
        return {
            "packages": {name: {"version": f"{RELEASE}-57", "held": True, "whole": True} for name in DRIVER},
            **{"available": [f"{RELEASE}-57"], "broken": [], "driver_version": RELEASE, "problem": ""},
            "modules": ["habanalabs", "habanalabs_cn", "habanalabs_en", "habanalabs_ib"],
            "ports": {str(card["module_id"]): [] for card in CARDS},
        }

    def see_bios(self) -> dict[str, Any]:
        """Return what earlier runs have kept of the BIOS."""
        return observe_bios.read_record(self.state["files"].get(BIOS) or "{}")

    def see_left(self) -> dict[str, Any]:
        """Return the record of the BIOS, for the reset of that role alone."""
        return {"own": {str(Path(BIOS).parent): [Path(BIOS).name] if BIOS in self.state["files"] else None}}

    def see_haproxy(self) -> dict[str, Any]:
        """Return that there is no gateway yet, or what the state has of one."""
        unit = {"there": False, "active": False, "enabled": False, "need_reload": False}
        return {
            **{
                "installed": [],
                "interface": "eth0",
                "folder": "",
                "running": "",
                "servers": [],
                "states": [],
                "reboots": {},
                "folders": [],
                "ports": {},
            },
            **{"unit": unit, "unit_sha256": None, "distribution": unit},
            "address": {"unit": unit, "unit_sha256": None, "runs_sha256": None},
            **self.state.get("haproxy", {}),
        }

    def do_gateway_servers(self, given: dict[str, Any]) -> dict[str, Any]:
        """Drain a host, or ask it again: for a reboot only one that was drained for one."""
        name, drain, reboot = given["host"], given["state"] == "drain", bool(given.get("reboot"))
        before = dict(self.state["drained"])
        boots = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8")).get("boots", 0)
        self.state["told"] = [*self.state["told"], [name, given["state"], boots]]
        if drain:
            self.state["drained"] = {name: reboot, **before}
        elif before.get(name) or not reboot:
            self.state["drained"] = {host: why for host, why in before.items() if host != name}
        return {"changed": before != self.state["drained"], "servers": []}

    def do_haproxy_config(self, given: dict[str, Any]) -> dict[str, Any]:
        """Compare the files of a gateway that has none yet, and has no certificate."""
        certificate = "is not a file on this host" if given.get("certificate") else ""
        return {"differs": sorted(given["files"]), "certificate": certificate}

    def see_metrics(self) -> dict[str, Any]:
        """Return that nothing of monitoring is there."""
        unit = {"there": False, "active": False, "enabled": False, "need_reload": False, "since": None, "pid": 0}
        lists: dict[str, Any] = {key: [] for key in ("installed", "clients", "watched", "masked", "data", "collected")}
        return {
            **{**lists, "address": "10.0.0.9", "files": {}, "ports": {}, "folder": False},
            "units": {name: {**unit, "argv": []} for name in observe_metrics.UNITS},
            "certificates": {kind: {} for kind in observe_metrics.CERTIFICATES},
            "read": {name: {} for name in observe_metrics.READ},
            **self.state.get("metrics", {}),
        }

    def see_mirror(self) -> dict[str, Any]:
        """Return the files of role offline, and what its state has of the mirror's packages."""
        files = self.state["files"]
        places = [path for path in files if path.startswith(f"{observe_mirror.ENGINE_CERTIFICATES}/")]
        return {
            "files": {one: sha256_text(files[one]) if one in files else None for one in observe_mirror.FILES},
            "registries": {
                path.split("/")[-2]: sha256_text(files[path]) for path in places if path.endswith("/ca.crt")
            },
            "release": self.state.get("mirror_release", ""),
        }

    def do_mirror_read(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what the state has of the site's mirror: one that has nothing where it does not."""
        return {"problem": "", "release": digest(given["url"]), "items": [], **self.state.get("mirror", {})}

    def do_apt(self, given: dict[str, Any]) -> dict[str, Any]:
        """Read the packages of the mirror, which is all that this host can do with apt."""
        if list(given) != ["update_cache"] or observe_mirror.APT_CONFIG not in self.state["files"]:
            return failure(f"a simulated host has no apt for {given}")
        (source,) = re.findall(r"https://[^/ ]+", self.state["files"][observe_mirror.APT_LIST])
        self.state["mirror_release"] = self.state.get("mirror", {}).get("release", digest(source))
        return {"changed": True}

    def do_file(self, given: dict[str, Any]) -> dict[str, Any]:
        """Have the folder."""
        return {"changed": False, "path": given["path"]}

    def see_network(self) -> dict[str, Any]:
        """Return a host without ports or network cards to others, but for what its state has."""
        texts = {path: self.state["files"].get(path) for path in observe_network.FILES}
        nothing: dict[str, Any] = {"ports": [], "nics": [], "redirects": [], "packages": [], "enabled": False}
        files = {path: digest(text) for path, text in texts.items()}
        own: dict[str, Any] = {"gaudinet": texts[observe_network.GAUDINET], "before": texts[observe_network.BEFORE]}
        settings = texts[observe_network.SETTINGS]
        own |= {"files": files, "settings": None if settings is None else json.loads(settings)}
        return {**nothing, **own, **self.state.get("network", {})}

    def brought_up(self, settings: dict[str, Any], down: bool = False) -> None:
        """Activate the ports as program gaudi-ports does, or take their addresses away."""
        for one in self.state["network"]["ports"]:
            address = settings["addresses"].get(f"{one['module_id']}/{one['port']}")
            kept = [*one["addresses"], *([address] if address and address not in one["addresses"] else [])]
            gone = settings["former"].get(f"{one['module_id']}/{one['port']}", [])
            one["addresses"] = [text for text in kept if text not in gone and not (down and text == address)]
            if not down:
                one.update(up=True, mtu=settings["mtu"] or one["mtu"])

    def see_hccl(self) -> dict[str, Any]:
        """Return what was measured last."""
        return dict(self.state["hccl"])

    def see_qualification(self) -> dict[str, Any]:
        """Return that the tool for acceptance tests is there, and has found what the state has."""
        program = "/opt/habanalabs/qual/gaudi2/bin/hl_qual"
        nothing = {"cards": {}, "last": {}, "unlocked": False, "programs": [program]}
        return {**nothing, **self.state["qualification"]}

    def do_qualify_cards(self, _given: dict[str, Any]) -> dict[str, Any]:
        """Return that all cards have passed."""
        return {"changed": True, "verdict": "passed", "lines": ["hl_qual: passed"]}

    def see_services(self) -> dict[str, Any]:
        """Return units, images and the supervisor."""
        free = {CONFIG: 2**40, "/var/lib/gaudi-serve": self.state["free"]}
        return {
            "units": {name: self.unit(name) for name in self.state["units"]},
            **{"without_unit": {}, "orphans": [], "images": {} if self.stopped else self.state["images"]},
            "free": free,
            "supervisor_sha256": digest(self.state["files"].get(SUPERVISOR)),
            "kept": bool(self.state.get("kept")),
            "monitoring": bool(self.state.get("monitoring")),
            "gateway": bool(self.state.get("gateway")),
        }

    def see_host(self) -> dict[str, Any]:
        """Return what planning needs."""
        keep = ("module_ids", "port", "digest", "active", "launch", "env", "lost", "supervisor", "token_sha256")
        units = {name: self.unit(name) for name in self.state["units"]}
        return {
            **{"accelerator": "gaudi", "device_name": "HL-225", "driver_version": f"{RELEASE}-57", "modules": CARDS},
            **{"problem": [], **self.state["devices"]},
            "platforms": [self.state["devices"].get("accelerator", "gaudi")],
            **{"ip": "192.0.2.1", "interface": "eth0", "addresses": ["192.0.2.1"], "names": {}},
            "services": {
                name: {**{key: unit[key] for key in keep}, "holds": True, "secret_changed": secret_changed(unit)}
                for name, unit in units.items()
            },
            "ports": {},
            "weights": {"/data/model": {"config": WEIGHTS, "bytes": 65_000_000_000}},
        }

    def unit(self, name: str) -> dict[str, Any]:
        """Return a model's unit as gaudi_facts reports it."""
        files, about = self.state["files"], self.state["units"][name]
        launch = json.loads(files.get(f"{CONFIG}/{name}.json") or "{}")
        environment = (line.partition("=") for line in (files.get(f"{CONFIG}/{name}.env") or "").splitlines())
        running = bool(about["started"]) and not self.stopped
        container = {"model": name, "running": True, "digest": launch.get("digest"), "secret_mtime": None}
        return {
            "unit_sha256": digest(files.get(f"{UNITS}/vllm-{name}.service")),
            **{f"{kind}_sha256": digest(files.get(f"{CONFIG}/{name}.{end}")) for kind, end in ENDS.items()},
            **{"secret_mtime": None, **self.secret(name), "lost": [], "need_reload": False},
            **{"digest": launch.get("digest"), "launch": launch, "env": {key: value for key, _, value in environment}},
            **{"module_ids": launch.get("module_ids") or [], "port": launch.get("port")},
            "supervisor": digest(files.get(SUPERVISOR)) if running else None,
            **self.state_of(name),
            **{"enabled": about["enabled"], "container": container if running else None, "smoke": about["smoke"]},
        }

    def secret(self, name: str) -> dict[str, Any]:
        """Return how the secrets of a model differ from the requested ones, and from those at its start."""
        text = self.state["files"].get(f"{CONFIG}/{name}.secret") or ""
        return {
            "secret_differs": text_differs(text.encode(), self.marks.get(name)),
            "secret_names": [line.partition("=")[0] for line in text.splitlines()],
            "secret_stale": self.state["units"][name].get("secret", text) != text,
        }

    def state_of(self, name: str) -> dict[str, Any]:
        """Return what systemd would report."""
        started = self.state["units"][name]["started"]
        if not started:
            return {"active": False, "state": "inactive", "sub_state": "dead", "status": "", "restarts": 0}
        if self.stopped:
            status = "failed before, and tries again: the engine does not answer"
            return {
                "active": False,
                "state": "activating",
                "sub_state": "auto-restart",
                "status": status,
                "restarts": 3,
            }
        over = time.time() - started >= self.state["warm_up_s"]
        if over and (self.state["fault"] == "models" or self.changed_to("crash")):
            return {"active": False, "state": "failed", "sub_state": "failed", "status": "out of cards", "restarts": 0}
        if over:
            return {"active": True, "state": "active", "sub_state": "running", "status": "serving", "restarts": 0}
        return {"active": False, "state": "activating", "sub_state": "start", "status": "warm-up", "restarts": 0}

    def changed_to(self, fault: str) -> bool:
        """Return whether a model that was started otherwise than what is kept has this fault."""
        started, kept = self.state["units"], (self.state.get("kept") or {}).get("units", {})
        return self.state["fault"] == fault and any(
            name in kept and one.get("launch") != kept[name].get("launch") for name, one in started.items()
        )

    # ---- what is done

    def do_setup(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of its system, which a reboot reads."""
        about = {"distribution": "Debian", "distribution_version": "12.5", "os_family": "Debian"}
        return {"ansible_facts": {f"ansible_{key}": value for key, value in about.items()}}

    def do_find(self, given: dict[str, Any]) -> dict[str, Any]:
        """Have the program that reboots."""
        return {"files": [{"path": "/sbin/shutdown"}] if given["patterns"] == ["shutdown"] else []}

    def do_gaudi_dpkg(self, given: dict[str, Any]) -> dict[str, Any]:
        """Find nothing that dpkg was interrupted in."""
        return {"finished": []}

    def do_ping(self, given: dict[str, Any]) -> dict[str, Any]:
        """Be there."""
        return {"ping": "pong"}

    def do_gaudi_lock(self, given: dict[str, Any], check: bool) -> dict[str, Any]:
        """Hold the host, or let it go. Another run may hold it: one of its "lock"s alone, or "at" one stage alone."""
        name, state, held = given.get("name", "run"), given.get("state", "present"), dict(self.state["held"])
        other = self.state.get("holder") or {"lock": ""}
        stage = given.get("stage")
        conflict, taken_over = other.get("lock", name) == name and other.get("at", stage) == stage, {}
        if conflict and other.get("expired"):
            self.state["holder"], taken_over, conflict = {}, other, False
        if state == "free" or check or (state == "present" and conflict):
            return {"held": False, "holder": other if conflict else {}, "since": "held"}
        if state == "renewed":
            return {"held": name in held}
        self.state["held"] = {**held, name: given["run"]["id"]}
        if state == "absent":
            del self.state["held"][name]
        return {"held": state == "present", "taken_over": taken_over}

    def do_gaudi_baseline(self, given: dict[str, Any]) -> dict[str, Any]:
        """Write a record."""
        return {"changed": True, "path": f"/var/lib/gaudi-serve/found/{given['role']}.json"}

    def do_gaudi_files(self, given: dict[str, Any], check: bool) -> dict[str, Any]:
        """Write and remove files."""
        files = self.state["files"]
        for file in given["files"]:
            if file.get("stored"):
                file["content"] = with_stored_secrets(files.get(file["path"]) or "", file["content"])
        written = [file for file in given["files"] if files.get(file["path"]) != file["content"]]
        removed = [path for path in given.get("absent", []) if path in files]
        if not check:
            self.state["files"] = {
                **{path: text for path, text in files.items() if path not in removed},
                **{file["path"]: file["content"] for file in written},
            }
        paths = [file["path"] for file in written]
        return {"changed": bool(paths or removed), "written": paths, "removed": removed, "diff": []}

    def do_gaudi_permissions(self, given: dict[str, Any]) -> dict[str, Any]:
        """Correct the permissions of a role's files."""
        left = {role: lines for role, lines in self.state["permissions"].items() if role != given["role"]}
        lines, self.state["permissions"] = self.state["permissions"].get(given["role"], []), left
        return {"changed": bool(lines), "corrected": lines, "ansible_facts": {"gaudi_permissions": left}}

    def do_gaudi_token(self, given: dict[str, Any]) -> dict[str, Any]:
        """Read or make a secret."""
        files, path = self.state["files"], given["path"]
        known = str(files.get(path) or "").strip()
        token = known or str(digest(path))
        self.state["files"] = {**files, path: f"{token}\n"}
        return {"changed": not known, "token": token}

    def do_gaudi_remove(self, given: dict[str, Any]) -> dict[str, Any]:
        """Remove files below folders; of empty folders a host has none."""
        below = tuple(f"{one}/" for one in given["paths"])
        gone = [path for path in self.state["files"] if path in given["paths"] or path.startswith(below)]
        for path in gone:
            del self.state["files"][path]
        if str(FOLDER) in given["paths"]:
            self.state["haproxy"] = {}
        if str(observe_metrics.FOLDER) in given["paths"]:
            self.state |= {"monitoring": False, "metrics": {"folder": False}}
        return {"changed": bool(gone), "removed": gone}

    def do_command(self, given: dict[str, Any]) -> dict[str, Any]:
        """Run one of the programs that a role calls."""
        argv = [str(word) for word in given["argv"]]
        program = " ".join(argv[:2])
        if argv[0] == "sysctl" and self.state["fault"] == "host":
            return {**failure("non-zero return code"), "rc": 255, "cmd": argv, "stderr": "sysctl: permission denied"}
        out = ""
        if argv[-1] == "update-grub":
            arguments = re.search(r'^gaudi_serve_args="(.*)"$', self.state["files"][DROPIN], re.MULTILINE)
            self.state["entries"] = [["root=/dev/sda1", *(arguments[1].split() if arguments else [])]]
        elif argv[0] == "sysctl":
            lines = [line.partition(" = ") for line in self.state["files"][SYSCTL].splitlines() if " = " in line]
            self.state["sysctl"] = {key: value for key, _, value in lines}
        elif argv[0] == "cpupower":
            self.state["governor"] = argv[-1]
        elif program == "docker image":
            out = self.state["images"].get(argv[-1], "")
        elif argv[-1] == "down" and argv[1] == observe_network.PROGRAM:
            self.brought_up(json.loads(self.state["files"][observe_network.SETTINGS]), down=True)
        elif program == "udevadm control":
            pass
        elif argv[0] == "journalctl":
            out = "RuntimeError: out of cards\nvllm.service: Failed with result 'exit-code'."
        else:
            return {**failure(f"a simulated host has no program {program}"), "rc": 127, "cmd": argv}
        return {"changed": True, "rc": 0, "cmd": argv, "stdout": out, "stderr": ""}

    def do_image_pull(self, given: dict[str, Any]) -> dict[str, Any]:
        """Have the image."""
        if self.state["fault"] == "images":
            raise AnsibleConnectionFailure("No route to host")
        self.state["images"][given["name"]] = IMAGE
        return {"changed": True}

    def do_systemd_service(self, given: dict[str, Any]) -> dict[str, Any]:
        """Start a unit, or read the units again."""
        if given.get("daemon_reload"):
            return {}
        if given["name"] == UNIT and given["state"] == "stopped":
            self.state["gateway"] = False
            return {"changed": True}
        if given["name"] == observe_network.UNIT:
            self.state["network"]["enabled"] = given.get("enabled", self.state["network"].get("enabled", False))
            if given.get("state") == "restarted":
                self.brought_up(json.loads(self.state["files"][observe_network.SETTINGS]))
            return {"changed": True}
        name = str(given["name"]).removeprefix("vllm-").removesuffix(".service")
        if f"{UNITS}/{given['name']}" not in self.state["files"] or given["state"] == "stopped":
            return failure(f"{given['name']}: not known to a simulated host, or cannot be stopped")
        launch = self.state["files"].get(f"{CONFIG}/{name}.json")
        secret = self.state["files"].get(f"{CONFIG}/{name}.secret") or ""
        about = {"started": time.time(), "enabled": True, "smoke": None, "launch": launch, "secret": secret}
        self.state["units"][name] = about
        return {"changed": True, "name": given["name"], "state": given["state"]}

    def do_measure_links(self, given: dict[str, Any]) -> dict[str, Any]:
        """Measure good links."""
        runs = [{**run, "passed": True, "nw_gb_s": 258.0} for run in given["runs"]]
        by = {"image": given["image"], "accelerator": given["host"]["accelerator"], "program": given["nccl_tests"]}
        self.state["hccl"] = {
            "runs": runs,
            "passed": True,
            "fingerprint": given["fingerprint"],
            "time": time.time(),
            **by,
        }
        return {"changed": True, "runs": runs}

    def do_vllm_units(self, given: dict[str, Any]) -> dict[str, Any]:
        """Look until something has happened."""
        deadline = time.monotonic() + float(given["for_s"])
        while True:
            units = {name: self.state_of(name) for name in given["models"] if name in self.state["units"]}
            if any(unit["state"] != "activating" for unit in units.values()) or time.monotonic() >= deadline:
                return {"units": units}
            time.sleep(0.05)

    def do_vllm_smoke(self, given: dict[str, Any]) -> dict[str, Any]:
        """Answer each question well, and be healthy."""
        if given.get("health_only"):
            return {"health": {model["name"]: "" for model in given["models"]}}
        if self.changed_to("garbled"):
            return failure(
                f"model {given['models'][0]['name']} failed its smoke test: "
                "the answer names no country with its capital"
            )
        answers = {}
        for model in given["models"]:
            answer = {"kinds": model["smoke"], "first_token_s": 0.05, "total_s": 0.1, "text": "Paris"}
            answers[model["name"]] = self.state["units"][model["name"]]["smoke"] = answer
        return {"answers": answers}

    def do_vllm_trial(self, given: dict[str, Any]) -> dict[str, Any]:
        """Accept each container: Docker refuses nothing here."""
        return {} if all(one["name"] for one in given["models"]) else failure("a model without a name")

    def do_vllm_idle(self, given: dict[str, Any]) -> dict[str, Any]:
        """Have no request."""
        return {"seconds": 0.0}

    def do_vllm_benchmark(self, given: dict[str, Any]) -> dict[str, Any]:
        """Be as fast as ever, or too slow since a change."""
        speed = 5.0 if self.state["fault"] == "slow" and self.state.get("kept") else 50.0
        found = {name: {"first_token_s": 0.05, "tokens_s": speed} for name in self.state["units"]}
        return {"measured": found, "about": {name: self.about(name) for name in found}}

    def about(self, name: str) -> dict[str, Any]:
        """Return what of a model belongs into a kept result."""
        launch = json.loads(self.state["units"][name]["launch"])
        given = {"model": name, "served": name, "launch": launch["digest"], "image": launch["image"], "image_id": IMAGE}
        return {**given, "module_ids": launch["module_ids"], "command": launch["command"], "env": []}

    def do_vllm_bench(self, given: dict[str, Any], check: bool) -> dict[str, Any]:
        """Have a server of 32 requests at a time, and answer each load at a speed that the file of the host has."""
        if given.get("state", "probed") == "probed":
            model = {**self.about(given["name"]), "max_model_len": 4096, "tokenizer": "/data/model", "kinds": ["text"]}
            tool = {
                "version": "0.26.0",
                "command": ["vllm", "bench", "serve"],
                "options": ["--backend", *sorted(NEEDED)],
            }
            busy = {"running": self.state.get("running", 0.0), "waiting": 0.0, "mean_token_s": 0.02, "unread": ""}
            more = {"tokenizer_mode": "", "trust_remote_code": False, "max_num_seqs": 32, "others": {}, "host": {}}
            return {"probed": {"models": [model], "tool": tool, "url": "http://127.0.0.1:30001", **busy, **more}}
        # What reached the host, for who looks whether a key went elsewhere.
        self.state["sent"] = {name: given.get(name) for name in ("key", "own_key")}
        return {"measured": None if check else self.measured(given["argv"])}

    def measured(self, argv: list[str]) -> dict[str, Any]:
        """Return what the tool would have measured: more at a time wait longer."""
        given = dict(pairwise(argv))
        slots, count = int(given.get("--max-concurrency", 1)), int(given["--num-prompts"])
        speed = float(self.state.get("tokens_s", 100.0)) * (1 + int(given["--seed"]) % 3 / 1000)
        times = {"ttft": 10.0 * slots, "tpot": 10.0, "itl": 10.0, "e2el": 1000.0 * slots / 20}
        raw: dict[str, Any] = {"num_prompts": count, "completed": count, "failed": 0, "duration": count / 20}
        raw |= {"output_throughput": speed, "total_token_throughput": 2 * speed, "request_throughput": 20.0}
        for name, value in times.items():
            raw |= {f"{which}_{name}_ms": value for which in ("mean", "median", "p50", "p90", "p99")}
        state = {"running": 0.0, "waiting": 0.0, "requests": 0.0, "host": {"kernel": "6.1"}}
        more = {"begin": time.time(), "seconds": 1.0, "compiled": 0, "journal_problem": "", "of_others": 0, "error": ""}
        return {"result": json.dumps(raw), **more, "before": state, "after": state}

    def do_vllm_snapshot(self, given: dict[str, Any]) -> dict[str, Any]:
        """Keep what serves, go back to it, or forget it."""
        record = self.state.get("kept") or {}
        if given["state"] == "saved":
            parts = {key: json.loads(json.dumps(self.state[key])) for key in ("files", "units", "images")}
            self.state["kept"] = record or {**parts, "measured": given["measured"]}
        elif given["state"] == "absent":
            self.state["kept"] = {}
        elif record:
            self.state.update({key: record[key] for key in ("files", "units", "images")})
        models = [{"name": name, "smoke": ["any"], "start_timeout_s": 60} for name in self.state["units"]]
        back = models if given["state"] == "restored" and record else []
        return {"changed": True, "models": back, "measured": (self.state.get("kept") or record).get("measured", {})}


ENDS = {"env": "env", "launch": "json", "buckets": "buckets", "ray": "ray", "token": "token"}


def failure(msg: str) -> dict[str, Any]:
    """Return a failed result."""
    return {"failed": True, "msg": msg}
