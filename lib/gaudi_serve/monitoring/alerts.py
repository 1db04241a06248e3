"""The alerts that need no objective, and the recordings that Prometheus computes for them.

An expression names a threshold, or a condition of ``QUIET``, in angle brackets: ``> <ttft_p95_s> <quiet>``. It keeps
host and model, and the engine if one engine of a server can fail alone; the fork has no label ``engine``, which is then
empty. A comparison with a missing series or with 0/0 gives no result, and so no alert.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..platforms.nvidia_log import OUT, RECOVERY
from .card_exporters import NO_CARD, OF_CARDS, PORTS, XIDS, exported, of_card
from .expressions import by_engine, grown, vllm


@dataclass(frozen=True)
class Recording:
    """An expression that Prometheus evaluates for other rules, with the labels that it adds."""

    name: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Alert:
    """An alert.

    expr: the condition, one series for each case. lasts: how long it must hold before the alert fires. severity:
    critical (act at once), warning (today), info (at leisure), none (no person; a machine waits for it). summary,
    description: texts with Prometheus' templates. labels: labels that it adds.
    """

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()


# These conditions silence an alert: the model starts within its time or is planned as stopped, or its host is in a
# rollout. An abandoned rollout, a start that takes too long, and a server that keeps ending silence nothing.
QUIET = {
    "quiet": "unless on (host, model) host_model:gaudi_serve_quiet:count",
    "quiet_host": "unless on (host) host:gaudi_serve_rollout:last",
    "quiet_proxy": "unless on (host, proxy) host_proxy:gaudi_serve_quiet:count",
    # vLLM still counts requests as running or waiting if all of them were aborted at once, until its next request.
    "unused": "unless on (host, model) host_model:gaudi_serve_unused:count",
}
ON = "{{ $labels.model }} on {{ $labels.host }}"
ENGINE = ON + "{{ with $labels.engine }}, engine {{ . }}{{ end }}"
CARD = "card {{ $labels.card }} of {{ $labels.host }}"
# File systems that hold no data of the host, or that nobody can write to.
DISKS = 'job="node",fstype!~"tmpfs|devtmpfs|ramfs|overlay|nsfs|efivarfs|fuse.*|squashfs|erofs|cramfs|romfs|iso9660|udf"'
READ_ONLY = f"unless on (host, instance, device, mountpoint) node_filesystem_readonly{{{DISKS}}} == 1"
# HAProxy's tables of the gateway are backends without servers.
BACKENDS = 'job="haproxy",proxy!~"own:.*"'


def _p95(*names: str) -> str:
    """Return the 95th percentile of a histogram for each engine; names: by release."""
    rates = " or ".join(f'rate(vllm:{name}_bucket{{job="vllm"}}[5m])' for name in names)
    return f"histogram_quantile(0.95, sum by (host, model, engine, le) ({rates}))"


def _moved(minutes: int) -> str:
    """Return the tokens of each engine in the last minutes, of prompts and of answers."""
    return f"{vllm('generation_tokens_total', f'increase({{}}[{minutes}m])')} + " + vllm(
        "prompt_tokens_total", f"increase({{}}[{minutes}m])"
    )


UNDER_WAY = "host_model_engine:vllm_requests_under_way:count"
PREFIX = "host_model:vllm_prefix_cache_hits:ratio_1h"
# Xids that take a card of NVIDIA out of service. That of a recovery also comes when none is needed any more.
FATAL = "|".join(str(number) for number in OUT if number != RECOVERY)
LAST_XID = "host_card_xid:gaudi_serve_last:count"
KV_USED = '{0}(vllm:kv_cache_usage_perc{{job="vllm"}}[{1}]) or {0}(vllm:gpu_cache_usage_perc{{job="vllm"}}[{1}])'
RECORDINGS = (
    # A host that was in a rollout during the complete window.
    Recording(
        "host:gaudi_serve_rollout:overdue",
        """
        min by (host) (min_over_time(gaudi_serve_host_in_rollout{job="node"}[<drained_s>s])) == 1
        and on (host) max by (host) (gaudi_serve_host_in_rollout{job="node"} offset <drained_s>s) == 1
        """,
    ),
    # A rebooting host has no samples, so its last sample counts.
    Recording(
        "host:gaudi_serve_rollout:last",
        """
        max by (host) (last_over_time(gaudi_serve_host_in_rollout{job="node"}[<drained_s>s])) == 1
        unless on (host) host:gaudi_serve_rollout:overdue
        """,
    ),
    Recording(
        "host_model:gaudi_serve_start:overdue",
        """
        max by (host, model) (
          time() - gaudi_serve_model_start_timestamp_seconds{job="node"}
          > <start_extra_s> + <start_factor> * (
            gaudi_serve_model_planned_warmup_seconds{job="node"}
            or 0 * gaudi_serve_model_start_timestamp_seconds{job="node"}
          )
        )
        and on (host, model) (gaudi_serve_model_state{job="node",state="starting"} == 1)
        """,
    ),
    Recording(
        "host_model:gaudi_serve_quiet:count",
        """
        count by (host, model) (
          (
            gaudi_serve_model_state{job="node",state="starting"} == 1
            unless on (host, model) host_model:gaudi_serve_start:overdue
            unless on (host, model) (
              round(sum by (host, model) (increase(gaudi_serve_model_restarts_total{job="node"}[6h]))) > <restarts>
            )
          )
          or gaudi_serve_model_expected{job="node"} == 0
          or (
            last_over_time(gaudi_serve_model_expected{job="node"}[<drained_s>s])
            and on (host) host:gaudi_serve_rollout:last
          )
        )
        """,
    ),
    # A backend whose servers are all down or drained because their models are quiet as above.
    Recording(
        "host_proxy:gaudi_serve_quiet:count",
        """
        count by (host, proxy) (
          haproxy_server_status{job="haproxy",state="UP"} == 0
          and on (server) label_join(host_model:gaudi_serve_quiet:count, "server", ".", "host", "model")
        )
        == count by (host, proxy) (haproxy_server_status{job="haproxy",state="UP"})
        """,
    ),
    # A server to which no gateway has sent a request for ten minutes. Without a gateway it is unknown.
    Recording(
        "host_model:gaudi_serve_unused:count",
        """
        count by (host, model) (
          label_join(vllm:num_requests_running{job="vllm"}, "server", ".", "host", "model")
          and on (server) sum by (server) (max_over_time(haproxy_server_current_sessions{job="haproxy"}[10m])) == 0
        )
        """,
    ),
    Recording(
        "host_model_engine:vllm_requests:rate5m",
        vllm("time_to_first_token_seconds_count", "rate({}[5m])"),
    ),
    Recording(
        "host_model_engine:vllm_requests_under_way:count",
        f"{vllm('num_requests_running')} + {vllm('num_requests_waiting')}",
    ),
    # The mean time in a queue that has not been empty, by its length and the rate at which requests leave it (Little's
    # law). The histogram of vLLM counts a request only when it has ended.
    Recording(
        "host_model_engine:vllm_queue_seconds:mean10m",
        f"""
        {vllm("num_requests_waiting", "avg_over_time({}[10m])")}
        / {vllm("time_to_first_token_seconds_count", "rate({}[10m])")}
        and {vllm("num_requests_waiting", "min_over_time({}[10m])")} > 0
        """,
    ),
    Recording(
        PREFIX,
        """
        sum by (host, model) (increase(vllm:prefix_cache_hits_total{job="vllm"}[1h]))
        / sum by (host, model) (increase(vllm:prefix_cache_queries_total{job="vllm"}[1h]))
        """,
    ),
    *(
        Recording("host_card:gaudi_serve_exported_errors:max", exported(measure), (("kind", measure),))
        for measure in ("ecc_uncorrected", "rows_replaced")
    ),
    # The exporter has a Xid as the value of a series: here it is a label.
    Recording(
        LAST_XID,
        f'count_values by (host, card) ("xid", {exported("last_xid")})',
    ),
    Recording("host_model_engine:vllm_time_to_first_token_seconds:p95", _p95("time_to_first_token_seconds")),
    Recording(
        "host_model_engine:vllm_inter_token_latency_seconds:p95",
        _p95("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ),
    Recording("host_model_engine:vllm_request_queue_time_seconds:p95", _p95("request_queue_time_seconds")),
)
ENOUGH = "and host_model_engine:vllm_requests:rate5m > <requests_per_s>"
# A model with its own objective for a p95 gets no such alert: these two alerts are for the other models.
QUANTILES = {
    "ttft_s": Alert(
        "TimeToFirstTokenHigh",
        f"host_model_engine:vllm_time_to_first_token_seconds:p95<others> > <ttft_p95_s> {ENOUGH} <quiet>",
        "10m",
        "warning",
        f"{ENGINE} answers late",
        "One request in twenty waits longer than {{ $value | humanizeDuration }} for its first token.",
    ),
    "itl_s": Alert(
        "InterTokenLatencyHigh",
        f"host_model_engine:vllm_inter_token_latency_seconds:p95<others> > <itl_p95_s> {ENOUGH} <quiet>",
        "10m",
        "warning",
        f"{ENGINE} writes slowly",
        "One token in twenty takes longer than {{ $value | humanizeDuration }}.",
    ),
}
MODELS = (
    Alert(
        "EndpointDown",
        'max by (host, model) (up{job="vllm"}) == 0 <quiet>',
        "3m",
        "critical",
        f"{ON} does not answer",
        "Prometheus cannot read /metrics of the server, which is neither starting nor planned to be stopped.",
    ),
    Alert(
        "ModelNotScraped",
        """
        max by (host, model) (gaudi_serve_model_expected{job="node"}) == 1
        unless on (host, model) (gaudi_serve_model_endpoint{job="node"} == 0)
        unless on (host, model) up{job="vllm"}
        <quiet>
        """,
        "10m",
        "warning",
        f"{ON} is not monitored",
        "The plan has this model started there, and Prometheus has no target for it.",
    ),
    Alert(
        "EngineSilent",
        'max by (host, model) (gaudi_serve_model_state{job="node",state="silent"}) == 1 <quiet>',
        "3m",
        "critical",
        f"The engine of {ON} is frozen",
        "The server runs and does not answer. Its supervisor restarts it after hang_timeout_s, unless that is 0.",
    ),
    # The prompt of a single long request can take minutes without a token. Its blocks of the KV cache show progress, if
    # the engine computes it in parts. Two requests that make no progress are no such prompt.
    Alert(
        "EngineStalled",
        f"""
        (
          {UNDER_WAY}
          and min_over_time({UNDER_WAY}[5m]) > 1
          and {UNDER_WAY} offset 5m > 1
          and {_moved(5)} == 0
          unless {by_engine(KV_USED.format("changes", "5m"))} > 0
          or
          {UNDER_WAY}
          and min_over_time({UNDER_WAY}[25m]) > 0
          and {UNDER_WAY} offset 25m > 0
          and {_moved(25)} == 0
        )
        <unused>
        <quiet>
        """,
        "5m",
        "critical",
        f"{ENGINE} has requests and makes no token",
        "{{ $value }} requests are under way, and the counters of tokens have stood still for ten minutes or more.",
    ),
    Alert(
        "QueueStuck",
        f"""
        {vllm("num_requests_waiting")} > 0
        and {vllm("num_requests_running")} == 0
        <unused>
        <quiet>
        """,
        "3m",
        "critical",
        f"The queue of {ENGINE} is stuck",
        "{{ $value }} requests wait, and the server works on none.",
    ),
    # A queue that is long because many requests arrive is no such queue: see QueueTimeHigh and QueueGrows.
    Alert(
        "QueueStalled",
        f"""
        {vllm("num_requests_waiting")} > 0
        and host_model_engine:vllm_queue_seconds:mean10m > <queue_stalled_s>
        and {vllm("time_to_first_token_seconds_count", "rate({}[10m])")} < <requests_per_s>
        <unused>
        <quiet>
        """,
        "5m",
        "critical",
        f"The queue of {ENGINE} hardly moves",
        "{{ $value }} requests wait, and the server begins with so few that each waits for minutes.",
    ),
    Alert(
        "ModelRestarts",
        """
        round(sum by (host, model) (increase(gaudi_serve_model_restarts_total{job="node"}[30m]))) > <restarts> <quiet>
        """,
        "",
        "warning",
        f"{ON} keeps ending",
        "Its server ended {{ $value }} times in half an hour and was started again.",
    ),
    Alert(
        "ModelStartsTooLong",
        "host_model:gaudi_serve_start:overdue <quiet_host>",
        "5m",
        "critical",
        f"{ON} does not finish its start",
        "It has been starting for {{ $value | humanizeDuration }}, far longer than the plan foresees.",
    ),
    Alert(
        "QueueTimeHigh",
        f"""
        (
          host_model_engine:vllm_request_queue_time_seconds:p95 > <queue_p95_s> {ENOUGH}
          or host_model_engine:vllm_queue_seconds:mean10m > <queue_p95_s> < Inf
        )
        <quiet>
        """,
        "10m",
        "warning",
        f"Requests wait long at {ENGINE}",
        "Requests wait {{ $value | humanizeDuration }} before the server begins with them: the mean, or one in twenty.",
    ),
    Alert(
        "QueueGrows",
        f"""
        {vllm("num_requests_waiting")} > <waiting>
        and {vllm("num_requests_waiting", "deriv({}[10m])")} > 0
        <quiet>
        """,
        "10m",
        "warning",
        f"The queue of {ENGINE} grows",
        "{{ $value }} requests wait, and their number rises.",
    ),
    Alert(
        "RequestsRejected",
        f"""
        round(sum by (host, model, reason) (
          {grown('vllm:admission_rejections_total{job="vllm"}', 10)}
        )) >= <bad_requests>
        <quiet>
        """,
        "5m",
        "warning",
        f"{ON} rejects requests",
        "It rejected {{ $value }} requests in ten minutes, since its queue is full ({{ $labels.reason }}).",
    ),
    Alert(
        "KvCacheFull",
        f"""
        {by_engine(KV_USED.format("avg_over_time", "10m"), "avg")} > <kv_cache_ratio>
        and {vllm("num_requests_waiting")} > 0
        <unused>
        <quiet>
        """,
        "5m",
        "warning",
        f"The KV cache of {ENGINE} is full",
        "{{ $value | humanizePercentage }} of it is used, and requests wait.",
    ),
    Alert(
        "PreemptionsHigh",
        """
        sum by (host, model) (rate(vllm:num_preemptions_total{job="vllm"}[10m])) > <preemptions_per_s> <quiet>
        """,
        "10m",
        "warning",
        f"{ON} throws work away",
        "The server interrupts {{ $value | humanize }} requests a second, since its KV cache has no room for them.",
    ),
    Alert(
        "RequestsFail",
        f"""
        round(sum by (host, model) (
          {grown('vllm:request_success_total{job="vllm",finished_reason="error"}', 30)}
        )) >= <bad_requests>
        <quiet>
        """,
        "5m",
        "warning",
        f"Requests at {ON} end in errors",
        "The engine ended {{ $value }} requests with an error in half an hour.",
    ),
    Alert(
        "RequestsAborted",
        """
        sum by (host, model) (rate(vllm:request_success_total{job="vllm",finished_reason="abort"}[30m]))
        / sum by (host, model) (rate(vllm:request_success_total{job="vllm"}[30m])) > <aborted_ratio>
        and on (host, model)
        sum by (host, model) (rate(vllm:request_success_total{job="vllm"}[30m])) > <requests_per_s>
        <quiet>
        """,
        "30m",
        "warning",
        f"Clients of {ON} give up",
        "{{ $value | humanizePercentage }} of the requests were left by their clients before they had an answer.",
    ),
    Alert(
        "CompilesWhileServing",
        f"""
        round(sum by (host, model) (
          {grown('gaudi_serve_model_unwarmed_shapes_total{job="node"}', 15)}
        )) > <unwarmed_shapes>
        <quiet>
        """,
        "",
        "warning",
        f"{ON} compiles while it serves",
        "{{ $value }} shapes that the warm-up did not have were compiled in 15 minutes; each delays requests.",
    ),
    Alert(
        "PrefixCacheMisses",
        f"""
        {PREFIX} < <prefix_cache_fall_ratio> * avg_over_time({PREFIX}[1d] offset 2h)
        and avg_over_time({PREFIX}[1d] offset 2h) > <prefix_cache_used_ratio>
        and on (host, model)
        sum by (host, model) (rate(vllm:time_to_first_token_seconds_count{{job="vllm"}}[1h])) > <requests_per_s>
        <quiet>
        """,
        "1h",
        "info",
        f"The prefix cache of {ON} has less than before",
        "It had {{ $value | humanizePercentage }} of the prompts' tokens in the last hour, far less than a day before.",
    ),
    Alert(
        "LaunchDiffers",
        'max by (host, model) (gaudi_serve_model_launch_differs{job="node"}) == 1 <quiet>',
        "1d",
        "info",
        f"{ON} runs with an old launch",
        "Its container runs with another launch than the last run of the toolkit planned.",
    ),
)
CARDS = (
    Alert(
        "CardMissing",
        """
        (
          max by (host) (gaudi_serve_cards_present{job="node"})
          or on (host) 0 * max by (host) (gaudi_serve_collector_success{job="node",part="cards"} == 0)
        )
        < max by (host) (gaudi_serve_cards_expected{job="node"})
        <quiet_host>
        """,
        "5m",
        "critical",
        "{{ $labels.host }} lacks a card",
        "The platform's tool shows {{ $value }} cards, fewer than at the last plan. It shows 0 if it does not answer.",
    ),
    Alert(
        "CardExporterSilent",
        f"""
        (
          max by (host) (avg_over_time(up{{{OF_CARDS}}}[15m])) < 0.5
          or max by (host) (up{{{OF_CARDS}}}) == 1 unless on (host) {{{OF_CARDS},__name__!~"{NO_CARD}"}}
          or count by (host) ({exported("seen")}) < max by (host) (gaudi_serve_cards_expected{{job="node"}})
        )
        <quiet_host>
        """,
        "10m",
        "warning",
        "The card exporter of {{ $labels.host }} does not show every card",
        "It is down, or it has no values of some cards. Alerts on its metrics cannot fire for these.",
    ),
    Alert(
        "CardEccUncorrected",
        f"""
        sum by (host, card) (
          {grown('gaudi_serve_card_ecc_errors_total{job="node",kind=~".*uncorrected.*"}', 60)}
        ) > 0
        or on (host) sum by (host, card) (increase(host_card:gaudi_serve_exported_errors:max[1h])) > 0
        """,
        "",
        "critical",
        f"Memory error at {CARD}",
        "The card reported memory errors that it could not correct, within the last hour.",
    ),
    # An exporter shows the last Xid for ever, so only a new one counts.
    Alert(
        "CardFaulty",
        f"""
        max by (host, card, fault) (
          label_replace(
            {LAST_XID}{{xid=~"{FATAL}"}}
            unless last_over_time({LAST_XID}{{xid=~"{FATAL}"}}[1d] offset 1h)
            and on (host, card) last_over_time({LAST_XID}[1d] offset 1h)
            or max by (host, card, xid) ({of_card(f'{XIDS}{{{OF_CARDS},xid=~"{FATAL}"}} > 0', "UUID")}),
            "fault", "Xid $1", "xid", "(.+)"
          )
          or label_replace({exported("no_spare_row")} == 1, "fault", "no spare row of memory", "", "")
          or label_replace({exported("unhealthy")} == 1, "fault", "unhealthy", "", "")
        )
        """,
        "",
        "critical",
        f"Fault of {CARD}: {{{{ $labels.fault }}}}",
        "Its vendor's exporter reports a fault that takes it out of service.",
    ),
    Alert(
        "CardRowReplacementPending",
        f"""
        max by (host, card) (gaudi_serve_card_rows_pending{{job="node"}}) == 1
        or on (host) {exported("rows_pending")} == 1
        """,
        "5m",
        "warning",
        f"A row replacement waits at {CARD}",
        "Rows of its memory are to be replaced, which happens at the next reset of the card.",
    ),
    Alert(
        "CardHot",
        f"""
        max by (host, card) (gaudi_serve_card_temperature_celsius{{job="node"}})
        > max by (host, card) (gaudi_serve_card_temperature_slowdown_celsius{{job="node"}} > 0) - <card_margin_celsius>
        or on (host)
        {exported("temperature")} > {exported("slowdown")} - <card_margin_celsius>
        """,
        "5m",
        "warning",
        f"High temperature of {CARD}",
        "It has {{ $value }} degrees Celsius, close to where it slows down.",
    ),
    Alert(
        "CardThrottled",
        """
        sum by (host, card) (
          increase(gaudi_serve_card_throttled_seconds_total{job="node",reason="thermal"}[10m])
        ) > <card_throttled_s>
        or on (host, card)
        600 * max by (host, card) (
          avg_over_time(gaudi_serve_card_throttled{job="node",reason="thermal"}[10m])
        ) > <card_throttled_s>
        """,
        "",
        "warning",
        f"Heat slows down {CARD}",
        "It ran slower for {{ $value | humanizeDuration }} of the last ten minutes.",
    ),
    Alert(
        "CardPortDown",
        f"""
        (
          max by (host, card) (gaudi_serve_card_port_up{{job="node"}} == bool 0) == 1
          or on (host)
          max by (host, card) ({of_card(f'{PORTS}{{{OF_CARDS},port_type="internal"}} == bool 0', "id")}) == 1
        )
        <quiet_host>
        """,
        "5m",
        "critical",
        f"A port is down at {CARD}",
        "A link to the other cards of the host is down; models on several cards hang or fail.",
    ),
    Alert(
        "CardPcieDegraded",
        """
        max by (host, card) (gaudi_serve_card_pcie_width{job="node"})
        < max by (host, card) (gaudi_serve_card_pcie_width_max{job="node"})
        """,
        "5m",
        "warning",
        f"Fewer PCI Express lanes at {CARD}",
        "It uses only {{ $value }} lanes of PCI Express, fewer than it has.",
    ),
)
HOSTS = (
    Alert(
        "HostDown",
        'max by (host) (up{job="node"}) == 0 <quiet_host>',
        # Shorter than for the alerts on its models and gateway, so that Alertmanager can suppress those.
        "2m",
        "critical",
        "{{ $labels.host }} is down",
        "Its node exporter does not answer: the host, its network or that service is gone.",
    ),
    Alert(
        "CollectorStale",
        """
        (
          max by (host) (
            time() - gaudi_serve_collector_last_run_timestamp_seconds{job="node"}
          ) > <collector_age_s>
          or (
            max by (host) (up{job="node"}) == 1
            unless on (host) gaudi_serve_collector_last_run_timestamp_seconds{job="node"}
          )
        )
        <quiet_host>
        """,
        "5m",
        "warning",
        "The values of {{ $labels.host }} are old",
        "The toolkit's collector has not written its metrics there; its values of models and cards are old or missing.",
    ),
    Alert(
        "CollectorPartFails",
        'min by (host, part) (gaudi_serve_collector_success{job="node"}) == 0 <quiet_host>',
        "10m",
        "warning",
        "The collector of {{ $labels.host }} cannot read {{ $labels.part }}",
        "Metrics of this part are missing, so their alerts cannot fire.",
    ),
    Alert(
        "TextfileBroken",
        'max by (host) (node_textfile_scrape_error{job="node"}) == 1',
        "5m",
        "warning",
        "Node exporter of {{ $labels.host }} cannot read a file",
        "A file of metrics is not well formed, and node exporter skips all of it.",
    ),
    Alert(
        "DiskFull",
        f"""
        min by (host, mountpoint) (
          node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes{{{DISKS}}} {READ_ONLY}
        ) < <disk_free_ratio>
        """,
        "5m",
        "critical",
        "{{ $labels.mountpoint }} of {{ $labels.host }} is full",
        "Only {{ $value | humanizePercentage }} of it is free.",
    ),
    Alert(
        "DiskFullSoon",
        f"""
        min by (host, mountpoint) (
          predict_linear(node_filesystem_avail_bytes{{{DISKS}}}[6h], <disk_full_s>) < 0
          and node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes{{{DISKS}}} < <disk_soon_ratio>
          {READ_ONLY}
        )
        """,
        "1h",
        "warning",
        "{{ $labels.mountpoint }} of {{ $labels.host }} fills up",
        "At the rate of the last six hours it will be full within a day.",
    ),
    Alert(
        "HugePagesMissing",
        """
        max by (host) (node_memory_HugePages_Total{job="node"})
        < max by (host) (gaudi_serve_host_hugepages_expected{job="node"})
        <quiet_host>
        """,
        "10m",
        "warning",
        "{{ $labels.host }} lacks huge pages",
        "The kernel has {{ $value }} huge pages, fewer than the host was tuned to have.",
    ),
    Alert(
        "RebootDue",
        'max by (host) (gaudi_serve_host_reboot_due{job="node"}) == 1 <quiet_host>',
        "1d",
        "info",
        "{{ $labels.host }} needs a reboot",
        "Its kernel arguments or packages take effect only after a reboot.",
    ),
    Alert(
        "ChangesPending",
        # After a run has changed a host, its pending changes are unknown until the next status.
        """
        sum by (host, stage) (gaudi_serve_fleet_pending_changes{job="node"}) > 0
        unless on (host) (
          max by (host) (gaudi_serve_host_changed_timestamp_seconds{job="node"})
          > max by (host) (gaudi_serve_fleet_status_timestamp_seconds{job="node"})
        )
        <quiet_host>
        """,
        "1d",
        "info",
        "{{ $labels.host }} differs from the inventory at stage {{ $labels.stage }}",
        "The last status found {{ $value }} pending changes.",
    ),
    Alert(
        "LinkValidationFailed",
        'max by (host) (gaudi_serve_host_validation_passed{job="node"}) == 0 <quiet_host>',
        "10m",
        "warning",
        "The links between the cards of {{ $labels.host }} are too slow",
        "The last measurement did not reach its threshold.",
    ),
    Alert(
        "LinkValidationOld",
        """
        max by (host) (
          time() - gaudi_serve_host_validation_timestamp_seconds{job="node"}
        ) > <validation_days> * 86400
        """,
        "1h",
        "info",
        "Nobody has measured the links of {{ $labels.host }} for long",
        "The last measurement is {{ $value | humanizeDuration }} old.",
    ),
    Alert(
        "RolloutLeftHalfway",
        "host:gaudi_serve_rollout:overdue",
        "",
        "warning",
        "A rollout left {{ $labels.host }} half-way",
        "A rollout has had this host under way for hours. Its change is neither accepted nor rolled back.",
    ),
    Alert(
        "CertificateExpires",
        """
        min by (host, certificate) (
          gaudi_serve_certificate_expiry_timestamp_seconds{job="node"} - time()
        ) < <certificate_days> * 86400
        """,
        "1h",
        "warning",
        "A certificate of {{ $labels.host }} expires",
        "The certificate of {{ $labels.certificate }} is valid for {{ $value | humanizeDuration }} more.",
    ),
)
GATEWAY = (
    Alert(
        "GatewayDown",
        'max by (host) (up{job="haproxy"}) == 0 <quiet_host>',
        "3m",
        "critical",
        "The gateway on {{ $labels.host }} is down",
        "Its HAProxy does not answer at /metrics, so it probably serves no client.",
    ),
    Alert(
        "NoServerLeft",
        f"max by (host, proxy) (haproxy_backend_active_servers{{{BACKENDS}}}) == 0 <quiet_proxy>",
        "1m",
        "critical",
        "{{ $labels.proxy }} has no server",
        "The gateway on {{ $labels.host }} answers every request for this model with 503.",
    ),
    Alert(
        "GatewayErrors",
        f"""
        sum by (host, proxy) (rate(haproxy_backend_http_responses_total{{{BACKENDS},code="5xx"}}[10m]))
        / sum by (host, proxy) (rate(haproxy_backend_http_responses_total{{{BACKENDS}}}[10m])) > <gateway_errors_ratio>
        and on (host, proxy)
        round(sum by (host, proxy) (
          increase(haproxy_backend_http_responses_total{{{BACKENDS},code="5xx"}}[10m])
        )) >= <bad_requests>
        <quiet_proxy>
        """,
        "5m",
        "critical",
        "Requests for {{ $labels.proxy }} fail",
        "The gateway on {{ $labels.host }} answers {{ $value | humanizePercentage }} of them with an error 5xx.",
    ),
    # The counter is that of the current worker: it begins at 0 with each reload.
    Alert(
        "DroppedLogs",
        'round(sum by (host) (increase(haproxy_process_dropped_logs_total{job="haproxy"}[15m]))) > 0',
        "",
        "warning",
        "The gateway on {{ $labels.host }} loses lines of its log",
        "HAProxy dropped {{ $value }} lines in 15 minutes. Their requests are missing in the journal.",
    ),
    Alert(
        "ServerDrained",
        'max by (host, proxy, server) (haproxy_server_status{job="haproxy",state=~"DRAIN|MAINT"}) == 1',
        "<drained_s>s",
        "warning",
        "{{ $labels.server }} has been drained for long",
        "The gateway on {{ $labels.host }} gives it no requests: it was drained by hand, or a rollout stopped.",
    ),
)
PROMETHEUS = (
    # A receiver that stops getting this alert shows that alerts are no longer delivered.
    Alert(
        "Watchdog",
        "vector(1)",
        "",
        "none",
        "Alerts arrive",
        "This alert always fires. Where it stops arriving, Prometheus, Alertmanager or the way between has failed.",
    ),
    Alert(
        "AlertmanagerUnreachable",
        f"""
        max by (instance) (prometheus_notifications_alertmanagers_discovered{{job="prometheus"}}) < 1
        or sum by (instance) ({grown('prometheus_notifications_errors_total{job="prometheus"}', 5)}) > 0
        or max by (instance) (up{{job="alertmanager"}}) == 0
        """,
        "5m",
        "critical",
        "Alerts reach no receiver",
        "Prometheus cannot send alerts to Alertmanager; look here at {{ $labels.instance }}.",
    ),
    Alert(
        "RuleEvaluationFails",
        f"""
        sum by (instance, rule_group) (
          {grown('prometheus_rule_evaluation_failures_total{job="prometheus"}', 10)}
        ) > 0
        """,
        "5m",
        "warning",
        "Prometheus cannot evaluate a rule",
        "Rules of {{ $labels.rule_group }} fail, so their alerts cannot fire.",
    ),
)
ALERTS = {"models": MODELS, "cards": CARDS, "hosts": HOSTS, "gateway": GATEWAY, "monitoring": PROMETHEUS}
