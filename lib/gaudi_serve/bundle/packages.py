"""The packages that the roles install on a host, including those that are already installed."""

from __future__ import annotations

from ..core.checks import is_true
from ..gateway.fleet import removes_gateway
from ..platforms import platform_of, runtimes
from ..platforms.base import Runtime
from ..platforms.driver import Driver, begins, upstream
from ..stages.accelerator_network import between_of, network_packages
from ..stages.apt_access import apt_access
from ..stages.container_runtime import is_asked, with_client
from ..stages.driver import driver_changes
from ..stages.driver_packages import Present
from ..stages.gateway import gateway_packages
from ..stages.image import REGISTRY_PACKAGES
from ..stages.monitoring import wanted
from .host import OF_HOST, BundleHost
from .items import Item
from .roles import apt_names

NO_ADDRESS = "no address is known, since the host's own sources have it"


def host_tuning(host: BundleHost) -> list[Item]:
    """Return the package that sets the CPU governor for the host's kernel."""
    tuning = host.known.get("gaudi_tuning")
    if not host.known["host_tuning_governor"] or (tuning and not tuning["governor"]["values"]):
        return []
    names = apt_names("host_tuning", "apply.yml", "Governor | Install cpupower", gaudi_system=host.system)
    return host.packages(names, "host_tuning")


def driver(host: BundleHost) -> list[Item]:
    """Return the packages of the driver, the headers of the host's kernel, and their repository."""
    platform = platform_of(host.system["accelerator"]).driver
    if platform is None or not is_true(host.known["driver_manage"]):
        return []
    names = _of_release(host, platform) if platform.packages else _of_version(host, platform)
    further = [one for one in host.known["driver_optional_packages"] or () if one not in names]
    if not names and not further:
        return []
    values: dict[str, object] = {
        "gaudi_system": host.system,
        "driver_kernel_headers": host.known["driver_kernel_headers"],
    }
    # The task's own expression adds these to the headers; they are listed below.
    values["__driver"] = {"changes": {"install": []}}
    headers = apt_names("driver", "apply.yml", "Apply | Install the packages together", **values)
    repository = host.known["driver_repository"] or {}
    found, origin = host.repository(repository, "driver")
    found += host.packages(_tools("driver", "source.yml") if repository else [], "driver")
    problems = ("no version: the newest of that day; set driver_version", _no_address(origin, "driver_repository"))
    own = host.packages([*names, *further], "driver", origin, *problems)
    return [*found, *host.packages(headers, "driver"), *own]


def _no_address(origin: str, variable: str) -> str:
    """Return the problem of packages whose source is known only on the host."""
    return f"{NO_ADDRESS}: set {variable}" if origin == OF_HOST else ""


def _tools(role: str, file: str) -> list[str]:
    """Return the packages that writing a repository needs."""
    tasks = {
        "source.yml": "Apply | Install the packages for writing a repository",
        "runtime.yml": "Runtime | Install the packages for adding a repository",
        "repositories.yml": "Repositories | Install the packages for adding repositories",
    }
    return apt_names(role, file, tasks[file])


def _of_release(host: BundleHost, platform: Driver) -> list[str]:
    """Return the packages of a driver that belong to one release, with their version if it is known."""
    known = host.known
    names, facts = list(known["driver_packages"] or platform.packages), known.get("gaudi_driver")
    version, release = str(known["driver_version"] or ""), str(known["driver_release"])
    if facts:
        changes = driver_changes(facts, release=release, version=version, packages=names)
        if changes["foreign"]:
            return []
        version = changes["version"]
    return [f"{name}={version}" if version else name for name in names]


def _of_version(host: BundleHost, platform: Driver) -> list[str]:
    """Return the packages of a driver that have their own version."""
    asked, facts = str(host.known["driver_version"] or ""), host.known.get("gaudi_driver")
    if not facts:
        version = asked or platform.usual
        name = platform.sources[0].format(branch=version.partition(".")[0]) if platform.sources else ""
        return [name] if name and version else []
    here = Present.of(facts)
    source = here.source(platform)
    if here.loaded and source is None:
        return []  # it was not installed from a package
    version = asked or ("" if source else platform.usual)
    best = (
        here.best(platform, version, source) if version and not (source and begins(source.version, version)) else None
    )
    target = best or source
    if target is None:
        return [platform.sources[0].format(branch=version.partition(".")[0])] if platform.sources and version else []
    companion = here.best_companion(platform, upstream(target.version)) if here.needs_companion else None
    return [target.exact, *here.others(target), *([companion.exact] if companion else [])]


