"""Architectures that are known to work on a platform, by ``model_type`` of a config.json.

Their sources are this catalog, the fork's manual, the plugin's page and vLLM's own support. Other architectures may
work too, so they only cause a warning.
"""

from __future__ import annotations

from ..model.architecture import Architecture

GAUDI = """
baichuan bert bloom chatglm cohere cohere2 deepseek deepseek_v2 deepseek_v3 deepseek_v32 deepseek_ocr deepseek_vl_v2
ernie4_5 ernie4_5_moe ernie4_5_moe_vl falcon gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text glm glm4 glm4_moe gpt2
gpt_bigcode gpt_neox gpt_oss granite granitemoe granitemoehybrid hunyuan_v1_dense hunyuan_v1_moe idefics3 internlm2
internvl_chat llama llama4 llama4_text llava llava_next minimax_m2 minimax_m3 mistral mistral3 mixtral mllama
modernbert mpt opt ovis ovis2 phi phi3 pixtral qwen qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3
qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe roberta solar stablelm starcoder2 whisper xlm-roberta
xlm_roberta
"""
SERVED = {"gaudi": frozenset(GAUDI.split())}
# Of these: model types whose models take text only.
TEXT = """
baichuan bloom cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5 ernie4_5_moe falcon gemma gemma2
gemma3_text gemma4_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss granite granitemoe granitemoehybrid
hunyuan_v1_dense hunyuan_v1_moe internlm2 llama llama4_text minimax_m2 mistral mixtral mpt opt phi phi3 qwen2 qwen2_moe
qwen3 qwen3_moe qwen3_next stablelm starcoder2
"""
TEXT_ONLY = frozenset(TEXT.split())
PLAIN = {name: {one.replace("_", ""): one for one in kinds} for name, kinds in SERVED.items()}
ENDS = ("forcausallm", "forconditionalgeneration", "lmheadmodel", "model", "forsequenceclassification")


def architecture(model: Architecture) -> tuple[str, str] | None:
    """Return the model_type of a config.json, and its name of the architecture; None if it has neither."""
    name = model.classes[0] if model.classes else None
    if model.kind:
        return model.kind.lower(), name or model.kind
    if not name:
        return (model.inner_kind.lower(), model.inner_kind) if model.inner_kind else None
    plain = name.lower()
    for end in ENDS:
        plain = plain.removesuffix(end)
    return next((kinds[plain] for kinds in PLAIN.values() if plain in kinds), plain), name
