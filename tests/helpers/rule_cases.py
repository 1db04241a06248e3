"""Cases in which each alert fires or is silent, as samples that promtool plays through the real rules.

A line of samples is ``JOB METRIC{LABEL=VALUE,...} = VALUES``: the job gives the labels of its targets, and VALUES is
promtool's notation, one value a minute; in a case of several days one value in five minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

JOBS = {
    "vllm": {"job": "vllm", "instance": "g1:30001", "host": "g1", "model": "qwq"},
    "node": {"job": "node", "instance": "g1:9100", "host": "g1"},
    "haproxy": {"job": "haproxy", "instance": "gw:8405", "host": "gw"},
    "cards": {"job": "cards", "instance": "g1:41611", "host": "g1"},
    "prometheus": {"job": "prometheus", "instance": "p1:9090"},
    "alertmanager": {"job": "alertmanager", "instance": "p1:9093"},
}
LINE = re.compile(r"(\w+) ([\w:]+)(?:\{(.*)\})? = (.+)")
# Metrics with another name in the fork's V0 engine, which has no label engine.
ON_THE_FORK = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
OBJECTIVES = {"promised": {"ttft_s": 2.5, "itl_s": 0.1, "errors": 0.001}, "qwq": None}


@dataclass(frozen=True)
class Case:
    """One case. minutes: time of the check. labels: of the firing alert, without severity; None if it is silent."""

    alert: str
    what: str
    minutes: int
    samples: tuple[str, ...]
    labels: dict[str, str] | None = None
    engine: str = ""

    @property
    def step(self) -> int:
        """Return the minutes between two values."""
        return 5 if self.minutes >= 120 else 1

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return "-".join(one for one in (self.alert, self.what.replace(" ", "_"), self.engine) if one)

    def series(self) -> Iterator[tuple[str, str]]:
        """Yield each series with its values."""
        for line in self.samples:
            match = LINE.fullmatch(line)
            assert match, line
            job, metric, more, values = match.groups()
            labels = {**JOBS[job], **dict(one.split("=", 1) for one in (more or "").split(",") if one)}
            if metric.startswith("vllm:"):
                # A line of another engine names it.
                labels = {"model_name": "Qwen/QwQ", "engine": "0", **labels}
                if self.engine == "fork":
                    for new, old in ON_THE_FORK.items():
                        metric = metric.replace(new, old)
                    del labels["engine"]
            yield metric + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}", values


MODEL = {"host": "g1", "model": "qwq"}
ENGINE = {**MODEL, "engine": "0"}
STARTING = "node gaudi_serve_model_state{model=qwq,state=starting} = 1x400"
EXPECTED = "node gaudi_serve_model_expected{model=qwq} = 1x400"
CARD = {"host": "g1", "card": "3"}
# Enough requests for a quantile.
BUSY = "vllm vllm:time_to_first_token_seconds_count = 0+60x400"
ROOT = "{device=/dev/sda1,fstype=ext4,mountpoint=/}"
SERVER = "{proxy=qwq,server=g1.qwq,state=%s}"


def histogram(metric: str, model: str = "qwq", **limits: str) -> tuple[str, ...]:
    """Return the lines of a histogram: values by limit, ``le_2_5`` for 2.5, ``le_Inf`` also for the count."""
    lines = []
    for limit, values in limits.items():
        text = limit.removeprefix("le_").replace("_", ".").replace("Inf", "+Inf")
        lines.append(f"vllm vllm:{metric}_bucket{{model={model},le={text}}} = {values}")
    return (*lines, f"vllm vllm:{metric}_count{{model={model}}} = {limits['le_Inf']}")


def fires(alert: str, what: str, minutes: int, labels: dict[str, str], *samples: str) -> Case:
    """Return a case in which the alert fires with these labels."""
    return Case(alert, what, minutes, samples, labels)


def silent(alert: str, what: str, minutes: int, *samples: str) -> Case:
    """Return a case in which the alert is silent."""
    return Case(alert, what, minutes, samples)


SLOW_FIRST = histogram(
    "time_to_first_token_seconds", le_2_5="0+10x400", le_5_0="0+10x400", le_10_0="0+60x400", le_Inf="0+60x400"
)
SLOW_TOKENS = histogram("inter_token_latency_seconds", le_0_1="0+1x400", le_0_5="0+60x400", le_Inf="0+60x400")
RUNNING, WAITING = "vllm vllm:num_requests_running = {}", "vllm vllm:num_requests_waiting = {}"
TOKENS = ("vllm vllm:generation_tokens_total = {}", "vllm vllm:prompt_tokens_total = 900x400")
STILL = (TOKENS[0].format("7x90"), "vllm vllm:prompt_tokens_total = 900x90")
# The fourth of eight engines is dead, and the others work.
EIGHT = tuple(
    f"vllm vllm:{name}{{engine={engine}}} = {values}"
    for engine in range(8)
    for name, values in (
        ("num_requests_running", "0x30" if engine == 3 else "9x30"),
        ("num_requests_waiting", "30x30" if engine == 3 else "0x30"),
        ("generation_tokens_total", "7x30" if engine == 3 else "0+900x30"),
        ("prompt_tokens_total", "7x30" if engine == 3 else "0+900x30"),
    )
)
RESTARTS = "node gaudi_serve_model_restarts_total{model=qwq,reason=crash} = "
UNWARMED = "node gaudi_serve_model_unwarmed_shapes_total{model=qwq,phase=decode} = "
CACHE = "vllm vllm:prefix_cache_%s_total = %s"
CACHED = (("queries", "0+100x400"), ("hits", "0+60x270 16200x60"))
SLOW_BUSY = "vllm vllm:time_to_first_token_seconds_count = 0+300x400"
SUCCESS = "vllm vllm:request_success_total{finished_reason=%s} = "
MODELS = (
    fires("EndpointDown", "down", 10, MODEL, "vllm up = 1x2 0x20"),
    silent("EndpointDown", "up", 10, "vllm up = 1x20"),
    silent("EndpointDown", "for a scrape", 10, "vllm up = 1x7 0x1 1x20"),
    silent(
        "EndpointDown", "planned stopped", 10, "vllm up = 0x20", "node gaudi_serve_model_expected{model=qwq} = 0x20"
    ),
    fires("EndpointDown", "keeps ending", 15, MODEL, "vllm up = 0x20", STARTING, RESTARTS + "0 1 2 3x20"),
    fires(
        *("EndpointDown", "starts too long", 80, MODEL, "vllm up = 0x90", STARTING),
        "node gaudi_serve_model_start_timestamp_seconds{model=qwq} = 0x90",
        "node gaudi_serve_model_planned_warmup_seconds{model=qwq} = 600x90",
    ),
    fires(
        *("EndpointDown", "rollout left half-way", 180, MODEL, "vllm up = 0x60", EXPECTED),
        "node gaudi_serve_host_in_rollout = 1x60",
    ),
    # The host reboots during the rollout, so that it has no samples.
    silent(
        *("EndpointDown", "reboot in a rollout", 20, "vllm up = 1x2 0x20"),
        *("node gaudi_serve_host_in_rollout = 1x2 stale", "node gaudi_serve_model_expected{model=qwq} = 1x2 stale"),
    ),
    fires("ModelNotScraped", "no target", 15, MODEL, EXPECTED),
    silent("ModelNotScraped", "has a target", 15, EXPECTED, "vllm up = 0x20"),
    silent(
        "ModelNotScraped", "another host answers", 15, EXPECTED, "node gaudi_serve_model_endpoint{model=qwq} = 0x20"
    ),
    fires("EngineSilent", "frozen", 10, MODEL, "node gaudi_serve_model_state{model=qwq,state=silent} = 1x20"),
    silent("EngineSilent", "serves", 10, "node gaudi_serve_model_state{model=qwq,state=silent} = 0x20"),
    fires(
        "EngineStalled",
        "no token",
        20,
        ENGINE,
        RUNNING.format("3x30"),
        WAITING.format("0x30"),
        TOKENS[0].format("7x30"),
        TOKENS[1],
    ),
    silent(
        "EngineStalled",
        "tokens",
        20,
        RUNNING.format("3x30"),
        WAITING.format("0x30"),
        TOKENS[0].format("0+9x30"),
        TOKENS[1],
    ),
    silent(
        "EngineStalled", "idle", 20, RUNNING.format("0x30"), WAITING.format("0x30"), TOKENS[0].format("7x30"), TOKENS[1]
    ),
    silent(
        "EngineStalled",
        "restarted",
        20,
        RUNNING.format("_x17 3x9"),
        WAITING.format("_x17 0x9"),
        TOKENS[0].format("7x14 _x3 0x9"),
    ),
    # Prompts of 20 minutes: one that the engine computes as one step, and one in parts, behind which others wait.
    silent("EngineStalled", "one long prompt", 26, RUNNING.format("0x4 1x30"), WAITING.format("0x40"), *STILL),
    silent(
        *("EngineStalled", "a long prompt in parts", 26, RUNNING.format("0x4 1x30"), WAITING.format("0x4 3x30")),
        *("vllm vllm:kv_cache_usage_perc = 0.1x4 0.12+0.01x30", *STILL),
    ),
    fires("EngineStalled", "one request for ever", 60, ENGINE, RUNNING.format("1x90"), WAITING.format("0x90"), *STILL),
    fires(
        *(
            "EngineStalled",
            "blocks move and no token comes",
            60,
            ENGINE,
            RUNNING.format("9x90"),
            WAITING.format("9x90"),
        ),
        *("vllm vllm:kv_cache_usage_perc = 0.5 0.6 0.5 0.7 0.5 0.6+0.001x90", *STILL),
    ),
    silent("EngineStalled", "a burst after idle hours", 33, RUNNING.format("0x30 9x9"), WAITING.format("0x40"), *STILL),
    fires("EngineStalled", "one of eight engines", 20, {**MODEL, "engine": "3"}, *EIGHT),
    fires("QueueStuck", "one of eight engines", 20, {**MODEL, "engine": "3"}, *EIGHT),
    fires(
        *("QueueStalled", "one request in two minutes", 40, ENGINE, RUNNING.format("1x60"), WAITING.format("5x60")),
        *("vllm vllm:time_to_first_token_seconds_count = 0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9+0.5x60",),
    ),
    fires(
        *("QueueStalled", "fourteen wait behind one for an hour", 60, ENGINE, RUNNING.format("1x70")),
        *(WAITING.format("14x70"), "vllm vllm:time_to_first_token_seconds_count = 7x70"),
    ),
    silent(
        *("QueueStalled", "a large batch", 60, RUNNING.format("64x70"), WAITING.format("900-5x70")),
        "vllm vllm:time_to_first_token_seconds_count = 0+60x70",
    ),
    silent(
        *("QueueStalled", "one request that waited", 30, RUNNING.format("0x20 1x3 0x20")),
        *(WAITING.format("0x20 1x3 0x20"), "vllm vllm:time_to_first_token_seconds_count = 7x22 8x20"),
    ),
    fires("QueueStuck", "nothing runs", 10, ENGINE, RUNNING.format("0x20"), WAITING.format("2x20")),
    silent("QueueStuck", "runs", 10, RUNNING.format("1x20"), WAITING.format("2x20")),
    fires("ModelRestarts", "three times", 20, MODEL, RESTARTS + "0 0 1 1 2 3x30"),
    silent("ModelRestarts", "twice", 20, RESTARTS + "0 0 1 1 2x30"),
    silent("ModelRestarts", "the counter begins again", 20, RESTARTS + "7 7 7 0x30"),
    fires(
        *("ModelStartsTooLong", "an hour too long", 80, MODEL, STARTING),
        "node gaudi_serve_model_start_timestamp_seconds{model=qwq} = 0x90",
        "node gaudi_serve_model_planned_warmup_seconds{model=qwq} = 600x90",
    ),
    fires(
        *("ModelStartsTooLong", "no warm-up planned", 40, MODEL, STARTING),
        "node gaudi_serve_model_start_timestamp_seconds{model=qwq} = 0x90",
    ),
    silent(
        *("ModelStartsTooLong", "in time", 50, STARTING),
        "node gaudi_serve_model_start_timestamp_seconds{model=qwq} = 0x90",
        "node gaudi_serve_model_planned_warmup_seconds{model=qwq} = 600x90",
    ),
    silent(
        *("ModelStartsTooLong", "serves", 80, "node gaudi_serve_model_state{model=qwq,state=starting} = 1x30 0x90"),
        "node gaudi_serve_model_start_timestamp_seconds{model=qwq} = 0x90",
    ),
    fires("TimeToFirstTokenHigh", "late", 30, ENGINE, *SLOW_FIRST),
    silent(
        *("TimeToFirstTokenHigh", "in time", 30),
        *histogram("time_to_first_token_seconds", le_2_5="0+60x40", le_10_0="0+60x40", le_Inf="0+60x40"),
    ),
    silent(
        *("TimeToFirstTokenHigh", "three requests", 30),
        *histogram("time_to_first_token_seconds", le_2_5="0x40", le_10_0="0x20 3x20", le_Inf="0x20 3x20"),
    ),
    silent(
        "TimeToFirstTokenHigh", "an objective of its own", 30, *(one.replace("qwq", "promised") for one in SLOW_FIRST)
    ),
    fires("InterTokenLatencyHigh", "slow", 30, ENGINE, BUSY, *SLOW_TOKENS),
    silent(
        *("InterTokenLatencyHigh", "in time", 30, BUSY),
        *histogram("inter_token_latency_seconds", le_0_1="0+60x400", le_0_5="0+60x400", le_Inf="0+60x400"),
    ),
    fires(
        *("QueueTimeHigh", "waits", 30, ENGINE, BUSY),
        *histogram("request_queue_time_seconds", le_5_0="0+30x40", le_10_0="0+60x40", le_Inf="0+60x40"),
    ),
    silent(
        *("QueueTimeHigh", "does not wait", 30, BUSY),
        *histogram("request_queue_time_seconds", le_5_0="0+60x40", le_10_0="0+60x40", le_Inf="0+60x40"),
    ),
    # Half a request a minute, and each waits for ten minutes: the histogram has too few of them.
    fires(
        *("QueueTimeHigh", "a short queue that moves slowly", 60, ENGINE, WAITING.format("5x70")),
        "vllm vllm:time_to_first_token_seconds_count = 0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9+0.5x60",
    ),
    silent(
        *("QueueTimeHigh", "a queue that was short", 40, WAITING.format("0x9 40x2 0x60")),
        "vllm vllm:time_to_first_token_seconds_count = 0x9 40x60",
    ),
    fires("QueueGrows", "grows", 30, ENGINE, WAITING.format("21+1x40")),
    silent("QueueGrows", "shrinks", 30, WAITING.format("90-1x40")),
    fires("KvCacheFull", "with a queue", 30, ENGINE, "vllm vllm:kv_cache_usage_perc = 0.97x40", WAITING.format("1x40")),
    silent("KvCacheFull", "without one", 30, "vllm vllm:kv_cache_usage_perc = 0.97x40", WAITING.format("0x40")),
    fires("PreemptionsHigh", "many", 30, MODEL, "vllm vllm:num_preemptions_total = 0+10x40"),
    silent("PreemptionsHigh", "few", 30, "vllm vllm:num_preemptions_total = 0+1x40"),
    fires("RequestsFail", "errors", 30, MODEL, SUCCESS % "error" + "0+1x40"),
    silent("RequestsFail", "one of a quiet hour", 30, SUCCESS % "error" + "0x12 1x40"),
    fires("RequestsFail", "a counter that begins with its errors", 50, MODEL, SUCCESS % "error" + "_x30 9x40"),
    silent("RequestsFail", "errors from before a gap", 200, SUCCESS % "error" + "9x14 _x12 9x40"),
    fires(
        *("RequestsRejected", "many", 40, {**MODEL, "reason": "max_num_queued_reqs"}),
        "vllm vllm:admission_rejections_total{reason=max_num_queued_reqs} = 0+3x60",
    ),
    fires(
        *("RequestsRejected", "a counter that begins with them", 29, {**MODEL, "reason": "max_num_queued_tokens"}),
        "vllm vllm:admission_rejections_total{reason=max_num_queued_tokens} = _x22 60x40",
    ),
    silent(
        *("RequestsRejected", "one of a quiet hour", 40),
        "vllm vllm:admission_rejections_total{reason=max_num_queued_reqs} = 0x30 1x60",
    ),
    silent("RequestsFail", "none", 30, SUCCESS % "error" + "5x40", SUCCESS % "stop" + "0+9x40"),
    fires("RequestsAborted", "many", 70, MODEL, SUCCESS % "abort" + "0+5x90", SUCCESS % "stop" + "0+5x90"),
    silent("RequestsAborted", "few", 70, SUCCESS % "abort" + "0+1x90", SUCCESS % "stop" + "0+9x90"),
    silent("RequestsAborted", "the only one", 70, SUCCESS % "abort" + "0x30 1x60", SUCCESS % "stop" + "0x90"),
    fires("CompilesWhileServing", "four shapes", 20, MODEL, UNWARMED + "0x8 2 4x20"),
    fires(
        "CompilesWhileServing", "a counter that begins with them", 60, MODEL, "node up = 1x90", UNWARMED + "_x50 5x20"
    ),
    silent("CompilesWhileServing", "three shapes", 20, UNWARMED + "0x8 2 3x20"),
    silent("CompilesWhileServing", "a new start", 20, UNWARMED + "90x8 0x20"),
    fires("PrefixCacheMisses", "a new prompt", 1500, MODEL, SLOW_BUSY, *(CACHE % one for one in CACHED)),
    silent(
        "PrefixCacheMisses", "as before", 1500, SLOW_BUSY, *(CACHE % one for one in (CACHED[0], ("hits", "0+60x400")))
    ),
    silent(
        *("PrefixCacheMisses", "a cache that never had much", 1500, SLOW_BUSY),
        *(CACHE % one for one in (CACHED[0], ("hits", "0+10x270 2700x60"))),
    ),
    silent("PrefixCacheMisses", "few requests", 1500, *(CACHE % one for one in CACHED)),
    fires("LaunchDiffers", "a day", 1500, MODEL, "node gaudi_serve_model_launch_differs{model=qwq} = 1x300"),
    silent("LaunchDiffers", "an hour", 1500, "node gaudi_serve_model_launch_differs{model=qwq} = 0x288 1x12"),
)
NO_CARDS = "node gaudi_serve_collector_success{part=cards} = 1x5 0x40"
HABANA = "{UUID=u1,id=3,Serial=s1}"
NVIDIA = "{UUID=GPU-3,gpu=0,DCGM_FI_DRIVER_VERSION=570}"
NEW = "{UUID=GPU-3,gpu=0,DCGM_FI_DRIVER_VERSION=%s}"
NV = {"host": "g1", "card": "GPU-3"}
AMD = "{gpu_id=3,gpu_uuid=a8ff74a1,serial_number=69240}"
OWN = "{card=3}"
ECC = "node gaudi_serve_card_ecc_errors_total{card=3,kind=%s} = "
PORT = "{card=3,port=1}"
CARDS = (
    fires(
        "CardMissing",
        "seven of eight",
        10,
        {"host": "g1"},
        "node gaudi_serve_cards_present = 7x20",
        "node gaudi_serve_cards_expected = 8x20",
    ),
    silent("CardMissing", "all", 10, "node gaudi_serve_cards_present = 8x20", "node gaudi_serve_cards_expected = 8x20"),
    silent(
        "CardExporterSilent",
        "an exporter that is up again",
        10,
        "cards up = 0x2 1x20",
        f"cards habanalabs_device_config{HABANA} = _x2 1x20",
    ),
    fires("CardExporterSilent", "down", 20, {"host": "g1"}, "cards up = 1x2 0x30"),
    fires(
        *("CardExporterSilent", "one of two NVIDIA cards", 20, {"host": "g1"}, "cards up = 1x30"),
        *(f"cards DCGM_FI_DEV_GPU_TEMP{NVIDIA} = 50x30", "node gaudi_serve_cards_expected = 2x30"),
    ),
    # Two parts of a divided card.
    silent(
        *("CardExporterSilent", "MIG", 20, "cards up = 1x30", "node gaudi_serve_cards_expected = 1x30"),
        *(f"cards DCGM_FI_DEV_GPU_TEMP{{UUID=GPU-3,gpu=0,GPU_I_ID={part}}} = 50x30" for part in (1, 2)),
    ),
    fires(
        "CardExporterSilent",
        "AMD without a card",
        20,
        {"host": "g1"},
        "cards up = 1x30",
        "cards amd_gpu_nodes_total = 0x30",
    ),
    fires(
        "CardFaulty",
        "fell off the bus",
        120,
        {**NV, "fault": "Xid 79"},
        f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x20 79x9",
    ),
    # dcgm-exporter shows the last Xid until it is restarted.
    silent("CardFaulty", "fell off the bus hours ago", 420, f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x20 79x90"),
    silent("CardFaulty", "of before the first reading", 120, f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 79x90"),
    silent("CardFaulty", "after a gap", 420, f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x4 79x40 _x10 79x90"),
    silent("CardFaulty", "an error of a program", 120, f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x20 31x9"),
    fires(
        "CardFaulty",
        "another one",
        420,
        {**NV, "fault": "Xid 95"},
        f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x20 79x60 95x9",
    ),
    # The same one again: only the count of Xids has it.
    fires(
        *("CardFaulty", "the same one again", 420, {**NV, "fault": "Xid 79"}),
        f"cards DCGM_FI_DEV_XID_ERRORS{NVIDIA} = 0x20 79x90",
        "cards DCGM_EXP_XID_ERRORS_COUNT{UUID=GPU-3,gpu=0,xid=79} = _x82 1x3",
    ),
    fires(
        "CardFaulty",
        "no spare row",
        10,
        {**NV, "fault": "no spare row of memory"},
        f"cards DCGM_FI_DEV_ROW_REMAP_FAILURE{NVIDIA} = 1x20",
    ),
    *(
        case
        for prefix in ("amd_", "")
        for case in (
            fires(
                *("CardFaulty", f"unhealthy {prefix}", 10, {**CARD, "fault": "unhealthy"}),
                f"cards {prefix}gpu_health{AMD} = 1x5 0x20",
            ),
            silent("CardFaulty", f"healthy {prefix}", 10, f"cards {prefix}gpu_health{AMD} = 1x20"),
            fires(
                "CardEccUncorrected",
                f"AMD {prefix}",
                90,
                CARD,
                f"cards {prefix}gpu_ecc_uncorrect_total{AMD} = 0x70 1x30",
            ),
        )
    ),
    fires("CardEccUncorrected", "DCGM", 90, NV, f"cards DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{NVIDIA} = 0x70 1x30"),
    fires("CardEccUncorrected", "a row", 90, NV, f"cards DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{NVIDIA} = 2x70 3x30"),
    # The series of a new driver have another label, and the driver counts from 0.
    silent(
        *("CardEccUncorrected", "a new driver", 90),
        *(
            f"cards DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{NEW % one} = {two}"
            for one, two in ((550, "2x70 stale"), (570, "_x72 2x30"))
        ),
        *(
            f"cards DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{NEW % one} = {two}"
            for one, two in ((550, "5x70 stale"), (570, "_x72 0x30"))
        ),
    ),
    # What the collector reads of a host counts.
    silent(
        *("CardHot", "DCGM without a limit", 10, f"cards DCGM_FI_DEV_GPU_TEMP{NVIDIA} = 95x20"),
        f"cards DCGM_FI_DEV_SLOWDOWN_TEMP{NVIDIA} = 0x20",
    ),
    fires(
        *("CardHot", "DCGM", 10, NV, f"cards DCGM_FI_DEV_GPU_TEMP{NVIDIA} = 88x20"),
        f"cards DCGM_FI_DEV_SLOWDOWN_TEMP{NVIDIA} = 90x20",
    ),
    fires("CardRowReplacementPending", "DCGM", 10, NV, f"cards DCGM_FI_DEV_ROW_REMAP_PENDING{NVIDIA} = 1x20"),
    fires("CardMissing", "all of them", 20, {"host": "g1"}, NO_CARDS, "node gaudi_serve_cards_expected = 8x40"),
    # A host with processors alone has no such part.
    silent("CardMissing", "none planned", 20, NO_CARDS),
    fires("CardExporterSilent", "no card", 20, {"host": "g1"}, "cards up = 1x30", "cards go_goroutines = 9x30"),
    silent("CardExporterSilent", "cards", 10, "cards up = 1x20", f"cards habanalabs_device_config{HABANA} = 1x20"),
    fires("CardEccUncorrected", "one", 20, CARD, ECC % "uncorrected" + "0x9 1x30"),
    fires(
        *("CardEccUncorrected", "the first value of a card", 200, CARD, "node up = 1x90"),
        ECC % "uncorrected" + "_x36 2x30",
    ),
    silent(
        *("CardEccUncorrected", "of before the first reading", 200, "node up = _x28 1x90"),
        ECC % "uncorrected" + "_x29 4x30",
    ),
    # The collector could not read the cards for a while.
    silent("CardEccUncorrected", "of before a gap", 200, "node up = 1x90", ECC % "uncorrected" + "4x9 _x15 4x90"),
    silent("CardEccUncorrected", "of before", 20, "node up = 1x30", ECC % "uncorrected" + "4x30"),
    silent("CardEccUncorrected", "corrected", 20, ECC % "corrected" + "0+1x30"),
    fires("CardRowReplacementPending", "own", 10, CARD, f"node gaudi_serve_card_rows_pending{OWN} = 1x20"),
    fires("CardRowReplacementPending", "exporter", 10, CARD, f"cards habanalabs_pending_rows_state{HABANA} = 1x20"),
    silent(
        "CardRowReplacementPending",
        "none",
        10,
        f"node gaudi_serve_card_rows_pending{OWN} = 0x20",
        f"cards habanalabs_pending_rows_state{HABANA} = 0x20",
    ),
    fires(
        "CardHot",
        "own",
        10,
        CARD,
        f"node gaudi_serve_card_temperature_celsius{OWN} = 96x20",
        f"node gaudi_serve_card_temperature_slowdown_celsius{OWN} = 100x20",
    ),
    fires(
        "CardHot",
        "exporter",
        10,
        CARD,
        f"cards habanalabs_temperature_onchip{HABANA} = 96x20",
        f"cards habanalabs_temperature_threshold_slowdown{HABANA} = 100x20",
    ),
    silent(
        "CardHot",
        "cool",
        10,
        f"node gaudi_serve_card_temperature_celsius{OWN} = 60x20",
        f"node gaudi_serve_card_temperature_slowdown_celsius{OWN} = 100x20",
    ),
    # The exporter writes 0 for unreadable values.
    silent(
        "CardHot",
        "threshold unread",
        10,
        f"cards habanalabs_temperature_onchip{HABANA} = 40x20",
        f"cards habanalabs_temperature_threshold_slowdown{HABANA} = 0x20",
    ),
    fires(
        "CardThrottled",
        "counted",
        20,
        CARD,
        "node gaudi_serve_card_throttled_seconds_total{card=3,reason=thermal} = 0+6x30",
    ),
    fires("CardThrottled", "seen", 20, CARD, "node gaudi_serve_card_throttled{card=3,reason=thermal} = 1x30"),
    silent(
        "CardThrottled",
        "by its power limit",
        20,
        "node gaudi_serve_card_throttled_seconds_total{card=3,reason=power} = 0+6x30",
    ),
    fires("CardPortDown", "own", 10, CARD, f"node gaudi_serve_card_port_up{PORT} = 0x20"),
    fires(
        "CardPortDown", "exporter", 10, CARD, "cards habanalabs_nic_port_status{id=3,port=1,port_type=internal} = 0x20"
    ),
    silent(
        "CardPortDown",
        "external",
        10,
        "cards habanalabs_nic_port_status{id=3,port=1,port_type=external} = 0x20",
        f"node gaudi_serve_card_port_up{PORT} = 1x20",
    ),
    fires(
        "CardPcieDegraded",
        "half",
        10,
        CARD,
        f"node gaudi_serve_card_pcie_width{OWN} = 8x20",
        f"node gaudi_serve_card_pcie_width_max{OWN} = 16x20",
    ),
    silent(
        "CardPcieDegraded",
        "whole",
        10,
        f"node gaudi_serve_card_pcie_width{OWN} = 16x20",
        f"node gaudi_serve_card_pcie_width_max{OWN} = 16x20",
    ),
)
HOST = {"host": "g1"}
DISK = {"host": "g1", "mountpoint": "/"}
RAN = "node gaudi_serve_collector_last_run_timestamp_seconds = "
HOSTS = (
    fires("HostDown", "gone", 10, HOST, "node up = 0x20"),
    silent("HostDown", "there", 10, "node up = 1x20"),
    silent("HostDown", "reboot in a rollout", 20, "node up = 1x2 0x20", "node gaudi_serve_host_in_rollout = 1x2 stale"),
    fires("CollectorStale", "old", 20, HOST, "node up = 1x30", RAN + "60x30"),
    fires("CollectorStale", "no metrics", 20, HOST, "node up = 1x30"),
    silent("CollectorStale", "runs", 20, "node up = 1x30", RAN + "0+60x30"),
    fires(
        "CollectorPartFails",
        "cards",
        20,
        {**HOST, "part": "cards"},
        "node gaudi_serve_collector_success{part=cards} = 0x30",
    ),
    silent("CollectorPartFails", "all read", 20, "node gaudi_serve_collector_success{part=cards} = 1x30"),
    fires("TextfileBroken", "broken", 10, HOST, "node node_textfile_scrape_error = 1x20"),
    silent("TextfileBroken", "fine", 10, "node node_textfile_scrape_error = 0x20"),
    fires(
        "DiskFull",
        "full",
        10,
        DISK,
        f"node node_filesystem_avail_bytes{ROOT} = 3x20",
        f"node node_filesystem_size_bytes{ROOT} = 100x20",
    ),
    silent(
        "DiskFull",
        "half",
        10,
        f"node node_filesystem_avail_bytes{ROOT} = 50x20",
        f"node node_filesystem_size_bytes{ROOT} = 100x20",
    ),
    silent(
        "DiskFull",
        "in memory",
        10,
        "node node_filesystem_avail_bytes{fstype=tmpfs,mountpoint=/run} = 0x20",
        "node node_filesystem_size_bytes{fstype=tmpfs,mountpoint=/run} = 9x20",
    ),
    *(
        silent(
            *("DiskFull", what, 10, f"node node_filesystem_avail_bytes{labels} = 0x20"),
            *(
                f"node node_filesystem_size_bytes{labels} = 9x20",
                f"node node_filesystem_readonly{labels} = {locked}x20",
            ),
        )
        for what, labels, locked in (
            ("a snap", "{device=/dev/loop3,fstype=squashfs,mountpoint=/snap/core}", 1),
            ("a disc", "{device=/dev/sr0,fstype=udf,mountpoint=/media/disc}", 1),
            ("weights that the host only reads", "{device=nas:/models,fstype=nfs4,mountpoint=/data/hf_models}", 1),
            ("variables of the firmware", "{device=efivarfs,fstype=efivarfs,mountpoint=/sys/firmware/efi/efivars}", 0),
        )
    ),
    fires(
        *("DiskFull", "writable", 10, DISK, f"node node_filesystem_readonly{ROOT} = 0x20"),
        *(f"node node_filesystem_avail_bytes{ROOT} = 3x20", f"node node_filesystem_size_bytes{ROOT} = 100x20"),
    ),
    fires(
        "DiskFullSoon",
        "fills",
        480,
        DISK,
        f"node node_filesystem_avail_bytes{ROOT} = 300-1x100",
        f"node node_filesystem_size_bytes{ROOT} = 1000x100",
    ),
    silent(
        "DiskFullSoon",
        "much is free",
        480,
        f"node node_filesystem_avail_bytes{ROOT} = 900-4x100",
        f"node node_filesystem_size_bytes{ROOT} = 1000x100",
    ),
    fires(
        "HugePagesMissing",
        "fewer",
        20,
        HOST,
        "node node_memory_HugePages_Total = 9000x30",
        "node gaudi_serve_host_hugepages_expected = 15000x30",
    ),
    silent(
        "HugePagesMissing",
        "all",
        20,
        "node node_memory_HugePages_Total = 15000x30",
        "node gaudi_serve_host_hugepages_expected = 15000x30",
    ),
    fires("RebootDue", "a day", 1500, HOST, "node gaudi_serve_host_reboot_due = 1x300"),
    silent("RebootDue", "an hour", 1500, "node gaudi_serve_host_reboot_due = 0x288 1x12"),
    fires(
        "ChangesPending",
        "a day",
        1500,
        {**HOST, "stage": "driver"},
        "node gaudi_serve_fleet_pending_changes{stage=driver} = 2x300",
    ),
    silent("ChangesPending", "none", 1500, "node gaudi_serve_fleet_pending_changes{stage=driver} = 0x300"),
    fires(
        *("ChangesPending", "changed before the status", 1500, {**HOST, "stage": "driver"}),
        "node gaudi_serve_fleet_pending_changes{stage=driver} = 2x300",
        "node gaudi_serve_fleet_status_timestamp_seconds = 60x300",
        "node gaudi_serve_host_changed_timestamp_seconds = 30x300",
    ),
    silent(
        *("ChangesPending", "changed since", 1500, "node gaudi_serve_fleet_pending_changes{stage=driver} = 2x300"),
        "node gaudi_serve_fleet_status_timestamp_seconds = 60x300",
        # Four hours ago, when the alert had been firing for a while.
        "node gaudi_serve_host_changed_timestamp_seconds = 30x252 75600x48",
    ),
    fires("LinkValidationFailed", "failed", 20, HOST, "node gaudi_serve_host_validation_passed = 0x30"),
    silent("LinkValidationFailed", "passed", 20, "node gaudi_serve_host_validation_passed = 1x30"),
    fires(
        "LinkValidationOld",
        "91 days",
        90,
        HOST,
        f"node gaudi_serve_host_validation_timestamp_seconds = {-91 * 86400}x90",
    ),
    silent("LinkValidationOld", "a day", 90, "node gaudi_serve_host_validation_timestamp_seconds = -86400x90"),
    fires("RolloutLeftHalfway", "three hours", 180, HOST, "node gaudi_serve_host_in_rollout = 1x60"),
    silent("RolloutLeftHalfway", "an hour", 180, "node gaudi_serve_host_in_rollout = 0x24 1x40"),
    silent("RolloutLeftHalfway", "a second one", 180, "node gaudi_serve_host_in_rollout = 1x20 0x2 1x40"),
    fires(
        "CertificateExpires",
        "in a week",
        90,
        {**HOST, "certificate": "gateway"},
        f"node gaudi_serve_certificate_expiry_timestamp_seconds{{certificate=gateway}} = {7 * 86400}x90",
    ),
    silent(
        "CertificateExpires",
        "in a month",
        90,
        f"node gaudi_serve_certificate_expiry_timestamp_seconds{{certificate=gateway}} = {30 * 86400}x90",
    ),
)
GW, PROXY = {"host": "gw"}, {"host": "gw", "proxy": "qwq"}
RESPONSES = "haproxy haproxy_backend_http_responses_total{proxy=%s,code=%s} = "
GATEWAY = (
    fires("GatewayDown", "gone", 10, GW, "haproxy up = 0x20"),
    silent("GatewayDown", "there", 10, "haproxy up = 1x20"),
    fires(
        *("NoServerLeft", "all down", 10, PROXY, "haproxy haproxy_backend_active_servers{proxy=qwq} = 0x20"),
        f"haproxy haproxy_server_status{SERVER % 'UP'} = 0x20",
    ),
    fires(
        *("NoServerLeft", "one drained and one down", 10, PROXY, EXPECTED),
        *("haproxy haproxy_backend_active_servers{proxy=qwq} = 0x20", "node gaudi_serve_host_in_rollout = 1x20"),
        f"haproxy haproxy_server_status{SERVER % 'UP'} = 0x20",
        "haproxy haproxy_server_status{proxy=qwq,server=g2.qwq,state=UP} = 0x20",
    ),
    silent("NoServerLeft", "one up", 10, "haproxy haproxy_backend_active_servers{proxy=qwq} = 1x20"),
    silent("NoServerLeft", "a table", 10, "haproxy haproxy_backend_active_servers{proxy=own:minutes} = 0x20"),
    fires(
        *("GatewayErrors", "one in seven", 20, PROXY, RESPONSES % ("qwq", "5xx") + "0+10x30"),
        *(RESPONSES % ("qwq", "2xx") + "0+60x30", f"haproxy haproxy_server_status{SERVER % 'UP'} = 0x30"),
    ),
    silent("GatewayErrors", "few", 20, RESPONSES % ("qwq", "5xx") + "0+1x30", RESPONSES % ("qwq", "2xx") + "0+60x30"),
    silent("GatewayErrors", "the only request", 20, RESPONSES % ("qwq", "5xx") + "0x15 1x30"),
    # Two requests in three minutes, and all of them fail.
    fires(
        *(
            "GatewayErrors",
            "every request of a quiet hour",
            40,
            PROXY,
            RESPONSES % ("qwq", "5xx") + "0 1 1 2 3 3 4 5 5 6+0.7x60",
        ),
        *(RESPONSES % ("qwq", "2xx") + "0x60", f"haproxy haproxy_server_status{SERVER % 'UP'} = 0x60"),
    ),
    fires("DroppedLogs", "some", 20, GW, "haproxy haproxy_process_dropped_logs_total = 0x12 3x20"),
    fires("DroppedLogs", "after a reload", 20, GW, "haproxy haproxy_process_dropped_logs_total = 900x12 3x20"),
    silent("DroppedLogs", "none", 20, "haproxy haproxy_process_dropped_logs_total = 0x30"),
    silent("DroppedLogs", "of yesterday", 60, "haproxy haproxy_process_dropped_logs_total = 0x9 1205x60"),
    silent("DroppedLogs", "a reload", 20, "haproxy haproxy_process_dropped_logs_total = 900x12 0x20"),
    fires(
        *("ServerDrained", "three hours", 240, {**PROXY, "server": "g1.qwq"}),
        f"haproxy haproxy_server_status{SERVER % 'DRAIN'} = 1x60",
    ),
    silent("ServerDrained", "an hour", 240, f"haproxy haproxy_server_status{SERVER % 'DRAIN'} = 0x36 1x60"),
)
P1 = {"instance": "p1:9090"}
FOUND = "prometheus prometheus_notifications_alertmanagers_discovered = "
MONITORING = (
    fires("Watchdog", "always", 10, {}),
    fires("AlertmanagerUnreachable", "none known", 10, P1, FOUND + "0x20"),
    fires(
        "AlertmanagerUnreachable",
        "errors",
        20,
        P1,
        FOUND + "1x30",
        "prometheus prometheus_notifications_errors_total{alertmanager=a} = 0+1x30",
    ),
    fires("AlertmanagerUnreachable", "down", 10, {"instance": "p1:9093"}, FOUND + "1x20", "alertmanager up = 0x20"),
    silent("AlertmanagerUnreachable", "there", 10, FOUND + "1x20", "alertmanager up = 1x20"),
    fires(
        "RuleEvaluationFails",
        "fails",
        20,
        {**P1, "rule_group": "r"},
        "prometheus prometheus_rule_evaluation_failures_total{rule_group=r} = 0+1x30",
    ),
    fires(
        *(
            "RuleEvaluationFails",
            "a counter that begins with them",
            20,
            {**P1, "rule_group": "r"},
            "prometheus up = 1x90",
        ),
        "prometheus prometheus_rule_evaluation_failures_total{rule_group=r} = _x9 2 4 6+2x30",
    ),
    silent(
        "RuleEvaluationFails", "none", 20, "prometheus prometheus_rule_evaluation_failures_total{rule_group=r} = 3x30"
    ),
)
PROMISED = {"model": "promised"}


def burning(title: str, bad: str, good: str, slowly: str) -> Iterator[Case]:
    """Yield the cases of one objective; the arguments are values of the counter of requests within its limit."""
    lines = {"ttft": "time_to_first_token_seconds", "itl": "inter_token_latency_seconds"}
    kind, limit = ("ttft", "le_2_5") if title == "TimeToFirstToken" else ("itl", "le_0_1")
    begun = ("vllm vllm:time_to_first_token_seconds_count{model=promised} = 0+10x100",) if kind == "itl" else ()
    for pace, minutes, values in (("Fast", 90, bad), ("Slowly", 420, slowly)):
        steps = {limit: values, "le_Inf": "0+100x100"}
        lines_of = (*histogram(lines[kind], "promised", **steps), *begun)
        yield fires(f"{title}BudgetBurns{pace}", "bad", minutes, PROMISED, *lines_of)
        steps = {limit: good, "le_Inf": "0+100x100"}
        yield silent(f"{title}BudgetBurns{pace}", "good", minutes, *histogram(lines[kind], "promised", **steps))
        steps = {limit: "0x100", "le_Inf": "0x100"}
        yield silent(f"{title}BudgetBurns{pace}", "no request", minutes, *histogram(lines[kind], "promised", **steps))


def failing() -> Iterator[Case]:
    """Yield the cases of the objective on errors: at a gateway, and at servers without one."""
    vllm = "vllm http_requests_total{model=promised,handler=/v1/chat/completions,method=POST,status=%s} = "
    for pace, minutes, bad in (("Fast", 90, "0+2x100"), ("Slowly", 420, "0+1x100")):
        alert = f"ErrorBudgetBurns{pace}"
        well = RESPONSES % ("promised", "2xx") + "0+98x100"
        yield fires(alert, "gateway", minutes, PROMISED, RESPONSES % ("promised", "5xx") + bad, well)
        yield fires(alert, "servers", minutes, PROMISED, vllm % "5xx" + bad, vllm % "2xx" + "0+98x100")
        yield silent(alert, "gateway well", minutes, RESPONSES % ("promised", "5xx") + "0x100", well)
        yield silent(alert, "servers well", minutes, vllm % "2xx" + "0+98x100")


def quiet_hours() -> Iterator[Case]:
    """Yield the cases of few requests: one bad request fires nothing, and a service that fails every request does."""
    first, tokens = "time_to_first_token_seconds", "inter_token_latency_seconds"
    vllm = "vllm http_requests_total{model=promised,handler=/v1/chat/completions,method=POST,status=%s} = "
    up = "vllm up{model=promised} = 1x200"
    for pace, minutes in (("Fast", 90), ("Slowly", 420)):
        step = 5 if minutes >= 120 else 1
        at = (minutes - 3 * step) // step
        late = {"le_2_5": f"0 1 2x{at - 2} 2x9", "le_Inf": f"0 1 2x{at - 2} 3x9"}
        yield silent(
            f"TimeToFirstTokenBudgetBurns{pace}", "one late request", minutes, *histogram(first, "promised", **late)
        )
        # A request of 900 slow tokens, in a window with nothing else.
        slow = {"le_0_1": f"0 50 99x{at - 2} 99x9", "le_Inf": f"0 50 99x{at - 2} 250 400 550 700 850 999x9"}
        begun = {"le_2_5": f"0 10 20x{at - 2} 21x9", "le_Inf": f"0 10 20x{at - 2} 21x9"}
        yield silent(
            *(f"InterTokenLatencyBudgetBurns{pace}", "one slow request", minutes),
            *(*histogram(tokens, "promised", **slow), *histogram(first, "promised", **begun)),
        )
        one = f"0x{at} 1x9"
        alert = f"ErrorBudgetBurns{pace}"
        gateway = (RESPONSES % ("promised", "5xx") + one, RESPONSES % ("promised", "2xx") + "0x200")
        yield silent(alert, "one request fails", minutes, *gateway)
        yield silent(alert, "one fails at a server", minutes, up, vllm % "5xx" + f"_x{at} 1x9", vllm % "2xx" + "9x200")
        every = "0+0.2x200" if step == 1 else "0+1x200"
        yield fires(alert, "every request fails", minutes, PROMISED, RESPONSES % ("promised", "5xx") + every)
        many = f"_x{(minutes - 4 * step) // step} 60x9"
        begins = (PROMISED, up, vllm % "5xx" + many, vllm % "2xx" + "0+1x200")
        yield fires(alert, "a counter that begins with failures", minutes, *begins)


BURNS = (
    *quiet_hours(),
    *burning("TimeToFirstToken", "0+80x100", "0+100x100", "0+92x100"),
    *burning("InterTokenLatency", "0+80x100", "0+100x100", "0+92x100"),
    *failing(),
    # The previous hour was bad; the current one is good.
    silent(
        *("TimeToFirstTokenBudgetBurnsFast", "over", 90),
        *histogram("time_to_first_token_seconds", "promised", le_2_5="0+50x75 3850+100x30", le_Inf="0+100x110"),
    ),
)


def engines(cases: Iterator[Case] | tuple[Case, ...]) -> Iterator[Case]:
    """Yield each case with metrics of vLLM for the plugin's V1 engine, and for the fork's V0 engine."""
    for case in cases:
        text = " ".join(case.samples)
        # The fork has no engines, and does not count rejections.
        kinds = (
            ("",)
            if " vllm:" not in f" {text}"
            else ("v1",)
            if re.search("engine=|rejections|prefix_cache", text)
            else ("v1", "fork")
        )
        for engine in kinds:
            labels = {key: one for key, one in (case.labels or {}).items() if engine != "fork" or key != "engine"}
            yield replace(case, engine=engine, labels=None if case.labels is None else labels)


# What others reported of their alerts on vLLM and on the exporters of cards and HAProxy, as their samples were.
SESSIONS = "haproxy haproxy_server_current_sessions{proxy=qwq,server=g1.qwq} = "
ABORTED = (RUNNING.format("106x90"), WAITING.format("15x90"), *STILL)
REPORTED = (
    # vllm-metal 479: for an hour six requests wait for capacity, and the KV cache is empty.
    fires(
        *("QueueStuck", "six wait and nothing runs", 60, ENGINE, RUNNING.format("0x70"), WAITING.format("6x70")),
        *("vllm vllm:kv_cache_usage_perc = 0x70", SESSIONS + "6x70"),
    ),
    # vllm 22545, 29928: after a load test that aborts all requests, their counts stay.
    *(
        silent(alert, "aborted requests that are still counted", 60, *ABORTED, *more, SESSIONS + "121x8 0x70")
        for alert, *more in (
            ("EngineStalled",),
            ("QueueStalled", "vllm vllm:time_to_first_token_seconds_count = 900x90"),
            ("KvCacheFull", "vllm vllm:kv_cache_usage_perc = 0.99x90"),
        )
    ),
    fires("EngineStalled", "frozen with 106 clients", 30, ENGINE, *ABORTED, SESSIONS + "121x90"),
    # vllm 40926: /health succeeds, and two requests never end.
    fires(
        "EngineStalled", "two requests never end", 30, ENGINE, RUNNING.format("2x40"), WAITING.format("0x40"), *STILL
    ),
    # vllm 11517: one request runs with 45 tokens a second, and three wait for hours.
    fires(
        *("QueueStalled", "tokens flow and nothing starts", 60, ENGINE, RUNNING.format("1x70"), WAITING.format("3x70")),
        *(TOKENS[0].format("0+2700x70"), "vllm vllm:time_to_first_token_seconds_count = 0 0 0 0 1+0.2x70"),
    ),
    # dcgm-exporter 312 and rocm-systems 6931: single temperatures of 644245923 and 2112 degrees.
    *(
        silent("CardHot", f"a wild value of {name}", 12, f"cards {name}{labels} = 60x9 {wild} 60x20", *more)
        for name, labels, wild, more in (
            ("DCGM_FI_DEV_GPU_TEMP", NVIDIA, 644245923, (f"cards DCGM_FI_DEV_SLOWDOWN_TEMP{NVIDIA} = 90x30",)),
            ("amd_gpu_junction_temperature", AMD, 2112, ()),
        )
    ),
    # gpu-monitoring-tools 97: 9.2e18 stands for a value that cannot be read.
    silent(
        *(
            "CardHot",
            "a temperature that cannot be read",
            12,
            f"cards DCGM_FI_DEV_GPU_TEMP{NVIDIA} = 9223372036854775794x30",
        ),
        f"cards DCGM_FI_DEV_SLOWDOWN_TEMP{NVIDIA} = 90x30",
    ),
    silent(
        *("CardEccUncorrected", "a count that cannot be read", 90),
        f"cards DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{NVIDIA} = 0x40 9223372036854775794x5 0x60",
    ),
    # DCGM 313: an exporter loses most of its samples under load.
    fires(
        *("CardExporterSilent", "two of three scrapes fail", 60, HOST, "cards up = 1x9" + " 0 0 1" * 20),
        f"cards DCGM_FI_DEV_GPU_TEMP{NVIDIA} = 50x90",
    ),
    # dcgm-exporter 348, go-dcgm 38: an exporter no longer shows one card of two.
    fires(
        *("CardExporterSilent", "a card that fell off the bus", 60, HOST, "cards up = 1x70"),
        *(
            f"cards DCGM_FI_DEV_GPU_TEMP{{UUID=GPU-{one}}} = {values}"
            for one, values in ((0, "50x70"), (1, "50x9 stale"))
        ),
        "node gaudi_serve_cards_expected = 2x70",
    ),
    # LLMKube 1356: alerts that read NVIDIA's metrics alone are silent about a sick card of AMD.
    fires(
        *(
            "CardFaulty",
            "of AMD beside a well one",
            10,
            {**CARD, "fault": "unhealthy"},
            f"cards gpu_health{AMD} = 0x20",
        ),
        "cards gpu_health{gpu_id=0} = 1x20",
    ),
    # haproxy-ingress 897: a reload restarts the counters.
    silent(
        *("GatewayErrors", "a reload", 20, RESPONSES % ("qwq", "5xx") + "50x12 0x20"),
        RESPONSES % ("qwq", "2xx") + "9000+60x12 0+60x20",
    ),
    # fedora-homelab-containers 165: a service of 37 requests a day, all of which fail, for eight days.
    fires(
        *("ErrorBudgetBurnsSlowly", "37 requests a day", 1420, PROMISED),
        RESPONSES % ("promised", "5xx") + " ".join(str(place // 8) for place in range(300)),
    ),
    # pyrra 1925: one request fails, of two in an hour.
    silent(
        *("ErrorBudgetBurnsFast", "one of two", 90, RESPONSES % ("promised", "5xx") + "0x80 1x20"),
        RESPONSES % ("promised", "2xx") + "0x40 1x60",
    ),
    # node_exporter 1355: a disc of a virtual machine is always full.
    silent(
        *(
            "DiskFullSoon",
            "a disc of a virtual machine",
            480,
            "node node_filesystem_avail_bytes{fstype=iso9660} = 0x100",
        ),
        "node node_filesystem_size_bytes{fstype=iso9660} = 9x100",
    ),
)
TABLE = tuple(engines((*MODELS, *CARDS, *HOSTS, *GATEWAY, *MONITORING, *BURNS, *REPORTED)))


def kept_silent(case: Case, starting: bool) -> Case:
    """Return a firing case during a rollout of its host or a start of its model, in which it must be silent."""
    steps = case.minutes // case.step
    last = min(steps, 60 // case.step)
    values = f"0x{steps - last} 1x{last}" if steps > last else f"1x{steps}"
    what, more = "starting", [f"node gaudi_serve_model_state{{model=qwq,state=starting}} = {values}"]
    if not starting:
        what, more = (
            "in a rollout",
            [f"node gaudi_serve_host_in_rollout{{host={host}}} = {values}" for host in ("g1", "gw")],
        )
        more += [EXPECTED] if EXPECTED not in case.samples else []
    return replace(case, what=f"{case.what} while {what}", samples=(*case.samples, *more), labels=None)
