"""A strict BMC with BIOS settings through Redfish, for four makers. It is our own, because no public mock has them.

Like real BMCs it has few sessions, requires ETags, stages values until a reset, refuses values outside its registry,
responds with 503 while it starts, and does not apply some values.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USER, PASSWORD = "operator", "correct-horse-canary"

# Redfish allows sessions and basic authentication; the toolkit's client uses only sessions.
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def enumeration(name: str, *values: str, **more: Any) -> dict[str, Any]:
    """Return an enumeration whose displayed texts are the values' names."""
    return {
        **{"AttributeName": name, "Type": "Enumeration", "ReadOnly": False},
        "Value": [{"ValueName": value, "ValueDisplayName": value} for value in values],
        **more,
    }


def closes(opener: str, value: str, *closed: str) -> list[dict[str, Any]]:
    """Return dependencies: the attributes are read-only unless the opener has this value."""
    term = {"MapFromAttribute": opener, "MapFromProperty": "CurrentValue", "MapFromCondition": "NEQ"}
    return [
        {
            **{"Type": "Map", "DependencyFor": name},
            "Dependency": {
                "MapFrom": [{**term, "MapFromValue": value}],
                **{"MapToAttribute": name, "MapToProperty": "ReadOnly", "MapToValue": True},
            },
        }
        for name in closed
    ]


ON_OFF = ("Enabled", "Disabled")
DELL_BELOW = ("ProcPwrPerf", "ProcCStates", "ProcC1E", "ProcTurboMode")
DELL: dict[str, Any] = {
    "maker": "Dell Inc.",
    "model": "PowerEdge XE9680",
    "paths": {
        **{"systems": "/redfish/v1/Systems", "system": "/redfish/v1/Systems/System.Embedded.1"},
        **{"bios": "/redfish/v1/Systems/System.Embedded.1/Bios", "settings": "/Settings"},
        "manager": "/redfish/v1/Managers/iDRAC.Embedded.1",
    },
    "attributes": [
        enumeration("SysProfile", "PerfOptimized", "PerfPerWattOptimizedDapc", "Custom"),
        enumeration("ProcPwrPerf", "MaxPerf", "OsDbpm"),
        *(enumeration(name, *ON_OFF) for name in (*DELL_BELOW[1:], "SubNumaCluster", "NodeInterleave")),
        *(enumeration(name, *ON_OFF) for name in ("ProcVirtualization", "SriovGlobalEnable", "MmioAbove4Gb")),
        enumeration("ProcX2Apic", *ON_OFF),
        enumeration("SystemMemoryModel", *ON_OFF, ReadOnly=True),
        {"AttributeName": "AcPwrRcvryUserDelay", "Type": "Integer", "LowerBound": 60, "UpperBound": 600},
        {"AttributeName": "AssetTag", "Type": "String", "MinLength": 0, "MaxLength": 10},
        {"AttributeName": "SetupPassword", "Type": "Password"},
    ],
    "dependencies": closes("SysProfile", "Custom", *DELL_BELOW),
    "current": {
        **{"SysProfile": "PerfPerWattOptimizedDapc", "ProcPwrPerf": "MaxPerf", "ProcCStates": "Enabled"},
        **{"ProcC1E": "Enabled", "ProcTurboMode": "Enabled", "SubNumaCluster": "Disabled"},
        **{"NodeInterleave": "Disabled", "ProcVirtualization": "Enabled", "SriovGlobalEnable": "Disabled"},
        **{"MmioAbove4Gb": "Enabled", "ProcX2Apic": "Enabled", "SystemMemoryModel": "Enabled"},
        **{"AcPwrRcvryUserDelay": 60, "AssetTag": "", "SetupPassword": ""},
    },
    "registry": "BiosAttributeRegistry.v1_0_3",
}
SMC_NAMES = {
    **{
        "PowerTechnology#2800": ("Energy Efficient", "Custom", "Disable"),
        "CPUC6Report#0840": ("Disable", "Enable", "Auto"),
    },
    **{"EnhancedHaltState(C1E)#0841": ("Disable", "Enable"), "PackageCState#0843": ("C0/C1 state", "C2 state", "Auto")},
    **{"SR-IOVSupport#0048": ON_OFF, "IntelVTforDirectedI/O(VT-d)#1E12": ("Enable", "Disable")},
}
SUPERMICRO: dict[str, Any] = {
    "maker": "Supermicro",
    "model": "SYS-820GH-TNR2",
    "paths": {
        **{"systems": "/redfish/v1/Systems", "system": "/redfish/v1/Systems/1", "bios": "/redfish/v1/Systems/1/Bios"},
        **{"settings": "/SD", "manager": "/redfish/v1/Managers/1"},
    },
    "attributes": [enumeration(name, *values) for name, values in SMC_NAMES.items()],
    "dependencies": [],
    "current": {
        **{name: values[-1] for name, values in SMC_NAMES.items()},
        **{"PowerTechnology#2800": "Energy Efficient", "SR-IOVSupport#0048": "Disabled"},
    },
    "registry": "BiosAttributeRegistry.1.4b",
}
HPE_BELOW = ("PowerRegulator", "EnergyPerfBias", "MinProcIdlePower", "MinProcIdlePkgState", "ProcTurbo")
HPE: dict[str, Any] = {
    "maker": "HPE",
    "model": "ProLiant DL380a Gen11",
    "paths": {
        **{
            "systems": "/redfish/v1/systems/",
            "system": "/redfish/v1/systems/1/",
            "bios": "/redfish/v1/systems/1/bios/",
        },
        **{"settings": "settings/", "manager": "/redfish/v1/managers/1/"},
    },
    "attributes": [
        enumeration("WorkloadProfile", "GeneralPowerEfficientCompute", "HighPerformanceCompute(HPC)", "Custom"),
        enumeration("PowerRegulator", "DynamicPowerSavings", "StaticHighPerf", "OsControl"),
        enumeration("EnergyPerfBias", "BalancedPerf", "MaxPerf"),
        enumeration("MinProcIdlePower", "C6", "NoCStates"),
        enumeration("MinProcIdlePkgState", "C6Retention", "NoState"),
        enumeration("NumaGroupSizeOpt", "Flat", "Clustered"),
        *(enumeration(name, *ON_OFF) for name in ("ProcTurbo", "SubNumaClustering", "IntelProcVtd")),
        *(enumeration(name, *ON_OFF) for name in ("ProcVirtualization", "Sriov", "ProcX2Apic")),
    ],
    "dependencies": [],
    "current": {
        **{"WorkloadProfile": "GeneralPowerEfficientCompute", "PowerRegulator": "DynamicPowerSavings"},
        **{"EnergyPerfBias": "BalancedPerf", "MinProcIdlePower": "C6", "MinProcIdlePkgState": "C6Retention"},
        **{"NumaGroupSizeOpt": "Flat", "ProcTurbo": "Enabled", "SubNumaClustering": "Disabled"},
        **{"IntelProcVtd": "Enabled", "ProcVirtualization": "Enabled", "Sriov": "Enabled", "ProcX2Apic": "Enabled"},
    },
    "registry": "BiosAttributeRegistryU54.v1_2_10",
}


