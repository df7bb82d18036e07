"""The ops under emulation, at sizes that the vendor's kernels take: which kernel, and the numbers of ``cpu``."""

import pytest
import torch
from emulated_backend import K, N, T, emulated, fp4_weight, fp8_weight, plain, rows

from deepinfer_ascend import emulation, vendor
from deepinfer_ascend.vendor.table import TABLE
from deepinfer_core.errors import VendorImportError
from deepinfer_core.types import CacheLayer, CacheSpec

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def ascend():
    made = emulated()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cpu():
    made = plain()
    yield made
    made.close()


@pytest.fixture
def calls(monkeypatch):
    """The vendor symbols that were called, in order."""
    seen = []

    def record(name):
        found = emulation._found(name)
        return lambda *args, **kwargs: (seen.append(name), found(*args, **kwargs))[1]

    monkeypatch.setattr(emulation, "equivalent", record)
    return seen


def weights(ascend, cpu, made, **use):
    return ascend.quant.prepare_weight("w", *made, **use), cpu.quant.prepare_weight("w", *made, **use)


def test_a_cast_gives_column_major_words_and_the_codes_of_cpu(ascend, cpu, calls):
    x = rows(T, K)
    ours, theirs = ascend.quant.cast_per_token(x), cpu.quant.cast_per_token(x)
    assert calls == ["tile_kernels.per_token_cast"]
    assert ours.words.shape == (T, K // 64)
    assert ours.words.stride() == (1, T)
    assert torch.equal(ours.data, theirs.data)
    assert torch.equal(ours.sf, theirs.sf)
    assert torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("make", [fp8_weight, fp4_weight])
@pytest.mark.parametrize("kept", [False, True])
def test_a_scaled_product_takes_words_and_fractals(ascend, cpu, calls, make, kept):
    ours, theirs = weights(ascend, cpu, make())
    x, acc = rows(T, K), torch.ones(T, N) if kept else None
    y = ascend.gemm.dense(ascend.quant.cast_per_token(x), ours, acc=acc)
    assert calls[-1] == "deep_gemm.fp8_fp4_gemm_nt"
    assert torch.equal(y, cpu.gemm.dense(cpu.quant.cast_per_token(x), theirs, acc=acc))


def test_a_bf16_product_takes_fractals(ascend, cpu, calls):
    ours, theirs = weights(ascend, cpu, (rows(N, K, seed=5),))
    x = rows(T, K)
    assert torch.equal(
        ascend.gemm.dense(x, ours, out_dtype=torch.float32), cpu.gemm.dense(x, theirs, out_dtype=torch.float32)
    )
    assert calls[-1] == "deep_gemm.bf16_gemm_nt"


def test_joined_weights_keep_their_codes(ascend, cpu):
    pairs = [fp8_weight(64), fp8_weight(96, seed=7)]
    made = ([w for w, _ in pairs], [sf for _, sf in pairs])
    ours, theirs = weights(ascend, cpu, made)
    assert (ours.fmt, ours.parts) == ("e4m3", (64, 96))
    assert torch.equal(ours.matrix, theirs.matrix)


def test_products_by_head_take_the_words_of_all_rows(ascend, cpu, calls):
    ours, theirs = weights(ascend, cpu, fp8_weight(2 * 64, K), use="heads:2")
    x = rows(T, 2, K)
    y = ascend.gemm.einsum_heads(ascend.quant.cast_per_token(x), ours)
    assert calls[-1] == "deep_gemm.fp8_einsum"
    assert torch.equal(y, cpu.gemm.einsum_heads(cpu.quant.cast_per_token(x), theirs))


@pytest.mark.parametrize("make", [fp8_weight, fp4_weight])
def test_experts_lie_in_segments_of_128_rows(ascend, cpu, calls, make):
    """An expert without rows, one with a single row, masked choices."""
    up, down = ([make(n, k, seed + i) for i in range(4)] for n, k, seed in ((512, K, 10), (K, 256, 20)))
    made = [([w for w, _ in each], [sf for _, sf in each]) for each in (up, down)]
    ours, theirs = zip(*(weights(ascend, cpu, pair, use="experts") for pair in made), strict=True)
    x = rows(T, K)
    idx = torch.tensor([[0, 1], [1, 3], [-1, -1], [3, 1], [1, 3]])
    weight = torch.rand(T, 2).masked_fill(idx < 0, 0.0)
    results = []
    for backend, (w1, w2) in ((ascend, ours), (cpu, theirs)):
        d = backend.moe.dispatch(backend.quant.cast_per_token(x), idx, weight)
        results.append(backend.moe.combine(backend.moe.experts(d, w1, w2, clamp=10.0), d.handle))
    assert calls.count("deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous") == 2
    assert torch.equal(*results)


@pytest.mark.parametrize("make", [fp8_weight, fp4_weight])
@pytest.mark.parametrize("ends", [[3, 3, 140, 150], [0, 0, 0, 150], [150] * 4, [1, 2, 3, 4]])
def test_segments_side_by_side_are_moved_to_multiples_of_128_rows_and_back(ascend, cpu, calls, make, ends):
    """Segments without rows, one of more than 128, rows of no segment, whose results are undefined."""
    made = [make(N, K, seed) for seed in range(4)]
    pair = ([w for w, _ in made], [sf for _, sf in made])
    ours, theirs = weights(ascend, cpu, pair, use="experts")
    x = rows(150, K)
    wanted = cpu.gemm.grouped(cpu.quant.cast_per_token(x), theirs, ends)[: ends[-1]]
    for given in (ends, torch.tensor(ends, dtype=torch.int32)):
        found = ascend.gemm.grouped(ascend.quant.cast_per_token(x), ours, given)
        assert calls[-1] == "deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous"
        assert torch.equal(found[: ends[-1]], wanted)


@pytest.mark.parametrize("ends", [[3, 2, 5, 5], [1, 2, 3, 9], [5]])
def test_segments_that_do_not_fit_are_refused(ascend, ends):
    from deepinfer_core.errors import ShapeContractError

    made = [fp8_weight(N, K, seed) for seed in range(4)]
    w = ascend.quant.prepare_weight("w", [w for w, _ in made], [sf for _, sf in made], use="experts")
    with pytest.raises(ShapeContractError, match="seg_ends"):
        ascend.gemm.grouped(ascend.quant.cast_per_token(rows(T, K)), w, ends)


def test_rows_that_were_not_quantised_are_not_quantised_by_experts(ascend, calls):
    w1, w2 = (
        ascend.quant.prepare_weight("w", [w], [sf], use="experts") for w, sf in (fp8_weight(512, K), fp8_weight(K, 256))
    )
    d = ascend.moe.dispatch(rows(T, K), torch.zeros(T, 1, dtype=torch.int64), torch.ones(T, 1))
    ascend.moe.experts(d, w1, w2, clamp=10.0)
    assert set(calls) == {"torch_npu.npu_format_cast"}


def test_streams_go_through_tile_kernels(ascend, cpu, calls):
    """Expanded, mixed and collapsed with the bits of the plain ops, whatever the layout of the coefficients."""
    x, stream = rows(T, 256), rows(T, 4, 256, seed=4)
    mixes, comb = torch.rand(T, 4), torch.rand(T, 4, 4).transpose(1, 2)
    for name, arguments in (("expand", (x, 4)), ("post", (x, stream, mixes, comb)), ("head", (stream, mixes))):
        mine, wanted = (getattr(backend.mhc, name)(*arguments) for backend in (ascend, cpu))
        assert torch.equal(mine, wanted), name
    names = ("expand_to_mhc_fwd", "mhc_post_fwd", "mhc_pre_apply_mix_fwd")
    assert calls == [f"tile_kernels.{name}" for name in names]


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False, True, True, False])])
def test_the_gate_of_engram_goes_through_tile_kernels(ascend, cpu, calls, mask):
    params = cpu.engram.prepare_gate(rows(4, 128, seed=5), rows(4, 128, seed=6))
    x, kv = rows(T, 4, 128), rows(T, 5 * 128, seed=7)
    mine, wanted = (backend.engram.gate(x, kv, params, mask=mask) for backend in (ascend, cpu))
    assert torch.equal(mine, wanted)
    assert calls == ["tile_kernels.engram_gate_fwd"]
    assert mask is None or torch.equal(mine[1], x[1])


