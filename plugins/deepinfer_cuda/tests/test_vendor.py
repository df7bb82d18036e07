"""Each row of the table of vendor symbols, called through libraries that record; and every way not to have one."""

import importlib
import sys
from types import SimpleNamespace

import fake_vendors
import pytest
import torch

from deepinfer_core.errors import ConfigError, UnsupportedArch, VendorImportError
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor
from deepinfer_cuda.vendor import deep_select
from deepinfer_cuda.vendor.loading import installed, symbol
from deepinfer_cuda.vendor.serving import chosen, serve
from deepinfer_cuda.vendor.table import TABLE, VENDORS

MODULES = ("flash_mla", "deep_gemm", "deep_ep", "deep_select", "tile_kernels")


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """``libraries(**options of write)``: they are installed, newly imported, and forgotten afterwards."""

    def install(**options):
        fake_vendors.write(tmp_path, **options)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    _forget()
    yield install
    _forget()


def _forget():
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        del sys.modules[name]


def own(*args, **kwargs):
    return "own"


def served(op, arch="sm_90"):
    """The op as its library serves it, and the module that records."""
    [row] = [row for row in TABLE if row.op == op]
    ops, providers = serve({op: own}, [row.vendor], arch)
    assert list(providers) == [op]
    return ops[op], importlib.import_module(row.symbols[0][0])


def q(rows=3, heads=64):
    return torch.randn(rows, heads, 512, dtype=torch.bfloat16)


def same(got, expected):
    """Equal keys, tensors with equal values and shapes, other values equal."""
    assert list(got) == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert got[key].shape == value.shape, key
            assert torch.equal(got[key], value), key
        else:
            assert got[key] == value, key


def test_sparse_prefill_calls_flash_mla(libraries):
    libraries()
    op, module = served("attn.sparse_prefill")
    result, lse = q(), torch.randn(3, 64)
    module.ANSWERS["flash_mla_sparse_fwd"] = (result, torch.randn(3, 64), lse)
    query, kv = q(), torch.randn(9, 512, dtype=torch.bfloat16)
    indices = torch.randint(0, 9, (3, 130), dtype=torch.int32)
    sink, lengths = torch.randn(64), torch.tensor([1, 2, 3], dtype=torch.int32)
    got = op(query, kv, indices, scale=0.25, sink=sink, lengths=lengths)
    assert torch.equal(got[0], result)
    assert torch.equal(got[1], lse)
    filled = torch.cat([indices, torch.full((3, 126), -1, dtype=torch.int32)], dim=1)[:, None]
    expected = {
        "q": query,
        "kv": kv[:, None],
        "indices": filled,
        "sm_scale": 0.25,
        "attn_sink": sink,
        "topk_length": lengths,
    }
    same(fake_vendors.given(module, "flash_mla_sparse_fwd"), expected)
    out = torch.zeros_like(query)
    assert op(query, kv, indices, scale=0.25, out=out)[0] is out
    assert torch.equal(out, result)


def view(fmt, size):
    return SimpleNamespace(format=fmt, width=512, tensor=torch.zeros(5, 128, size, dtype=torch.uint8))


def test_sparse_decode_calls_flash_mla_with_a_new_handle(libraries):
    libraries()
    op, module = served("attn.sparse_decode", "sm_100")
    handle, result, lse = object(), q()[:, None], torch.randn(3, 64, 1)
    module.ANSWERS |= {"get_mla_metadata": (handle, None), "flash_mla_with_kvcache": (result, lse)}
    query, idx, more = q(), torch.zeros(3, 128, dtype=torch.int32), torch.ones(3, 512, dtype=torch.int32)
    window, extra = view("v41", 528), view("v41_fp4", 288)
    sink, lengths, extra_lengths = torch.randn(64), idx[:, 0], more[:, 0]
    got = op(
        query,
        window,
        idx,
        plan=SimpleNamespace(batch_invariant=True),
        scale=0.5,
        sink=sink,
        lengths=lengths,
        extra=extra,
        extra_idx=more,
        extra_lengths=extra_lengths,
    )
    assert [part.shape for part in got] == [(3, 64, 512), (3, 64)]
    expected = {
        "q": query[:, None],
        "k_cache": window.tensor[:, :, None],
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": handle,
        "softmax_scale": 0.5,
        "indices": idx[:, None],
        "attn_sink": sink,
        "extra_k_cache": extra.tensor[:, :, None],
        "extra_indices_in_kvcache": more[:, None],
        "topk_length": lengths,
        "extra_topk_length": extra_lengths,
        "enable_batch_invariant": True,
    }
    same(fake_vendors.given(module, "flash_mla_with_kvcache"), expected)


