"""Names of the options of vLLM's server, with underscores, for each release of the serving image.

The serving image decides in the end. This list finds a misspelt key, or a key of another release, before anything is
changed. It leaves out ``model`` and ``config``, which the toolkit sets, and ``api_key`` and ``hf_token``, which would
appear in a process list.
"""

from __future__ import annotations

import re

BOTH = frozenset(
    """
    additional_config allow_credentials allowed_headers allowed_local_media_path allowed_methods
    allowed_origins block_size chat_template chat_template_content_format code_revision
    collect_detailed_traces compilation_config config_format cpu_offload_gb data_parallel_size
    disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce disable_fastapi_docs
    disable_log_stats disable_sliding_window disable_uvicorn_access_log
    distributed_executor_backend download_dir dtype enable_auto_tool_choice
    enable_chunked_prefill enable_expert_parallel enable_lora enable_prefix_caching
    enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers
    enable_server_load_tracking enable_sleep_mode enable_ssl_refresh enforce_eager
    fully_sharded_loras generation_config gpu_memory_utilization hf_config_path hf_overrides
    host ignore_patterns kv_cache_dtype kv_events_config kv_transfer_config limit_mm_per_prompt
    load_format long_prefill_token_threshold lora_dtype lora_modules max_cpu_loras max_log_len
    max_logprobs max_lora_rank max_loras max_model_len max_num_batched_tokens max_num_seqs
    max_parallel_loading_workers middleware mm_processor_kwargs model_impl
    model_loader_extra_config num_gpu_blocks_override otlp_traces_endpoint
    override_generation_config pipeline_parallel_size port prefix_caching_hash_algo
    pt_load_map_location quantization ray_workers_use_nsight reasoning_parser response_role
    return_tokens_as_token_ids revision root_path scheduler_cls scheduling_policy seed
    served_model_name show_hidden_metrics_for_version skip_tokenizer_init speculative_config
    ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_keyfile tensor_parallel_size tokenizer
    tokenizer_mode tokenizer_revision tool_call_parser tool_parser_plugin trust_remote_code
    use_tqdm_on_load uvicorn_log_level worker_cls worker_extension_cls
    """.split()
)
# The vendor's fork of release 1.21: vLLM 0.8.5 with Gaudi options, from the parsers of its branches.
FORK_1_21 = BOTH | frozenset(
    """
    calculate_kv_scales cuda_graph_sizes device disable_async_output_proc
    disable_frontend_multiprocessing disable_log_requests disable_mm_preprocessor_cache
    enable_lora_bias enable_prompt_adapter enable_reasoning guided_decoding_backend
    guided_decoding_disable_additional_properties guided_decoding_disable_any_whitespace
    guided_decoding_disable_fallback logits_processor_pattern long_lora_scaling_factors
    lora_extra_vocab_size max_long_partial_prefills max_num_partial_prefills
    max_num_prefill_seqs max_prompt_adapter_token max_prompt_adapters max_seq_len_to_capture
    multi_step_stream_outputs num_lookahead_slots num_scheduler_steps override_neuron_config
    override_pooler_config preemption_mode prompt_adapters qlora_adapter_name_or_path
    rope_scaling rope_theta scheduler_delay_factor split_qkv swap_space task
    tokenizer_pool_extra_config tokenizer_pool_size tokenizer_pool_type
    use_padding_aware_scheduling use_v2_block_manager weights_load_device
    """.split()
)
# vLLM 0.32 for CPUs, from the list of its own parser.
VLLM_0_32 = BOTH | frozenset(
    """
    aggregate_engine_logging all2all_backend allow_deprecated_quantization allowed_media_domains
    anthropic_disabled_thinking_effort api_server_count async_scheduling attention_backend
    attention_config aux_output_config cohere_format cohere_is_reasoning_model convert
    cp_kv_cache_interleave_size cpu_distributed_timeout_seconds cpu_offload_params
    cudagraph_capture_sizes cudagraph_metrics custom_histogram_buckets data_parallel_address
    data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb
    data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_size_local data_parallel_start_rank data_parallel_supervisor_port
    dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend
    dcp_kv_cache_interleave_size dcp_q_replicate decode_context_parallel_size
    default_chat_template_kwargs default_mm_loras device_ids device_memory_utilization
    diffusion_config disable_access_log_for_endpoints disable_hybrid_kv_cache_manager
    disable_nccl_for_dp_synchronization distributed_timeout_seconds
    dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s
    dp_supervisor_probe_timeout_s dp_sync_interval ec_manager_config ec_transfer_config
    elastic_ep_max_dp_size enable_batch_sharded_sampling enable_cumem_allocator enable_dbo
    enable_elastic_ep enable_ep_weight_filter enable_eplb enable_fault_tolerance
    enable_flash_late_interaction enable_flashinfer_autotune enable_force_include_usage
    enable_hc_sp enable_layerwise_nvtx_tracing enable_log_deltas enable_log_outputs
    enable_log_requests enable_logging_iteration_details enable_mamba_cache_stochastic_rounding
    enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format
    enable_mm_embeds enable_moe_shared_loras enable_nccl_comm_suspend enable_offline_docs
    enable_per_request_metrics enable_return_routed_experts enable_scale_out
    enable_shm_tensor_arena enable_tokenizer_info_endpoint enable_tower_connector_lora
    enable_trace_replay engram_config eplb_config exclude_tools_when_tool_choice_none
    expert_placement_strategy fail_on_environ_validation fault_tolerance_config fingerprint_mode
    fingerprint_value gdn_prefill_backend grpc grpc_port h11_max_header_count headless
    h11_max_incomplete_event_size interleave_mm_strings io_processor_plugin ir_op_priority
    jit_monitor_mode jit_monitor_verbose kda_decode_backend kda_prefill_backend kernel_config
    kv_cache_dtype_skip_layers kv_cache_memory_bytes kv_cache_metrics kv_cache_metrics_sample
    kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill language_model_only
    linear_backend log_config_file log_error_stack log_level logging_config logits_processors
    logprobs_mode long_prefill_token_threshold_adaptive lora_target_modules mamba_backend
    mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds
    mamba_ssm_cache_dtype mamba_ssu_algorithm master_addr master_port max_cudagraph_capture_size
    max_lora_cls_labels max_num_active_seqs max_num_queued_reqs max_num_queued_tokens
    max_num_scheduled_tokens media_io_kwargs mm_device_do_normalize mm_encoder_attn_backend
    mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
    mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm
    mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type mm_processor_device
    mm_shm_cache_max_object_size_mb mm_tensor_ipc model_class_overrides moe_backend nnodes
    node_rank numa_bind numa_bind_cpus numa_bind_nodes offload_backend offload_group_size
    offload_num_in_group offload_params offload_prefetch_step optimization_level
    per_request_spec_decode_metrics performance_mode pooler_config prefill_context_parallel_size
    prefill_schedule_interval prefix_cache_retention_interval prefix_match_unit profiler_config
    quantization_config reasoning_config reasoning_parser_plugin renderer_num_workers
    replayssm_buffer_len return_sampling_mask runner safetensors_load_strategy
    safetensors_prefetch_block_size safetensors_prefetch_num_threads scheduler_reserve_full_isl
    shutdown_timeout skip_mm_profiling sleep_mode_offload_cudagraph
    sleep_preserve_parameter_names sparse_indexer_topk_backend spec_method spec_model
    spec_tokens specialize_active_lora sse_keep_alive_interval ssl_ciphers stream_interval
    structured_outputs_config swa_bounded_replay tokens_only tool_server tool_strict_level
    trust_request_chat_template trust_request_mm_kwargs ubatch_size uds use_fp64_gumbel
    use_replayssm video_pruning_method video_pruning_rate watermark watermark_config
    weight_transfer_config
    """.split()
)
# Additional options of vLLM 0.33, from its source.
VLLM_0_33 = VLLM_0_32 | {"monokernel", "reasoning_effort_map", "sleep_mode_backend", "watchdog_config"}
# Additional options of the fork of release 1.22.
FORK_1_22 = frozenset(("disable_hybrid_kv_cache_manager", "enable_multimodal_encoder_data_parallel"))
OPTION_NAMES = FORK_1_21 | FORK_1_22 | VLLM_0_33
# Options that only the fork has. Upstream vLLM, which the plugin is for, refuses them.
FORK_ONLY = (FORK_1_21 | FORK_1_22) - VLLM_0_32