def container_runtime(host: BundleHost) -> list[Item]:
    """Return the packages of the container engine and of device runtimes, and the repositories of both."""
    vendor = host.known["container_runtime_engine"] == "vendor"
    kind = "vendor_packages" if vendor else "distribution_packages"
    names = with_client(host.known[f"container_runtime_{kind}"], host.system)
    source = vendor and is_true(host.known["container_runtime_vendor_source"])
    found, origin = _engine_source(host) if source else ([], "")
    found += host.packages(names, "container_runtime", origin)
    for one in runtimes():
        if is_asked(one, host.known, host.system["accelerator"]):
            found += _runtime(host, one)
    return found


def _engine_source(host: BundleHost) -> tuple[list[Item], str]:
    """Return the items of the engine vendor's repository, with key and tools, and its address."""
    own = "container_runtime_vendor_"
    place = f"{host.known[f'{own}uri']}/{host.system['id']}"
    suites = [str(host.system.get("codename") or "")]
    found, origin = host.repository({"uris": [place], "suites": suites, "components": ["stable"]}, "container_runtime")
    key = apt_access(host.known[f"{own}key_url"] or f"{place}/gpg")["uris"][0]
    checksum = str(host.known[f"{own}key_checksum"] or "")
    found.append(Item("key", key, checksum, key, need=host.need("container_runtime"), pinned=bool(checksum)))
    return [*found, *host.packages(_tools("container_runtime", "repositories.yml"), "container_runtime")], origin


def _runtime(host: BundleHost, runtime: Runtime) -> list[Item]:
    own = f"container_runtime_{runtime.name}"
    here = ((host.known.get("gaudi_runtime") or {}).get("packages") or {}).get(runtime.package)
    version = str(host.known.get(f"{own}_version") or here or "")
    names = [f"{name}={version}" for name in runtime.packages] if version else [runtime.package]
    repository = host.known.get(f"{own}_repository") or {}
    found, origin = host.repository(repository, "container_runtime")
    found += host.packages(_tools("container_runtime", "runtime.yml") if repository else [], "container_runtime")
    problem = f"no version: the newest of that day; set {own}_version"
    lacks = _no_address(origin, f"{own}_repository")
    return [*found, *host.packages(names, "container_runtime", origin, problem, lacks)]


def accelerator_network(host: BundleHost) -> list[Item]:
    """Return the packages for the network between hosts."""
    return host.packages(network_packages(between_of(host.known)), "accelerator_network")


def gateway(host: BundleHost) -> list[Item]:
    """Return the packages of a gateway."""
    settings = host.known["gateway_settings"] or {}
    if removes_gateway(settings):
        return []
    return host.packages(gateway_packages(shared=bool(settings.get("virtual_address"))), "gateway")


def monitoring(host: BundleHost) -> list[Item]:
    """Return the packages of a watched host, or of a host with Prometheus."""
    fleet, settings = host.known["monitoring_fleet"], host.known["monitoring_settings"]
    # Certificates and watched hosts are known only during the run, so the list assumes that all exist.
    monitors = [{**one, "certificate": one["certificate"] or "made in the run"} for one in fleet["monitors"]]
    others = [name for name in host.known["groups"]["all"] if name != host.name]
    watched = fleet["watched"] or [{"host": name, "address": name} for name in others[:1] if settings]
    fleet = {**fleet, "monitors": monitors, "watched": watched}
    return host.packages(wanted(host.name, fleet, settings, {}).packages, "monitoring")


def images(host: BundleHost) -> list[Item]:
    """Return the packages of a host from which others copy images."""
    return host.packages(REGISTRY_PACKAGES if host.gives_images else (), "vllm_image")


def site_mirror(host: BundleHost) -> list[Item]:
    """Return the packages of a host that serves the bundle."""
    return host.packages(apt_names("site_mirror", "install.yml", "Install | Install the packages"), "site_mirror")
