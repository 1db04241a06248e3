"""The toolkit's own metrics, which the collector on every host writes for node exporter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric: its name, its type for Prometheus (gauge or counter), its help text, and its own labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _of(subject: str, labels: tuple[str, ...], *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> list[Metric]:
    """Return the metrics of one subject; the optional fourth entry of a row is a further label."""
    return [Metric(f"gaudi_serve_{subject}_{row[0]}", row[1], row[2], (*labels, *row[3:])) for row in rows]


# The states of a model's unit: exactly one of them is 1.
STATES = ("starting", "serving", "silent", "failed", "stopped")
# Reasons why a server ended.
REASONS = ("crash", "out_of_memory", "frozen", "start_failed", "other_host", "other")

# An unreadable value has no sample, instead of 0.
METRICS: tuple[Metric, ...] = (
    Metric("gaudi_serve_build_info", "gauge", "Always 1; the label has the digest of the collector.", ("collector",)),
    *_of(
        "collector",
        (),
        ("success", "gauge", "1 where the collector could read this part at its last run, else 0.", "part"),
        ("duration_seconds", "gauge", "Seconds that the last run of the collector took."),
        ("last_run_timestamp_seconds", "gauge", "Unix time of the collector's last run."),
    ),
    *_of(
        "cards",
        (),
        ("expected", "gauge", "Cards that the host had when it was last planned."),
        ("present", "gauge", "Cards that the platform's tool shows now."),
    ),
    *_of(
        "card",
        ("card",),
        ("info", "gauge", "Always 1; the labels identify the card.", "details"),
        ("temperature_celsius", "gauge", "Temperature of the card's chip."),
        ("temperature_slowdown_celsius", "gauge", "Temperature from which the card slows down."),
        ("power_watts", "gauge", "Power that the card draws."),
        ("utilization_ratio", "gauge", "Part of the time that the card works, from 0 to 1."),
        ("memory_used_bytes", "gauge", "Memory of the card that is in use."),
        ("memory_total_bytes", "gauge", "Memory of the card."),
        ("ecc_errors_total", "counter", "ECC errors since the driver was loaded, by kind.", "kind"),
        ("ecc_errors_lifetime", "gauge", "ECC errors in the card's life, by kind.", "kind"),
        ("rows_pending", "gauge", "1 where a replacement of memory rows waits for a reset of the card."),
        ("throttled_seconds_total", "counter", "Seconds for which the card ran slower, by reason.", "reason"),
        ("throttled", "gauge", "1 where the card runs slower now, by reason.", "reason"),
        ("port_up", "gauge", "1 where a port to other cards or hosts has a link.", "port"),
        ("pcie_width", "gauge", "Lanes of PCI Express that the card uses."),
        ("pcie_width_max", "gauge", "Lanes of PCI Express that the card has."),
    ),
    *_of(
        "model",
        ("model",),
        ("expected", "gauge", "1 where the plan has the model started on this host."),
        ("endpoint", "gauge", "1 where this host answers the model's requests, 0 where another host of it does."),
        ("state", "gauge", "1 for the state that the model's unit is in, else 0.", "state"),
        ("start_timestamp_seconds", "gauge", "Unix time at which the container of the model was started."),
        ("ready_timestamp_seconds", "gauge", "Unix time at which the model answered for the first time."),
        (
            "restarts_total",
            "counter",
            "Ends of the server that its supervisor answered with a start, by reason.",
            "reason",
        ),
        ("warmup_progress_ratio", "gauge", "Graphs that the running warm-up has compiled, from 0 to 1."),
        ("warmup_seconds", "gauge", "Seconds that the last finished warm-up took."),
        ("warmup_graphs", "gauge", "Graphs that the last finished warm-up compiled."),
        ("kv_blocks", "gauge", "Blocks of the KV cache that the server has."),
        (
            "unwarmed_shapes_total",
            "counter",
            "Distinct shapes compiled while serving since the last start, by phase.",
            "phase",
        ),
        ("planned_warmup_seconds", "gauge", "Seconds of warm-up that the plan foresees."),
        ("planned_graphs", "gauge", "Graphs that the plan foresees."),
        ("planned_kv_blocks", "gauge", "Blocks of the KV cache that the plan foresees."),
        ("launch_differs", "gauge", "1 where the container runs with another launch than the last run planned."),
        ("smoke_timestamp_seconds", "gauge", "Unix time of the last smoke test that passed."),
    ),
    *_of(
        "host",
        (),
        ("in_rollout", "gauge", "1 while a rollout has this host under way."),
        ("locked", "gauge", "1 while a run of the toolkit changes this host."),
        ("changed_timestamp_seconds", "gauge", "Unix time at which a run last changed this host, since its boot."),
        ("reboot_due", "gauge", "1 where the host needs a reboot, for its kernel arguments or its packages."),
        ("hugepages_expected", "gauge", "Huge pages that the host was tuned to have."),
        ("validation_timestamp_seconds", "gauge", "Unix time of the last measurement of the links between the cards."),
        ("validation_passed", "gauge", "1 where the last measurement of the links passed."),
    ),
    *_of(
        "certificate",
        ("certificate",),
        ("expiry_timestamp_seconds", "gauge", "Unix time at which a certificate of this host expires."),
    ),
    *_of(
        "fleet",
        (),
        ("pending_changes", "gauge", "Pending changes of the last status, by stage.", "stage"),
        ("status_timestamp_seconds", "gauge", "Unix time of the last status that was kept."),
    ),
)
BY_NAME = {one.name: one for one in METRICS}