_VERSION = re.compile(r"0\.(\d+)\.")


def vllm_options(release: str) -> frozenset[str]:
    """Return the options of vLLM's own images of a version such as 0.32.1, or else those of the newest version."""
    found = _VERSION.match(release)
    return VLLM_0_32 if found and int(found[1]) < 33 else VLLM_0_33


BLOCK = 128  # tokens of a KV-cache block
# max_model_len as the user writes it and as the plan stores it: vLLM chooses the longest context that fits.
AUTO_LENGTHS, AUTO_LENGTH, AUTO_LENGTH_SINCE = ("auto", -1), -1, "0.14"
# Defaults that all of these releases have, as arguments. With or without them, a server starts the same.
DEFAULTS = {
    **dict.fromkeys(
        """
        disable-custom-all-reduce disable-log-stats enable-auto-tool-choice enable-expert-parallel enable-lora
        enable-sleep-mode enforce-eager fully-sharded-loras skip-tokenizer-init trust-remote-code
        """.split(),
        "false",
    ),
    **dict.fromkeys("config-format dtype kv-cache-dtype load-format model-impl tokenizer-mode".split(), "auto"),
    **dict.fromkeys("data-parallel-size pipeline-parallel-size tensor-parallel-size max-loras".split(), "1"),
    **{"max-lora-rank": "16", "scheduling-policy": "fcfs", "cpu-offload-gb": "0", "response-role": "assistant"},
}
