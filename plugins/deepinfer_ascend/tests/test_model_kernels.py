"""Lowered kernels of the indexer's selection, of what experts made, and of engram: the numbers of the plain ops."""

import pytest
import torch
from executed import MANY, MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.plain import plain_op

pytestmark = MARKS
NEVER, ULP = -float("inf"), 2.0**-7


def numbers(low, high, *shape):
    return torch.randint(low, high, shape, dtype=torch.int32)


def test_the_best_columns():
    """Ties at the cut, rows of one value, with NaN, without any, with fewer than asked for, with +inf."""
    scores, k = torch.randn(MANY, 600), 32
    scores[1], scores[2], scores[2, 5] = scores[1].round(), 0.0, -0.0
    scores[3, ::3], scores[4], scores[5, :590], scores[6, 7] = float("nan"), NEVER, NEVER, float("inf")
    end, offset = numbers(0, 601, MANY), numbers(0, 99, MANY)
    end[:8], end[8], end[9] = 600, 0, 20
    outputs = {"out": numbers(0, 1, MANY, k), "values": torch.empty(MANY, k)}
    given = {"scores": scores, "end": end, "offset": offset, "rows": MANY, "columns": 600, "k": k}
    made = execute("topk_rows", {"dtype": "float32"}, outputs, **given)
    chosen, values = plain_op("index.topk")(scores, k, end=end, offset=offset, want_values=True)
    assert torch.equal(made["out"], chosen)
    assert torch.equal(made["values"], values)


def test_the_best_of_blocks_and_positions_restored():
    scores, valid = torch.randn(MANY, 45), numbers(0, 46, MANY)
    scores[3, 9] = float("inf")
    best, counts = plain_op("index.block_max")(scores, valid, 8)
    given = {"scores": scores, "valid": valid, "rows": MANY, "columns": 45, "blocks": 6}
    sizes = {"block": 8, "dtype": "float32"}
    made = execute("block_max_rows", sizes, {"best": torch.empty_like(best), "counts": counts}, **given)
    assert torch.equal(made["best"], best)
    assert torch.equal(made["counts"], counts)
    compact, candidates, offset = numbers(-1, 60, MANY, 33), numbers(-1, 50, MANY, 6), numbers(0, 9, MANY)
    given = {"candidates": candidates, "offset": offset, "rows": MANY, "k": 33, "count": 6}
    made = execute("restored_rows", {"block": 8}, {"compact": compact}, begin=compact, **given)
    assert torch.equal(made["compact"], plain_op("index.restore")(compact.clone(), candidates, 8, offset=offset))


def test_what_experts_made_is_added_up():
    """Of a token with a masked choice, and of one without any."""
    idx = torch.stack([torch.randperm(16)[:6] for _ in range(MANY)])
    idx[3, 1], idx[4] = -1, -1
    x, bias = torch.randn(MANY, 100).bfloat16(), torch.randn(MANY, 100).bfloat16()
    d = plain_op("moe.dispatch")(x, idx, torch.rand(MANY, 6))
    y, places = torch.randn(len(d.x), 100).bfloat16(), d.handle.rows.int()
    sizes = {"width": 100, "choices": 6, "biased": True}
    made = execute("combine_rows", sizes, {"out": x}, y=y, places=places, bias=bias, rows=MANY, sent=len(y))
    assert torch.equal(made["out"], plain_op("moe.combine")(y, d.handle, bias=bias))


@pytest.mark.slow
def test_rows_of_n_grams_and_their_values():
    """Products that wrap around; the smallest scale, which is subnormal."""
    ids, primes, offsets = numbers(0, 999, MANY, 3), torch.randint(50, 99, (8,)), torch.arange(8) * 100
    multipliers = torch.randint(-(2**62), 2**62, (3,))
    places = plain_op("engram.hash")(ids, multipliers, primes, offsets)
    given = {"ids": ids, "multipliers": multipliers, "primes": primes, "offsets": offsets, "rows": MANY}
    made = execute("hashed_rows", {"grams": 3, "heads": 4}, {"out": places}, **given)
    assert torch.equal(made["out"], places)
    codes, scales = numbers(0, 256, 900, 64).to(torch.uint8), numbers(110, 130, 900, 2).to(torch.uint8)
    codes[(codes & 127) == 127], scales[0], places[0, 0] = 0, 0, 0
    table = plain_op("engram.prepare")(codes.view(torch.float8_e4m3fn), scales)
    wanted = plain_op("engram.fetch")(places, table)
    given = {"places": places, "codes": codes, "scales": scales, "rows": MANY, "size": 900}
    made = execute("table_values", {"width": 64, "columns": 8}, {"out": wanted}, **given)
    assert torch.equal(made["out"], wanted)


@pytest.mark.slow
def test_the_gated_addition():
    x, kv = torch.randn(MANY, 4, 100).bfloat16(), torch.randn(MANY, 500).bfloat16()
    params = plain_op("engram.prepare_gate")(torch.rand(4, 100), torch.rand(4, 100))
    mask = torch.ones(MANY, dtype=torch.bool)
    mask[5] = False
    x[7, 1, 3], kv[8, 430] = float("nan"), float("inf")  # a stream of one row, the value of another
    given = {"x": x, "kv": kv.view(MANY, 5, 100), "weight": params.weight, "open": mask.to(torch.uint8)}
    made = execute("gated_rows", {"width": 100, "streams": 4}, {"out": x}, eps=params.norm_eps, rows=MANY, **given)
    wanted = plain_op("engram.gate")(x, kv, params, mask=mask)
    torch.testing.assert_close(made["out"], wanted, atol=1e-6, rtol=ULP, equal_nan=True)
    assert made["out"][7, 1].isnan().all()
    assert torch.equal(made["out"][5], x[5])