AMI_NAMES = {
    **{"PMS00A": ("Performance", "Custom"), "PMS001": ("Disable", "Enable"), "PMS002": ("Enable", "Disable")},
    **{"PMS003": ("Native Mode", "Disable"), "PMS005": ("Disable", "Enable"), "PMS006": ("Disable", "Enable")},
    **{"PMS007": ("C0/C1 state", "C6 state"), "PRSS011": ("Enable", "Disable")},
}


def spelled(name: str, shown: str) -> str:
    """Return the name of a value in AMI's registry, which begins with its attribute's name."""
    return name + "".join(letter for letter in shown if letter.isalnum())


# The attribute names are from captures. Their value names are not public: here they differ from the displayed
# texts, and flags are texts, as in other registries of AMI.
AMI: dict[str, Any] = {
    "maker": "ZT Systems",
    "model": "Proteus I_Mix",
    "paths": {
        **{"systems": "/redfish/v1/Systems", "system": "/redfish/v1/Systems/Self"},
        **{"bios": "/redfish/v1/Systems/Self/Bios", "settings": "/SD", "manager": "/redfish/v1/Managers/Self"},
    },
    "attributes": [
        {
            **{"AttributeName": name, "Type": "Enumeration", "ReadOnly": "false"},
            "Value": [{"ValueName": spelled(name, text), "ValueDisplayName": text} for text in values],
        }
        for name, values in AMI_NAMES.items()
    ],
    "dependencies": [],
    "current": {name: spelled(name, values[-1]) for name, values in AMI_NAMES.items()},
    "registry": "BiosAttributeRegistry0ACOU.0.11.0",
}
MAKERS = {"Dell": DELL, "HPE": HPE, "Supermicro": SUPERMICRO, "AMI": AMI}


