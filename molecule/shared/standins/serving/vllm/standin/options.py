"""The options of the server, in the vendor's fork of release 1.21 or upstream; any other is an error, as there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

FLAGS = """
trust-remote-code enforce-eager enable-auto-tool-choice enable-reasoning enable-expert-parallel enable-lora
enable-prompt-adapter enable-request-id-headers enable-sleep-mode enable-server-load-tracking
enable-prompt-tokens-details enable-ssl-refresh enable-chunked-prefill enable-prefix-caching enable-prompt-embeds
disable-log-requests disable-log-stats disable-custom-all-reduce disable-sliding-window
disable-frontend-multiprocessing disable-async-output-proc disable-cascade-attn disable-fastapi-docs
disable-uvicorn-access-log disable-chunked-mm-input disable-mm-preprocessor-cache use-v2-block-manager
use-padding-aware-scheduling use-tqdm-on-load return-tokens-as-token-ids multi-step-stream-outputs
skip-tokenizer-init allow-credentials ray-workers-use-nsight calculate-kv-scales fully-sharded-loras
enable-lora-bias split-qkv guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
guided-decoding-disable-fallback
"""
INTEGERS = """
port tensor-parallel-size pipeline-parallel-size data-parallel-size max-num-seqs max-num-batched-tokens
max-num-prefill-seqs max-model-len max-seq-len-to-capture max-logprobs max-num-partial-prefills
max-long-partial-prefills long-prefill-token-threshold max-parallel-loading-workers num-scheduler-steps
num-lookahead-slots num-gpu-blocks-override seed max-loras max-lora-rank max-cpu-loras lora-extra-vocab-size
max-prompt-adapters max-prompt-adapter-token max-log-len ssl-cert-reqs block-size tokenizer-pool-size
cuda-graph-sizes
"""
NUMBERS = "gpu-memory-utilization swap-space cpu-offload-gb scheduler-delay-factor rope-theta"
TEXTS = """
model task host served-model-name tokenizer tokenizer-mode tokenizer-revision revision code-revision hf-token
hf-config-path config-format download-dir load-format pt-load-map-location weights-load-device api-key
chat-template chat-template-content-format response-role ssl-keyfile ssl-certfile ssl-ca-certs root-path
middleware lora-modules prompt-adapters tool-call-parser tool-parser-plugin reasoning-parser
guided-decoding-backend logits-processor-pattern allowed-local-media-path allowed-origins allowed-methods
allowed-headers ignore-patterns worker-cls worker-extension-cls scheduler-cls scheduling-policy preemption-mode
distributed-executor-backend prefix-caching-hash-algo otlp-traces-endpoint collect-detailed-traces
show-hidden-metrics-for-version generation-config model-impl qlora-adapter-name-or-path lora-dtype
uvicorn-log-level quantization kv-cache-dtype dtype device config long-lora-scaling-factors tokenizer-pool-type
"""
DOCUMENTS = """
limit-mm-per-prompt mm-processor-kwargs hf-overrides rope-scaling override-neuron-config override-pooler-config
override-generation-config model-loader-extra-config speculative-config kv-transfer-config kv-events-config
compilation-config additional-config tokenizer-pool-extra-config
"""
# What upstream's vLLM 0.26 does not know any more: the fork's own, and those of older versions.
GONE = """
calculate-kv-scales cuda-graph-sizes device disable-async-output-proc disable-frontend-multiprocessing
disable-log-requests disable-mm-preprocessor-cache enable-lora-bias enable-prompt-adapter enable-reasoning
guided-decoding-backend guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
guided-decoding-disable-fallback logits-processor-pattern long-lora-scaling-factors lora-extra-vocab-size
max-long-partial-prefills max-num-partial-prefills max-num-prefill-seqs max-prompt-adapter-token
max-prompt-adapters max-seq-len-to-capture multi-step-stream-outputs num-lookahead-slots num-scheduler-steps
override-neuron-config override-pooler-config preemption-mode prompt-adapters qlora-adapter-name-or-path
rope-scaling rope-theta scheduler-delay-factor split-qkv swap-space task tokenizer-pool-extra-config
tokenizer-pool-size tokenizer-pool-type use-padding-aware-scheduling use-v2-block-manager weights-load-device
"""
NEW_FLAGS = """
enable-log-requests enable-log-outputs enable-log-deltas enable-dbo language-model-only skip-mm-profiling
enable-force-include-usage enable-eplb log-error-stack async-scheduling
"""
NEW_INTEGERS = """
api-server-count max-cudagraph-capture-size mamba-block-size mm-processor-cache-gb shutdown-timeout
data-parallel-size-local data-parallel-rpc-port kv-cache-memory-bytes stream-interval
"""
NEW_TEXTS = """
attention-backend convert logprobs-mode mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype moe-backend
mm-encoder-tp-mode performance-mode reasoning-parser-plugin runner uds tool-server logits-processors
data-parallel-address data-parallel-backend log-config-file
"""
NEW_DOCUMENTS = """
structured-outputs-config pooler-config media-io-kwargs kernel-config ec-transfer-config
default-chat-template-kwargs
"""
CHOICES: dict[str, list[Any]] = {
    "block-size": [1, 8, 16, 32, 64, 128, 256],
    "dtype": ["auto", "half", "float16", "bfloat16", "float", "float32"],
    "kv-cache-dtype": ["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"],
    "distributed-executor-backend": ["ray", "mp", "uni", "external_launcher"],
    "device": ["auto", "cpu", "cuda", "hpu", "neuron", "tpu", "xpu"],
    "load-format": ["auto", "pt", "safetensors", "npcache", "dummy", "tensorizer", "sharded_state", "gguf", "mistral"],
    "weights-load-device": ["cpu", "cuda", "hpu", "xpu"],
    "reasoning-parser": ["deepseek_r1", "granite", "qwen3"],
    "scheduling-policy": ["fcfs", "priority"],
    "tokenizer-mode": ["auto", "slow", "mistral", "custom"],
    "uvicorn-log-level": ["debug", "info", "warning", "error", "critical", "trace"],
    "quantization": [
        *["aqlm", "awq", "awq_hpu", "awq_marlin", "bitsandbytes", "compressed-tensors", "deepspeedfp", "experts_int8"],
        *["fbgemm_fp8", "fp8", "gguf", "gptq", "gptq_hpu", "gptq_marlin", "hqq", "inc", "marlin", "modelopt"],
        *["moe_wna16", "qqq", "quark", "torchao"],
    ],
}
SHORT = {
    "tensor-parallel-size": "-tp",
    "pipeline-parallel-size": "-pp",
    "data-parallel-size": "-dp",
    "quantization": "-q",
}
SEVERAL = {"served-model-name", "lora-modules", "middleware", "cuda-graph-sizes", "ignore-patterns", "prompt-adapters"}
DEFAULTS: dict[str, object] = {
    "port": 8000,
    "model": "facebook/opt-125m",
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "block-size": 128,
    "gpu-memory-utilization": 0.9,
    "dtype": "auto",
    "load-format": "auto",
}


def document(text: str) -> object:
    """Read an option that holds JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return dict(pair.split("=", 1) for pair in text.split(","))


