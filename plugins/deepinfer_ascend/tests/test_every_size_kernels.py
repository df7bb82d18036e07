"""Lowered kernels at every number of rows from 1 to two for each core and one more, or to two tiles and one more; and
the selection among very many columns. Executed on the processor; :func:`executed.execute` has guards behind outputs.
"""

import pytest
import torch
from emulated_backend import rows
from executed import MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.chip import CUBE_CORES, VECTOR_CORES
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.tensors import PlainWeight

pytestmark = [*MARKS, pytest.mark.timeout(300)]
COUNTS = range(1, 2 * VECTOR_CORES + 2)
"""Rows: each core has none, one, two or three. A tile of a product has 64 of them."""
ULP = 2.0**-7
NEVER = float("-inf")


def test_rows_of_a_norm():
    x, w = rows(COUNTS[-1], 512), torch.rand(512)
    wanted, _ = plain_op("norm.rms")(x, w, eps=1e-6)
    for n in COUNTS:
        y = torch.empty_like(x[:n])
        made = execute("rms_rows", {"width": 512}, {"y": y}, x=x[:n].contiguous(), w=w, eps=1e-6, rows=n)["y"]
        torch.testing.assert_close(made, wanted[:n], atol=0.0, rtol=ULP, msg=lambda text, n=n: f"{n} rows: {text}")


def test_rows_of_a_product():
    x, w = rows(COUNTS[-1], 256), rows(128, 256, seed=2)
    wanted = plain_op("gemm.dense")(x, PlainWeight("w", w.float().t().contiguous()), out_dtype=torch.float32)
    for n in COUNTS:
        y = torch.empty(n, 128)
        sizes = {"outputs": 128, "inputs": 256}
        made = execute("dense_rows", sizes, {"y": y}, CUBE_CORES, x=x[:n].contiguous(), w=w, rows=n)["y"]
        torch.testing.assert_close(made, wanted[:n], atol=1e-4, rtol=1e-5, msg=lambda text, n=n: f"{n} rows: {text}")


def selected(scores, k, end):
    """Columns that the kernel chooses."""
    outputs = {"out": torch.empty(len(scores), k, dtype=torch.int32), "values": torch.empty(len(scores), k)}
    given = {"scores": scores, "end": end, "offset": torch.zeros_like(end), "rows": len(scores)}
    return execute("topk_rows", {"dtype": "float32"}, outputs, **given, columns=scores.shape[1], k=k)["out"]


def sorted_choice(scores, k, end):
    """By a full stable sort."""
    wanted = torch.full((len(scores), k), -1, dtype=torch.int32)
    for row, last in enumerate(end.tolist()):
        best = torch.sort(scores[row, :last], descending=True, stable=True).indices[:k]
        best = best[scores[row, best] > NEVER].sort().values
        wanted[row, : len(best)] = best.int()
    return wanted


def test_columns_of_the_selection():
    scores = torch.randint(-5, 5, (2, COUNTS[-1])).float()
    for n in COUNTS:
        part, end = scores[:, :n].contiguous(), torch.tensor([n, n // 2], dtype=torch.int32)
        assert torch.equal(selected(part, 16, end), sorted_choice(part, 16, end)), n


@pytest.mark.parametrize("n", [2047, 2048, 2049, 8193, 100_000])
@pytest.mark.parametrize("kind", ["ties", "distinct", "padding"])
def test_selection_among_very_many_columns_is_a_full_stable_sort(n, kind):
    scores = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    if kind == "ties":
        scores = (scores * 3).round()
    if kind == "padding":
        scores[:, n // 2 :] = NEVER
    end = torch.tensor([n, n - 1, n // 3], dtype=torch.int32)
    assert torch.equal(selected(scores, 512, end), sorted_choice(scores, 512, end))