@dataclass(frozen=True)
class Odd:
    """An answer that is not as it should be.

    status 0: the connection is closed without an answer. done: whether the request is carried out before. repeats:
    whether the body has the request's body. every_s: seconds between two bytes.
    """

    status: int
    body: str = ""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    done: bool = False
    repeats: bool = False
    every_s: float = 0.0


@dataclass
class Box:
    """One system and its BMC.

    stubborn: attributes that keep their old value at a reset. starting: number of further requests with response 503.
    retry_after: seconds that it names then; real ones name 60. most: maximum of sessions. shows_pending: whether it has
    a settings object. announced: whether the BIOS names it. any_etag: whether it accepts * as ETag. has_sessions:
    whether it has a session service, or takes basic authentication alone. slow_task: a change becomes a task that ends
    as this after several queries. more: resources by path, merged with its own. odd: a function of method and path that
    returns an odd answer, or None for the usual one. asked: requests as (method, path). logins: requests with basic
    authentication.
    """

    about: Mapping[str, Any]
    serial: str = "S123"
    bios: str = "1.4b"
    current: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, str]] = field(default_factory=list)
    stubborn: set[str] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    most: int = 2
    opened: int = 0
    starting: int = 0
    retry_after: int = 0
    resets: int = 0
    version: int = 1
    stale: int = 0
    shows_pending: bool = True
    announced: bool = True
    has_sessions: bool = True
    slow_task: dict[str, Any] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    odd: Callable[[str, str], Odd | None] | None = None
    any_etag: bool = False
    logins: int = 0
    job_polls: int = 2
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Start with the factory values."""
        self.current = dict(self.about["current"]) | self.current
        self.attributes = {one["AttributeName"]: one for one in self.about["attributes"]}

    @property
    def dell(self) -> bool:
        """Return whether it has a job queue."""
        return bool(self.about["maker"].startswith("Dell"))

    @property
    def settings(self) -> str:
        """Return the path of the resource to change."""
        paths = self.about["paths"]
        return str(paths["bios"] + paths["settings"] if self.shows_pending else paths["bios"])

    def rename(self, old: str, new: str) -> None:
        """Rename an attribute, as a firmware update does; this also changes the version."""
        self.attributes[new] = {**self.attributes.pop(old), "AttributeName": new}
        self.current[new] = self.current.pop(old)
        self.bios = "1.5"

    def reset(self) -> None:
        """Restart the system: pending values become current, except for stubborn attributes."""
        with self.lock:
            self.resets += 1
            scheduled = [one for one in self.jobs if one["JobState"] == "Scheduled"]
            if not self.dell or scheduled:
                opener, below = ("WorkloadProfile", HPE_BELOW) if "WorkloadProfile" in self.current else ("", ())
                closed = below if opener and self.current[opener] != "Custom" else ()
                for name, value in self.pending.items():
                    if name not in self.stubborn and name not in closed:
                        self.current[name] = value
                self.pending = {}
            for one in scheduled:
                one |= {"JobState": "Running", "Message": "Task in progress."}
            self.version += 1
            self.starting = 3

    def closed(self, name: str) -> bool:
        """Return whether another attribute's value makes this one read-only now."""
        for one in self.about["dependencies"]:
            rule = one["Dependency"]
            term = rule["MapFrom"][0]
            if rule["MapToAttribute"] == name and self.current[term["MapFromAttribute"]] != term["MapFromValue"]:
                return True
        return False

    def wrong(self, name: str, value: Any) -> str:
        """Return why a value is refused."""
        entry = self.attributes.get(name)
        if entry is None:
            return f"The property {name} is not in the list of valid properties for the resource."
        if entry.get("ReadOnly") not in (None, False, "false") or self.closed(name):
            return f"The property {name} is a read-only property and cannot be assigned a value."
        names = [one["ValueName"] for one in entry.get("Value", [])]
        if entry["Type"] == "Enumeration" and value not in names:
            return f"The value {value} for the property {name} is not in the list of acceptable values."
        if entry["Type"] == "Integer" and not (isinstance(value, int) and entry["LowerBound"] <= value):
            return f"The value {value} for the property {name} is out of range."
        return ""


