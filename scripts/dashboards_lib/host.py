"""The dashboard of hosts and their cards."""

from __future__ import annotations

from gaudi_serve.monitoring.card_exporters import OF_CARDS, PORTS, exported, of_card

from .build import Board, Panel, Row
from .queries import CARD, HOST, HOSTS, RATE, age, own

CARDS_OF = f"{OF_CARDS},{HOST}"


def card(name: str, measure: str, by: str = "host, card") -> tuple[str, str]:
    """Return a query for a card metric, from the vendor's exporter if the toolkit has no value."""
    return f"{own(f'card_{name}', HOST, by)} or on (host) {exported(measure, CARDS_OF, by)}", CARD


def node(expr: str, legend: str = "{{host}}") -> tuple[str, str]:
    """Return a query for node exporter; SELECTED stands for the selected hosts."""
    return expr.replace("SELECTED", f'job="node",{HOST}'), legend


SLOWDOWN = (
    card("temperature_slowdown_celsius", "slowdown", "host")[0],
    "slows down: {{host}}",
)
THROTTLED = (
    f'sum by (host, card, reason) (rate(gaudi_serve_card_throttled_seconds_total{{job="node",{HOST}}}[{RATE}]))'
    f' or max by (host, card, reason) (gaudi_serve_card_throttled{{job="node",{HOST}}})'
)
PORTS_DOWN = (
    f'count by (host, card) (gaudi_serve_card_port_up{{job="node",{HOST}}} == 0)'
    " or on (host) count by (host, card) (" + of_card(f'{PORTS}{{{CARDS_OF},port_type="internal"}} == 0', "id") + ")"
)
DISK = 'SELECTED,fstype!~"tmpfs|devtmpfs|ramfs|overlay|squashfs|iso9660|nsfs|fuse.*"'
NIC = 'SELECTED,device!~"lo|veth.*|docker.*|br-.*"'
CARDS = Board(
    "gaudi-serve-host",
    "gaudi-serve: host and cards",
    "Hosts, their cards, and whether the collector reads all of it.",
    (HOSTS,),
    (
        Row(
            "Cards",
            (
                Panel(
                    "Temperature",
                    (
                        card("temperature_celsius", "temperature"),
                        SLOWDOWN,
                    ),
                    "celsius",
                ),
                Panel("Power", (card("power_watts", "power"),), "watt"),
                Panel("Utilization", (card("utilization_ratio", "utilization"),), "percentunit"),
                Panel("Memory in use", (card("memory_used_bytes", "memory_used"),), "bytes"),
                Panel(
                    "Slower because of heat or power",
                    (
                        (
                            THROTTLED,
                            "{{reason}}: " + CARD,
                        ),
                    ),
                    "percentunit",
                ),
                Panel("Lanes of PCI Express", (card("pcie_width", "pcie_width"),), "none"),
                Panel(
                    "ECC errors since the driver was loaded",
                    ((own("card_ecc_errors_total", HOST, "host, card, kind", "sum"), "{{kind}}: " + CARD),),
                    "none",
                ),
                Panel(
                    "ECC errors in the card's life",
                    ((own("card_ecc_errors_lifetime", HOST, "host, card, kind", "sum") + " > 0", "errors"),),
                    "none",
                    "table",
                ),
                Panel(
                    "Row replacement pending",
                    (
                        (
                            card("rows_pending", "rows_pending")[0].replace(" or on", " == 1 or on", 1) + " == 1",
                            "pending",
                        ),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Last Xid of NVIDIA's cards",
                    ((exported("last_xid", CARDS_OF) + " > 0", "Xid"),),
                    "none",
                    "table",
                    text="By dcgm-exporter, which shows the last one until it is restarted.",
                ),
                Panel(
                    "Cards that their exporter calls unhealthy",
                    (
                        (exported("unhealthy", CARDS_OF) + " == 1", "unhealthy (AMD)"),
                        (exported("no_spare_row", CARDS_OF) + " == 1", "no spare row of memory (NVIDIA)"),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Uncorrected errors, by the exporter",
                    (
                        (exported("ecc_uncorrected", CARDS_OF), "errors: " + CARD),
                        (exported("rows_replaced", CARDS_OF), "replaced rows: " + CARD),
                    ),
                    "none",
                ),
                Panel(
                    "Ports without a link",
                    (
                        (
                            PORTS_DOWN,
                            "ports",
                        ),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Cards of the host",
                    (
                        (own("cards_present", HOST, "host"), "present"),
                        (own("cards_expected", HOST, "host"), "expected"),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Which card is which", ((own("card_info", HOST, "host, card, details"), "there"),), "none", "table"
                ),
            ),
        ),
        Row(
            "Hosts",
            (
                Panel(
                    "Processors in use",
                    (node(f'1 - avg by (host) (rate(node_cpu_seconds_total{{SELECTED,mode="idle"}}[{RATE}]))'),),
                    "percentunit",
                ),
                Panel(
                    "Memory in use",
                    (
                        node(
                            "1 - max by (host) (node_memory_MemAvailable_bytes{SELECTED}"
                            " / node_memory_MemTotal_bytes{SELECTED})"
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Disks in use",
                    (
                        node(
                            f"1 - min by (host, mountpoint) (node_filesystem_avail_bytes{{{DISK}}}"
                            f" / node_filesystem_size_bytes{{{DISK}}})",
                            "{{mountpoint}} of {{host}}",
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Network, received",
                    (node(f"sum by (host) (rate(node_network_receive_bytes_total{{{NIC}}}[{RATE}]))"),),
                    "Bps",
                ),
                Panel(
                    "Network, sent",
                    (node(f"sum by (host) (rate(node_network_transmit_bytes_total{{{NIC}}}[{RATE}]))"),),
                    "Bps",
                ),
                Panel("Load, one minute", (node("max by (host) (node_load1{SELECTED})"),), "short"),
                Panel(
                    "Huge pages",
                    (
                        node("max by (host) (node_memory_HugePages_Total{SELECTED})", "there"),
                        (own("host_hugepages_expected", HOST, "host"), "expected"),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Up since", (node("max by (host) (time() - node_boot_time_seconds{SELECTED})", "up"),), "s", "table"
                ),
                Panel(
                    "Certificates end in",
                    (
                        (
                            "-1 * " + age("certificate_expiry", HOST, "host, certificate"),
                            "left",
                        ),
                    ),
                    "s",
                    "table",
                ),
            ),
        ),
        Row(
            "Collector",
            (
                Panel(
                    "Age of its metrics",
                    (
                        (
                            age("collector_last_run", HOST, "host"),
                            "{{host}}",
                        ),
                    ),
                    "s",
                ),
                Panel("Duration of its runs", ((own("collector_duration_seconds", HOST, "host"), "{{host}}"),), "s"),
                Panel(
                    "Parts that it reads",
                    ((own("collector_success", HOST, "host, part", "min"), "read"),),
                    "bool_yes_no",
                    "table",
                ),
            ),
        ),
    ),
)