def known(names: str, plugin: bool) -> list[str]:
    """Return those of some options that this vLLM has."""
    return [name for name in names.split() if not (plugin and name in GONE.split())]


class Parser(argparse.ArgumentParser):
    """Takes the model as a first word too, where vllm serve does."""

    def parse_args(self, words: list[str], *, positional_model: bool = False) -> argparse.Namespace:  # type: ignore[override]
        """Parse, and refuse what is left over."""
        if not positional_model:
            return super().parse_args(words)
        model = words[0] if words and not words[0].startswith("-") else None
        options = super().parse_args(words[1:] if model else words)
        if model:
            options.model = model
        return options


def make_parser(program: str, plugin: bool = False) -> Parser:
    """Return the parser of all options: of the fork, or of upstream, which has the plugin."""
    parser = Parser(prog=program, description="vLLM OpenAI-Compatible RESTful API server.", allow_abbrev=False)
    parser.usage = f"{program} [-h] [--model MODEL] [--host HOST] [--port PORT] ..."
    flags, integers, texts, documents = FLAGS, INTEGERS, TEXTS, DOCUMENTS
    if plugin:
        flags, integers = f"{flags} {NEW_FLAGS}", f"{integers} {NEW_INTEGERS}"
        texts, documents = f"{texts} {NEW_TEXTS}", f"{documents} {NEW_DOCUMENTS}"
    for name in known(flags, plugin):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None)
    kinds: list[tuple[str, Callable[[str], object]]]
    kinds = [(integers, int), (NUMBERS, float), (texts, str), (documents, document)]
    for names, kind in kinds:
        for name in known(names, plugin):
            spellings = [f"--{name}", SHORT[name]] if name in SHORT else [f"--{name}"]
            parser.add_argument(
                *spellings,
                type=kind,
                choices=CHOICES.get(name),
                nargs="+" if name in SEVERAL else None,
                default=DEFAULTS.get(name),
            )
    return parser


def with_dashes(words: list[str]) -> list[str]:
    """Write option names with dashes, as vLLM's own parser does."""
    result = []
    for word in words:
        name, equals, value = word.partition("=")
        result.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
    return result