def test_a_symbol_that_is_not_bound_is_refused_with_the_reason(ascend):
    with pytest.raises(VendorImportError, match=r"deep_ep\.EPBuffer is not bound") as caught:
        vendor.symbol("deep_ep.EPBuffer", torch.zeros(1))
    assert "of one rank" in caught.value.reason


def test_streams_of_other_sizes_and_types_are_for_the_plain_ops(ascend, calls):
    ascend.mhc.expand(rows(T, 96), 4)
    ascend.mhc.head(torch.zeros(T, 4, 128), torch.zeros(T, 4))
    assert calls == []


def test_the_gate_leaves_the_choice_to_the_kernel(ascend, cpu, calls):
    ours, theirs = weights(ascend, cpu, (rows(12, K, seed=8),))
    x, bias = rows(T, K), torch.randn(12)
    found = ascend.moe.gate(x, ours, bias, k=3, scale=1.5)
    assert calls[-1] == "tile_kernels.moe_topk_gate_forward"
    for mine, wanted in zip(found, cpu.moe.gate(x, theirs, bias, k=3, scale=1.5), strict=True):
        assert torch.equal(mine, wanted)


@pytest.mark.parametrize("heads", [1, 64, 128])
@pytest.mark.parametrize("keys", [3, 64, 70])
def test_prefill_attention_is_of_64_heads_and_tiles_of_64_keys(ascend, cpu, calls, heads, keys):
    q, kv = rows(T, heads, 512), rows(90, 512, seed=4)
    indices = torch.randint(-1, 95, (T, keys), dtype=torch.int32)
    indices[2] = -1
    arguments = {
        "scale": 0.04,
        "sink": torch.randn(heads),
        "lengths": torch.tensor([keys, 1, 2, 3, 0], dtype=torch.int32),
    }
    out, lse = ascend.attn.sparse_prefill(q, kv, indices, **arguments)
    assert calls == ["flash_mla.flash_mla_sparse_fwd"] * -(-heads // 64)
    wanted, their_lse = cpu.attn.sparse_prefill(q, kv, indices, **arguments)
    torch.testing.assert_close(out, wanted, atol=1e-3, rtol=2**-7)
    torch.testing.assert_close(lse, their_lse)


@pytest.mark.parametrize("extra", ["", "v41", "v41_fp4"])
def test_decode_attention_reads_caches_of_bytes(ascend, cpu, calls, extra):
    specs = [CacheSpec("swa", "swa", [CacheLayer(0, 134, "v41", 512)])]
    specs += [CacheSpec("main", "main", [CacheLayer(0, 64, extra, 512)])] if extra else []
    caches = ascend.cache.alloc(specs, {"swa": 2, "main": 3})
    window = ascend.cache.view(caches, "swa", 0)
    ascend.cache.store(rows(200, 512), window, torch.arange(200, dtype=torch.int32))
    more = {}
    if extra:
        view = ascend.cache.view(caches, "main", 0)
        ascend.cache.store(rows(150, 512, seed=6), view, torch.arange(150, dtype=torch.int32))
        more = {"extra": view, "extra_idx": torch.randint(0, 150, (T, 16), dtype=torch.int32)}
    q, idx = rows(T, 12, 512), torch.randint(-1, 200, (T, 33), dtype=torch.int32)
    calls.clear()
    out, lse = ascend.attn.sparse_decode(q, window, idx, scale=0.04, **more)
    assert calls == ["flash_mla.get_mla_metadata", "flash_mla.flash_mla_with_kvcache"]
    wanted, their_lse = cpu.attn.sparse_decode(q, window, idx, scale=0.04, **more)
    torch.testing.assert_close(out, wanted, atol=1e-3, rtol=2**-7)
    torch.testing.assert_close(lse, their_lse)


def test_scores_of_index_keys_come_in_bf16_and_topk_takes_them(ascend, cpu, calls):
    specs = [CacheSpec("index", "index", [CacheLayer(0, 64, "index_fp4", 128)])]
    view = ascend.cache.view(ascend.cache.alloc(specs, {"index": 3}), "index", 0)
    ascend.cache.store(rows(192, 128), view, torch.arange(192, dtype=torch.int32))
    q = ascend.quant.cast_per_token(rows(T, 32, 128, seed=9), fmt="e2m1")
    lens = torch.tensor([1, 64, 100, 0, 130], dtype=torch.int32)
    table = torch.tensor([[0, 1, 2]] * T, dtype=torch.int32)
    weight = torch.rand(T, 32)
    calls.clear()
    scores = ascend.index.logits(q, weight, view, context_lens=lens, block_table=table, max_k=130)
    assert calls == ["deep_gemm.get_paged_mqa_logits_metadata", "deep_gemm.fp8_fp4_paged_mqa_logits"]
    wanted = cpu.index.logits(q, weight, view, context_lens=lens, block_table=table, max_k=130)
    assert scores.dtype == torch.bfloat16
    assert torch.equal(scores, wanted.bfloat16())
    calls.clear()  # as the model makes them: weights of bf16, which the kernel does not take
    halved = ascend.index.logits(q, weight.bfloat16(), view, context_lens=lens, block_table=table, max_k=130)
    assert calls[-1] == "deep_gemm.fp8_fp4_paged_mqa_logits"
    same = cpu.index.logits(q, weight.bfloat16(), view, context_lens=lens, block_table=table, max_k=130)
    assert torch.equal(halved, same.bfloat16())
    chosen = ascend.index.topk(scores, 16, end=lens)
    assert calls[-1] == "deep_select.topk"
    assert torch.equal(chosen, cpu.index.topk(scores, 16, end=lens))
    keys = ascend.quant.cast_per_token(rows(50, 128, seed=11), fmt="e2m1")
    span = (torch.zeros(T, dtype=torch.int32), torch.tensor([50, 1, 2, 9, 33], dtype=torch.int32))
    assert torch.equal(
        ascend.index.logits(q, weight, keys, span=span, max_k=50),
        cpu.index.logits(q, weight, keys, span=span, max_k=50).bfloat16(),
    )


def test_every_symbol_of_the_table_has_an_equivalent():
    for name in TABLE:
        assert callable(emulation._found(name)), name


def test_a_host_tensor_has_no_place_in_a_vendor_call_where_nothing_is_emulated(monkeypatch):
    from deepinfer_core.errors import ShapeContractError

    monkeypatch.setattr(emulation, "_open", 0)
    with pytest.raises(ShapeContractError, match="nothing is emulated"):
        vendor.symbol("deep_gemm.bf16_gemm_nt", torch.zeros(1))


def test_mixing_coefficients_in_fp32_are_within_the_tolerance_of_the_op(cpu):
    """What a device computes: here on the host, beside the fp64 of the plain op."""
    from deepinfer_ascend.ops.mhc import coefficients

    stream = rows(9, 4, 32).float()
    params = cpu.mhc.prepare(torch.randn(24, 128), torch.tensor([0.5, 1.0, 2.0]), torch.randn(24))
    _, *wanted = cpu.mhc.pre(stream, torch.zeros(9, 4), params)
    flat = stream.view(9, 128)
    mix = (flat @ params.fn) * flat.square().mean(1, keepdim=True).rsqrt() * params.scale + params.base
    for mine, theirs in zip(coefficients(mix, 4, params.iters, params.eps), wanted, strict=True):
        torch.testing.assert_close(mine, theirs.contiguous(), atol=1e-5, rtol=1e-5)