def error(message: str, identifier: str = "Base.1.8.GeneralError") -> dict[str, Any]:
    """Return an error in Redfish's format."""
    return {"error": {"code": identifier, "@Message.ExtendedInfo": [{"MessageId": identifier, "Message": message}]}}


class Handler(BaseHTTPRequestHandler):
    """Handles requests for the box of its server."""

    protocol_version = "HTTP/1.1"
    # One packet for each response; otherwise each waits for the kernel's acknowledgement.
    wbufsize, disable_nagle_algorithm = -1, True
    box: Box

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        """Send a response."""
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if body is not None and "registries/" in self.path.lower() and "file" in self.path and len(text) > 200:
            # HPE's BMCs always send their registries compressed.
            text = gzip.compress(text)
            self.send_header("Content-Encoding", "gzip")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        return found

    def begins(self) -> bool:
        """Record a request; return whether to respond: not while the BMC starts, and not without a session."""
        self.box.asked.append((self.command, self.path))
        self.box.logins += "Authorization" in self.headers
        odd = self.box.odd(self.command, self.path) if self.box.odd else None
        if odd:
            self.oddly(odd)
            return False
        if self.box.starting > 0:
            self.box.starting -= 1
            self.body()
            self.answer(
                503,
                error("The service is temporarily unavailable. Retry in 60 seconds."),
                Retry_After=str(self.box.retry_after),
            )
            return False
        open_ = self.path.rstrip("/") == "/redfish/v1" or (self.command == "POST" and self.box.has_sessions)
        basic = self.headers.get("Authorization") == f"Basic {BASIC}"
        if not (open_ or basic or self.headers.get("X-Auth-Token") in self.box.sessions.values()):
            self.body()
            self.answer(401, error("There is no valid session established with the implementation."))
            return False
        return True

    def oddly(self, odd: Odd) -> None:
        """Send an odd answer."""
        given = self.body()
        if odd.done and "Attributes" in given:
            self.box.pending |= given["Attributes"]
        self.close_connection = True
        if not odd.status:
            self.connection.close()
            return
        text = (odd.body + json.dumps(given) * odd.repeats).encode()
        self.send_response(odd.status)
        for name, value in {"Content-Type": odd.kind, "Content-Length": str(len(text)), **odd.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for octet in text if odd.every_s else ():
            with contextlib.suppress(OSError):
                self.wfile.write(bytes([octet]))
                self.wfile.flush()
                time.sleep(odd.every_s)
        self.wfile.write(b"" if odd.every_s else text)

    def do_POST(self) -> None:
        """Open a session."""
        with self.box.lock:
            if not self.begins():
                return
            given = self.body()
            if not self.box.has_sessions:
                self.answer(404, error("no such resource"))
            elif self.path != "/redfish/v1/SessionService/Sessions":
                self.answer(404, error("no such action"))
            elif (given.get("UserName"), given.get("Password")) != (USER, PASSWORD):
                self.answer(401, error("The credentials are invalid."))
            elif len(self.box.sessions) >= self.box.most:
                text = (
                    "The session establishment failed due to the number of simultaneous sessions exceeding the limit."
                )
                self.answer(503, error(text, "Base.1.8.SessionLimitExceeded"))
            else:
                self.box.opened += 1
                path = f"/redfish/v1/SessionService/Sessions/{self.box.opened}"
                self.box.sessions[path] = token = f"token-{self.box.opened}"
                self.answer(201, {"@odata.id": path, "Id": str(self.box.opened)}, X_Auth_Token=token, Location=path)

    def do_DELETE(self) -> None:
        """Close a session, or remove a job that has not begun."""
        with self.box.lock:
            name = self.path.rpartition("/")[2]
            if not self.begins():
                return
            if "/Jobs/" in self.path:
                left = [one for one in self.box.jobs if (one["Id"], one["JobState"]) != (name, "Scheduled")]
                status = 204 if len(left) < len(self.box.jobs) else 400
                self.box.jobs = left
                self.answer(status, None if status == 204 else error("The job cannot be deleted."))
            else:
                self.answer(204 if self.box.sessions.pop(self.path, None) else 404)

    def do_GET(self) -> None:
        """Return a resource."""
        with self.box.lock:
            if not self.begins():
                return
            found = resources(self.box).get(self.path.partition("?")[0].rstrip("/").lower())
            if found is None:
                self.answer(404, error(f"The resource at the URI {self.path} was not found."))
            elif self.path.rstrip("/") == self.box.settings.rstrip("/"):
                self.answer(200, {**found, "@odata.etag": self.etag}, ETag=self.etag)
            else:
                self.answer(200, found)

    @property
    def etag(self) -> str:
        """Return the ETag of the settings."""
        return f'W/"{self.box.version}"'

    def do_PATCH(self) -> None:
        """Stage values: all of them, or none."""
        with self.box.lock:
            if not self.begins():
                return
            given, box = self.body(), self.box
            if self.path.rstrip("/") != box.settings.rstrip("/"):
                self.answer(405, error("The operation is not allowed here."))
                return
            if box.stale > 0:
                box.stale, box.version = box.stale - 1, box.version + 1
            if self.headers.get("If-Match") not in (self.etag, "*" if box.any_etag else self.etag):
                status = 412 if self.headers.get("If-Match") else 428
                self.answer(status, error("The ETag supplied did not match the ETag required to change this resource."))
                return
            if box.slow_task:
                self.in_a_task(given)
                return
            if [one for one in box.jobs if one["JobState"] in ("Scheduled", "Running")]:
                self.answer(400, error("Pending configuration values are committed.", "IDRAC.2.8.SYS011"))
                return
            texts = [text for name, value in given["Attributes"].items() if (text := box.wrong(name, value))]
            if texts:
                self.answer(400, error(" ".join(texts), "Base.1.8.PropertyValueNotInList"))
                return
            self.staged(given)

    def in_a_task(self, given: Mapping[str, Any]) -> None:
        """Accept a change, and carry it out later, as its task has it."""
        task = dict(self.box.slow_task or {})
        polls, path = task.pop("polls"), "/redfish/v1/TaskService/Tasks/9"
        self.box.sent.append(dict(given["Attributes"]))
        self.box.more[path] = {"Id": "9", "TaskState": "Running", "polls": [polls, task, dict(given["Attributes"])]}
        self.answer(202, {"@odata.id": path, "TaskState": "New"}, Location=f"{path}/Monitor")

    def staged(self, given: Mapping[str, Any]) -> None:
        """Store the staged values and respond."""
        box = self.box
        box.sent.append(dict(given["Attributes"]))
        box.pending |= given["Attributes"]
        box.version += 1
        apply = (given.get("@Redfish.SettingsApplyTime") or {}).get("ApplyTime")
        if box.dell and apply == "OnReset":
            job = f"JID_{len(box.jobs) + 1:012}"
            box.jobs.append(
                {"Id": job, "JobType": "BIOSConfiguration", "JobState": "Scheduled", "Message": "Scheduled."}
            )
            self.answer(202, None, Location=f"/redfish/v1/TaskService/Tasks/{job}")
        else:
            self.answer(200, error("Success", "Base.1.8.Success") if not box.dell else None)


def resources(box: Box) -> dict[str, Any]:
    """Return all resources by their lowercase paths, without a slash at the end."""
    paths, name = box.about["paths"], box.about["registry"]
    registries, file = "/redfish/v1/Registries", f"/redfish/v1/Registries/{name}/file"
    system = {
        **{"Manufacturer": box.about["maker"], "Model": box.about["model"], "SerialNumber": box.serial, "SKU": "TAG1"},
        **{"BiosVersion": box.bios, "Bios": {"@odata.id": paths["bios"]}, "Id": "1", "PowerState": "On"},
        "Links": {"ManagedBy": [{"@odata.id": paths["manager"]}]},
    }
    bios = {"Id": "Bios", "AttributeRegistry": name, "Attributes": dict(box.current)}
    # Dell shows only pending values, other makers all future values.
    staged = dict(box.pending) if box.dell else {**box.current, **box.pending}
    found: dict[str, Any] = {
        "/redfish/v1": {
            **{"Systems": {"@odata.id": paths["systems"]}, "Registries": {"@odata.id": registries}},
            **{"Managers": {"@odata.id": "/redfish/v1/Managers"}, "Vendor": box.about["maker"].partition(" ")[0]},
            "SessionService": {"@odata.id": "/redfish/v1/SessionService"},
            "Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}},
        },
        "/redfish/v1/SessionService": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}},
        paths["systems"]: {"Members": [{"@odata.id": paths["system"]}]},
        paths["system"]: system,
        "/redfish/v1/Managers": {"Members": [{"@odata.id": paths["manager"]}]},
        paths["manager"]: {"Id": "BMC"},
        registries: {"Members": [{"@odata.id": f"{registries}/Base.1.8"}, {"@odata.id": f"{registries}/{name}"}]},
        f"{registries}/Base.1.8": {"Id": "Base.1.8", "Registry": "Base.1.8.1", "Location": []},
        f"{registries}/{name}": {"Id": name, "Registry": name, "Location": [{"Language": "en", "Uri": file}]},
        file: {
            "RegistryEntries": {"Attributes": [*box.attributes.values()], "Dependencies": box.about["dependencies"]}
        },
    }
    if box.shows_pending:
        bios["@Redfish.Settings"] = {"SettingsObject": {"@odata.id": box.settings}}
        found[box.settings] = {"Id": "Settings", "Attributes": staged}
    found[paths["bios"]] = bios
    without_announcements(box, found, bios)
    overlay(box, found)
    if box.dell:
        found |= queue(box, f"{paths['manager']}/Jobs")
    return {path.rstrip("/").lower(): {"@odata.id": path, **body} for path, body in found.items()}


