"""What every device backend has to keep, of this one under emulation: any number of rows and columns, any batch.

Sizes at the edges of tiles go through the vendors' symbols, whose equivalents refuse a wrong form and leave undefined
rows as NaN; guards stand behind what is written. Lowered kernels have theirs in ``test_hosted.py``.
"""

import ctypes
import random
from types import SimpleNamespace

import pytest
import torch
from emulated_backend import CONFIG, K, N, emulated, fp8_weight, plain, rows

from deepinfer_ascend import vendor
from deepinfer_core import LLM, SamplingParams

pytestmark = [pytest.mark.emulated, pytest.mark.timeout(300)]
EDGES = [1, 2, 31, 63, 64, 65, 127, 128, 129]
"""From one row to two tiles of 64 and one more."""
DIVIDED_BY_ZERO = 4
"""``FE_DIVBYZERO`` on x86-64."""
MIXED = [0.0, 0.5, 1.0, 0.0]


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
    """Names of the vendors' symbols that are asked for."""
    seen, sound = [], vendor.symbol
    monkeypatch.setattr(vendor, "symbol", lambda name, of: (seen.append(name), sound(name, of))[1])
    return seen


def guarded(shape, dtype=torch.bfloat16):
    """A tensor inside a longer one of known values, and a check of what lies beside it."""
    count, beside = torch.Size(shape).numel(), 128
    held = torch.full((count + 2 * beside,), 77.0).to(dtype)
    inside = held[beside : beside + count].view(shape)

    def check():
        assert (held[:beside] == 77).all()
        assert (held[beside + count :] == 77).all()

    return inside, check


@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 8193, 100_000])
@pytest.mark.parametrize("kind", ["ties", "all equal", "distinct", "padding"])
def test_top_k_is_a_full_stable_sort_of_any_number_of_candidates(ascend, cpu, calls, n, kind):
    """By the kernel, which takes bf16 scores in rows of whole 1,024 bytes."""
    generator = torch.Generator().manual_seed(n)
    scores = torch.randint(-40, 40, (4, n), generator=generator).bfloat16() - 200
    if kind == "all equal":
        scores.fill_(-3.0)
    if kind == "distinct":  # as far as bf16 tells numbers apart
        scores = torch.randn(4, n, generator=generator).bfloat16()
    if kind == "padding":
        scores[:, n // 2 :] = float("-inf")
    end = torch.tensor([n, max(1, n - 1), n // 2, 0], dtype=torch.int32)
    k = min(512, n)
    out, check = guarded((4, k), torch.int32)
    found = ascend.index.topk(scores, k, end=end, out=out)
    assert calls == ["deep_select.topk"]
    check()
    for row, last, chosen in zip(scores.float(), end.tolist(), found.tolist(), strict=True):
        best = torch.sort(row[:last], descending=True, stable=True).indices[:k]
        wanted = sorted(best[row[best] > float("-inf")].tolist())
        assert chosen == wanted + [-1] * (k - len(wanted))


@pytest.mark.parametrize("count", EDGES)
def test_products_of_any_number_of_rows_touch_nothing_else(ascend, cpu, calls, count):
    x = rows(count, K)
    ours, theirs = (backend.quant.prepare_weight("w", *fp8_weight()) for backend in (ascend, cpu))
    out, check = guarded((count, N))
    found = ascend.gemm.dense(ascend.quant.cast_per_token(x), ours, out=out)
    assert calls[-1] == "deep_gemm.fp8_fp4_gemm_nt"
    assert torch.equal(found, cpu.gemm.dense(cpu.quant.cast_per_token(x), theirs))
    check()


@pytest.mark.parametrize("count", [1, 127, 128, 129, 255, 256, 257])
def test_segments_of_any_number_of_rows_are_whole(ascend, cpu, calls, count):
    """From one row to two segments' worth and one more, between two others."""
    made = [fp8_weight(seed=seed) for seed in range(3)]
    pair = ([w for w, _ in made], [sf for _, sf in made])
    ours, theirs = (backend.quant.prepare_weight("w", *pair, use="experts") for backend in (ascend, cpu))
    x, ends = rows(count + 8, K), [3, 3 + count, 8 + count]
    out, check = guarded((count + 8, N))
    found = ascend.gemm.grouped(ascend.quant.cast_per_token(x), ours, ends, out=out)
    assert calls[-1] == "deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous"
    assert torch.equal(found, cpu.gemm.grouped(cpu.quant.cast_per_token(x), theirs, ends))
    check()


@pytest.mark.parametrize("keys", EDGES)
def test_attention_to_any_number_of_keys_and_of_heads_touches_nothing_else(ascend, cpu, calls, keys):
    heads = keys
    q, kv = rows(2, heads, 512), rows(140, 512, seed=4)
    indices = torch.randint(0, 140, (2, keys), dtype=torch.int32)
    out, check = guarded((2, heads, 512))
    found, lse = ascend.attn.sparse_prefill(q, kv, indices, scale=0.04, sink=torch.randn(heads), out=out)
    assert calls == ["flash_mla.flash_mla_sparse_fwd"]
    assert not found.isnan().any()
    assert not lse.isnan().any()
    check()
    wanted, their_lse = cpu.attn.sparse_prefill(q, kv, indices, scale=0.04)
    torch.testing.assert_close(lse, their_lse)
    assert found.shape == wanted.shape


def test_greedy_rows_are_not_divided_by_their_temperature(ascend):
    """The flag of the processor, which traps would follow."""
    libm = ctypes.CDLL("libm.so.6")
    logits = torch.randn(4, 1536, generator=torch.Generator().manual_seed(3))
    params = SimpleNamespace(
        temperature=torch.tensor(MIXED), top_p=torch.ones(4), top_k=torch.full((4,), -1, dtype=torch.int32), min_p=None
    )
    libm.feclearexcept(DIVIDED_BY_ZERO)
    chances = ascend.sample.logprobs(logits, params)
    assert not libm.fetestexcept(DIVIDED_BY_ZERO)
    chosen = chances.argmax(-1)
    assert chosen[0] == logits[0].argmax()
    assert chosen[3] == logits[3].argmax()


def prompts(count, seed):
    draw = random.Random(seed)
    return [[draw.randrange(3, 1500) for _ in range(draw.randint(1, 40))] for _ in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_warm_up_with_other_batches_changes_no_answer(drafts):
    """Eight prefills first, then batches of 1, 3 and 8; and the batch of temperatures against each request alone."""
    settings = {"backend": CONFIG.backend, "emulate": True, "kv_memory": "64MiB", "draft_tokens": drafts}
    asked, answers = prompts(8, 6), []
    mixed = [SamplingParams(temperature=t, seed=i, max_tokens=6, ignore_eos=True) for i, t in enumerate(MIXED)]
    for warm in (False, True):
        with LLM(**settings, verify="coupled") as llm:
            if warm:
                llm.generate(prompts(8, 5), SamplingParams(temperature=0, max_tokens=1))
            greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
            batches = [llm.generate(asked[:count], greedy) for count in (1, 3, 8)]
            batches.append(llm.generate(asked[:4], mixed))
            alone = [llm.generate([prompt], params)[0] for prompt, params in zip(asked, mixed, strict=False)]
        answers.append([[output.token_ids for output in batch] for batch in batches])
        assert answers[-1][-1] == [output.token_ids for output in alone]
    assert answers[0] == answers[1]