def weight(n=128, k=64):
    return PreparedWeight("w", "dense", "bf16", torch.randn(n, k, dtype=torch.bfloat16))


def test_dense_calls_deep_gemm_with_both_operands_k_innermost(libraries):
    libraries()
    op, module = served("gemm.dense")
    module.ANSWERS["bf16_gemm_nt"] = lambda a, b, d, c, compiled_dims: d.copy_((a.float() @ b.float().T).bfloat16())
    a, w = torch.randn(2, 3, 64, dtype=torch.bfloat16), weight()
    expected = (a.float() @ w.exact.float().T).bfloat16()
    assert torch.equal(op(a, w), expected)
    got = fake_vendors.given(module, "bf16_gemm_nt")
    assert list(got) == ["a", "b", "d"]
    assert torch.equal(got["a"], a.view(6, 64))
    assert torch.equal(got["b"], w.exact)
    out = torch.empty(2, 3, 128, dtype=torch.bfloat16)
    assert op(a, w, out=out) is out
    assert torch.equal(out, expected)
    sf = torch.full((6, 2), 127, dtype=torch.uint8)
    codes = QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=sf, exact=a.view(6, 64))
    assert torch.equal(op(codes, w), expected.view(6, 128))


def test_topk_calls_deep_select_and_takes_out_what_is_no_choice(libraries):
    libraries()
    op, module = served("index.topk")
    inf, none = float("inf"), 2**31 - 1  # none: the default of the library, as is -inf
    values = torch.tensor([[1.0, -inf, 3.0, -inf], [5.0, 6.0, 7.0, 8.0]])
    found = torch.tensor([[0, 2, 5, none], [1, 2, 3, 0x3F3F3F3F]], dtype=torch.int32)
    module.ANSWERS["topk"] = (values, found)
    scores, end = torch.randn(2, 256), torch.tensor([6, 256], dtype=torch.int32)
    offset = torch.tensor([100, 200], dtype=torch.int32)
    got = op(scores, 4, end=end, offset=offset)
    assert got.tolist() == [[100, 105, -1, -1], [201, 202, 203, -1]]
    expected = {
        "input": scores,
        "topk": 4,
        "end": end,
        "indices_type": torch.int32,
        "sorted_index": True,
        "abort_when_nan_found": False,
    }
    same(fake_vendors.given(module, "topk"), expected)


@pytest.mark.parametrize(
    ("options", "given", "sf", "byte"),
    [
        ({}, {"fmt": "e4m3", "num_per_channels": 32, "round_sf": True}, torch.full((3, 2), 0.25), 125),
        (
            {"fmt": "e2m1", "group": 16, "sf": "e4m3"},
            {"fmt": "e2m1", "num_per_channels": 16, "use_e4m3_sf": True},
            torch.full((3, 4), 0.5).to(torch.float8_e4m3fn),
            0x30,
        ),
    ],
)
def test_cast_calls_tile_kernels_and_keeps_scales_as_bytes(libraries, options, given, sf, byte):
    libraries()
    op, module = served("quant.cast_per_token")
    packed = options.get("fmt") == "e2m1"
    data = torch.zeros(3, 32 if packed else 64, dtype=torch.int8)
    module.ANSWERS["per_token_cast"] = (data, sf)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    got = op(x, **options)
    same(fake_vendors.given(module, "per_token_cast"), {"x": x, **given})
    assert (got.fmt, got.group, got.sf_kind) == (given["fmt"], given["num_per_channels"], options.get("sf", "ue8m0"))
    assert got.sf.dtype == torch.uint8
    assert got.sf.unique().tolist() == [byte]
    assert got.data.dtype == torch.uint8