def without_announcements(box: Box, found: dict[str, Any], bios: dict[str, Any]) -> None:
    """Take out what the BMC does not announce or have."""
    if not box.announced:
        bios.pop("@Redfish.Settings", None)
    if not box.has_sessions:
        for one in ("SessionService", "Links"):
            del found["/redfish/v1"][one]


def overlay(box: Box, found: dict[str, Any]) -> None:
    """Add the other resources of the box, and let a running task go on."""
    for path, body in box.more.items():
        if "polls" in body and body["TaskState"] == "Running":
            body["polls"][0] -= 1
            if body["polls"][0] <= 0:
                _, task, values = body["polls"]
                body.update(task)
                box.pending |= values if task["TaskState"] in ("Completed", "Pending") else {}
        found[path] = {**found.get(path, {}), **{key: value for key, value in body.items() if key != "polls"}}


def queue(box: Box, path: str) -> dict[str, Any]:
    """Return the job queue; a running job ends after several queries."""
    for one in box.jobs:
        if one["JobState"] == "Running":
            box.job_polls -= 1
            if box.job_polls <= 0:
                one |= {"JobState": "Completed", "Message": "Job completed successfully."}
                box.job_polls = 2
    return {path: {"Members": [dict(one) for one in box.jobs]}} | {f"{path}/{one['Id']}": dict(one) for one in box.jobs}


