"""Vendor libraries that record how they are called: each symbol with the parameters of the real one, in its order.

Written as packages with metadata into a folder, so that looking them up is the real thing.
"""

import inspect
import textwrap

LIBRARIES = {
    "deepinfer-flashmla": (
        "1.0.0",
        "flash_mla",
        {
            "flash_mla_sparse_fwd": "(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None)",
            "flash_mla_with_kvcache": (
                "(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
                "softmax_scale=None, causal=False, is_fp8_kvcache=True, indices=None, attn_sink=None, "
                "extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, "
                "enable_batch_invariant=False)"
            ),
            "get_mla_metadata": "()",
        },
    ),
    "deepinfer-gemm": ("2.8.2", "deep_gemm", {"bf16_gemm_nt": "(a, b, d, c=None, compiled_dims='nk')"}),
    "deepinfer-ep": (
        "2.5.0",
        "deep_ep",
        {
            "EPBuffer": (
                "(group, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0, use_fp8_dispatch=False, "
                "deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True)"
            )
        },
    ),
    "deep-select": (
        "1.0",
        "deep_select.interface",
        {
            "topk": (
                "(input, topk, sorted=False, begin=None, end=None, indices_type=None, sorted_index=False, hint=None, "
                "output_idx=None, output_idx_offset=None, idx_oob_fill_value=2147483647, "
                "value_oob_fill_value=float('-inf'), return_value=True, abort_when_nan_found=True)"
            )
        },
    ),
    "tile-kernels": (
        "2.1.0",
        "tile_kernels.quant",
        {
            "per_token_cast": (
                "(x, fmt, num_per_channels, x_block_size=None, use_tma_aligned_col_major_sf=False, round_sf=False, "
                "use_packed_ue8m0=False, use_e4m3_sf=False, stochastic_cast=False, out=None)"
            )
        },
    ),
    "tile-kernels-moe": (
        "2.1.0",
        "tile_kernels.moe",
        {
            "moe_topk_gate_forward": (
                "(logits, num_topk, use_shared_as_routed, num_shared_experts, routed_scaling_factor, ep_rank, "
                "scoring_func='sqrtsoftplus', mask=None, bias=None, image_bias=None, image_token_mask=None, "
                "fix_routing_mask=None, to_physical_map=None, logical_count=None, unmapped_topk_idx=None, "
                "force_random=None, out=None, scores=None)"
            )
        },
    ),
}
_BODY = """
CALLS = []
ANSWERS = {}

def _record(name, given):
    CALLS.append((name, given))
    answer = ANSWERS.get(name)
    return answer(**given) if callable(answer) else answer
"""


def write(folder, *, without=(), versions=None):
    """Every library below ``folder``. ``without``: attributes that are left out; ``versions``: instead of the real."""
    for distribution, (version, module, functions) in LIBRARIES.items():
        package = folder.joinpath(*module.split("."))
        package.mkdir(parents=True, exist_ok=True)
        for parent in package.relative_to(folder).parents:
            (folder / parent / "__init__.py").touch()
        text = _BODY
        for name, signature in functions.items():
            if name not in without:
                text += f"\ndef {name}{signature}:\n    return _record({name!r}, dict(locals()))\n"
        (package / "__init__.py").write_text(textwrap.dedent(text))
        version = (versions or {}).get(distribution, version)
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def given(module, name):
    """The arguments of the only call of ``name``, those that are the default left out."""
    [arguments] = [given for called, given in module.CALLS if called == name]
    parameters = inspect.signature(getattr(module, name)).parameters
    return {key: value for key, value in arguments.items() if not _is_default(value, parameters[key].default)}


def _is_default(value, default):
    return value is default or (isinstance(value, bool | int | float | str) and value == default)