def test_gate_calls_tile_kernels_with_scores_in_fp32(libraries):
    libraries()
    op, module = served("moe.gate")
    answer = (torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2))
    module.ANSWERS["moe_topk_gate_forward"] = answer
    x, w, bias, mask = torch.randn(3, 64, dtype=torch.bfloat16), weight(), torch.randn(128), torch.ones(3).bool()
    image, rows = torch.randn(128), torch.zeros(3).bool()
    assert op(x, w, bias, k=2, scale=1.5, mask=mask, bias_image=image, image_rows=rows) is answer
    expected = {
        "logits": x.float() @ w.matrix,
        "num_topk": 2,
        "use_shared_as_routed": False,
        "num_shared_experts": 0,
        "routed_scaling_factor": 1.5,
        "ep_rank": 0,
        "mask": mask,
        "bias": bias,
        "image_bias": image,
        "image_token_mask": rows,
    }
    same(fake_vendors.given(module, "moe_topk_gate_forward"), expected)


def test_rank_exchange_calls_deep_ep(libraries):
    libraries()
    [row] = [row for row in TABLE if row.op == "moe.dispatch"]
    calls = []

    def told(name, answer):
        return lambda *args, **kwargs: calls.append((name, args, kwargs)) or SimpleNamespace(wait=lambda: answer)

    buffer = SimpleNamespace(
        dispatch=told("dispatch", ("rows", "ids", "weights", "handle")), combine=told("combine", ("sum",))
    )
    module = importlib.import_module("deep_ep")
    module.ANSWERS["EPBuffer"] = buffer
    exchange = row.call(symbol(VENDORS["ep"], *row.symbols[0]), "group", max_tokens=64, hidden=5120, k=6, experts=384)
    expected = {
        "group": "group",
        "num_max_tokens_per_rank": 64,
        "hidden": 5120,
        "num_topk": 6,
        "deterministic": True,
        "allow_multiple_reduction": False,
    }
    same(fake_vendors.given(module, "EPBuffer"), expected)
    assert exchange.dispatch("x", "idx", "weight") == ("rows", "ids", "weights", "handle")
    assert exchange.combine("y", "handle", "weight", "bias") == "sum"
    options = {
        "topk_idx": "idx",
        "topk_weights": "weight",
        "num_experts": 384,
        "expert_alignment": 128,
        "do_cpu_sync": False,
    }
    assert calls == [
        ("dispatch", ("x",), options),
        ("combine", ("y", "handle"), {"topk_weights": "weight", "bias": "bias"}),
    ]


def test_every_row_of_the_table_is_called_above():
    tested = {
        "attn.sparse_prefill",
        "attn.sparse_decode",
        "gemm.dense",
        "index.topk",
        "quant.cast_per_token",
        "moe.gate",
    }
    assert {row.op for row in TABLE} == tested | {"moe.dispatch"}
    assert {row.vendor for row in TABLE} == set(VENDORS)


def a(dtype=torch.bfloat16):
    return torch.randn(3, 64).to(dtype)


SCORES, END = torch.randn(2, 256), torch.tensor([6, 256], dtype=torch.int32)
KV, INDICES = torch.randn(9, 512, dtype=torch.bfloat16), torch.zeros(3, 64, dtype=torch.int32)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("attn.sparse_prefill", (q(heads=8), KV, INDICES), {"scale": 1.0}),
        ("attn.sparse_prefill", (q().float(), KV, INDICES), {"scale": 1.0}),
        ("attn.sparse_prefill", (q(), KV.float(), INDICES), {"scale": 1.0}),
        ("attn.sparse_prefill", (q(), KV, INDICES), {"scale": 1.0, "round_probs": False}),
        ("attn.sparse_decode", (q(), view("bf16", 1024), INDICES), {"scale": 1.0}),
        ("attn.sparse_decode", (q(), view("v41", 528), INDICES), {"scale": 1.0, "extra": view("f32", 2048)}),
        ("gemm.dense", (a(torch.float32), weight()), {}),
        ("gemm.dense", (a(), weight(n=130)), {}),
        ("gemm.dense", (a(), weight()), {"out_dtype": torch.float32}),
        ("gemm.dense", (a()[:0], weight()), {}),
        ("index.topk", (SCORES[:, :250], 4), {"end": END, "want_values": True}),
        ("index.topk", (torch.randn(2, 250), 4), {"end": END}),
        ("index.topk", (SCORES, 257), {"end": END}),
        ("quant.cast_per_token", (a(torch.float32),), {}),
        ("quant.cast_per_token", (a(),), {"sf": "e4m3"}),
        ("moe.gate", (a(torch.float32), weight(), torch.zeros(128)), {"k": 2, "scale": 1.0}),
        ("moe.gate", (a(), weight(), torch.zeros(128)), {"k": 2, "scale": 1.0, "temperature": 2.0}),
    ],
)
def test_arguments_that_a_library_does_not_take_go_to_our_own_kernel(libraries, op, args, kwargs):
    libraries()
    function, module = served(op, "sm_100")
    assert function(*args, **kwargs) == "own"
    assert module.CALLS == []