@dataclass(frozen=True)
class Served:
    """A running BMC: its box, address and certificate. control: a plain HTTP path that resets its system."""

    box: Box
    address: str
    ca: str
    fingerprint: str
    control: str

    def variables(self, **more: Any) -> dict[str, Any]:
        """Return the variables of role bios for this BMC."""
        given = {"address": self.address, "user": USER, "password": PASSWORD, "fingerprint": self.fingerprint}
        return {**{f"bios_bmc_{name}": value for name, value in given.items()}, **more}


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a key and a self-signed certificate for 127.0.0.1, as BMCs have."""
    key, path = folder / "bmc.key", folder / "bmc.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "30", "-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True)
    return key, path


class Server(ThreadingHTTPServer):
    """A server that accepts clients that do not trust it."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Log nothing when a client closes its connection."""


@contextlib.contextmanager
def served(box: Box, key: Path, path: Path) -> Iterator[Served]:
    """Serve a BMC over TLS, and an address at which tests reset its system."""
    server = Server(("127.0.0.1", 0), type("Of", (Handler,), {"box": box}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

    class Control(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Restart the system."""
            box.reset()
            self.send_response(204)
            self.end_headers()

    control = Server(("127.0.0.1", 0), Control)
    servers = (server, control)
    for one in servers:
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    text = path.read_text(encoding="ascii")
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
    places = [f"127.0.0.1:{one.server_address[1]}" for one in servers]
    try:
        yield Served(box, places[0], text, fingerprint, f"http://{places[1]}/")
    finally:
        for one in servers:
            one.shutdown()
            one.server_close()