def test_nothing_is_imported_before_it_is_named(libraries):
    libraries()
    serve({"gemm.dense": own}, chosen({}), "sm_90")
    assert not {name.split(".")[0] for name in sys.modules} & set(MODULES)


def test_named_libraries_are_read_from_the_variable():
    assert chosen({"DEEPINFER_CUDA_VENDORS": " gemm, deepselect,gemm"}) == ("gemm", "deepselect")


def test_an_unknown_library_is_refused():
    with pytest.raises(
        ConfigError, match="DEEPINFER_CUDA_VENDORS names 'gem', which is no vendor library; did you mean 'gemm'"
    ):
        chosen({"DEEPINFER_CUDA_VENDORS": "gem"})


@pytest.mark.parametrize("name", list(VENDORS))
def test_a_library_that_is_not_installed_is_refused_with_its_distribution(name):
    with pytest.raises(VendorImportError) as caught:
        serve({}, [name], "sm_100")
    names = " or ".join(distribution for distribution, _ in VENDORS[name].distributions)
    assert caught.value.reason == f"{names} is not installed"
    assert f"leave {name!r} out of DEEPINFER_CUDA_VENDORS" in caught.value.remedy


def test_an_old_version_is_refused_with_both_versions(libraries):
    libraries(versions={"deepinfer-gemm": "2.7.9"})
    with pytest.raises(VendorImportError) as caught:
        serve({}, ["gemm"], "sm_90")
    assert caught.value.reason == "deepinfer-gemm 2.7.9 is here, 2.8.2 is needed"


def test_a_second_distribution_of_a_library_will_do(libraries, tmp_path):
    libraries(versions={"deepinfer-gemm": "0.1"})
    info = tmp_path / "sgl_deep_gemm-0.2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sgl-deep-gemm\nVersion: 0.2.5\n")
    assert installed(VENDORS["gemm"]) == "sgl-deep-gemm 0.2.5"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.op)
def test_a_missing_symbol_is_refused_by_its_name(libraries, row):
    module, attribute = row.symbols[0]
    libraries(without=(attribute,))
    with pytest.raises(VendorImportError) as caught:
        serve({row.op: own}, [row.vendor], "sm_100")
    assert caught.value.what.endswith(f" has no {module}.{attribute}")
    assert caught.value.reason == f"the attribute {attribute!r} is missing"


def test_a_library_that_cannot_be_imported_is_refused_in_its_own_words(libraries, tmp_path):
    libraries()
    (tmp_path / "deep_gemm" / "__init__.py").write_text("raise OSError('undefined symbol: _ZN3c10')\n")
    with pytest.raises(VendorImportError) as caught:
        serve({}, ["gemm"], "sm_90")
    assert caught.value.what == "deepinfer-gemm 2.8.2 cannot be imported"
    assert caught.value.reason == "import deep_gemm: OSError: undefined symbol: _ZN3c10"


def test_an_architecture_without_kernels_is_refused():
    with pytest.raises(UnsupportedArch, match="vendor library 'gemm' has no kernels for sm_75"):
        serve({}, ["gemm"], "sm_75")


def test_an_op_that_hopper_has_no_kernel_for_stays_ours(libraries):
    libraries()
    ops, providers = serve({"attn.sparse_decode": own, "attn.sparse_prefill": own}, ["flashmla"], "sm_90")
    assert providers == {"attn.sparse_prefill": "deepinfer-flashmla"}
    assert ops["attn.sparse_decode"] is own


def test_largest_k_is_that_of_the_library():
    wide = torch.zeros(1, 8192, dtype=torch.bfloat16)
    end = torch.tensor([8192], dtype=torch.int32)
    assert deep_select.fits_topk(wide, 4096, end=end)
    assert not deep_select.fits_topk(wide, 4097, end=end)
