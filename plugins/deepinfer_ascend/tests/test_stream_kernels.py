"""Lowered kernels of hyper-connections: the numbers of the plain ops, within a rounding where sums are ordered."""

import torch
from executed import MANY, MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.plain import plain_op

pytestmark = MARKS
SIZES = {"width": 100, "streams": 4}
ULP = 2.0**-7


def test_copies_the_collapse_and_what_a_sublayer_adds():
    y, stream = torch.randn(MANY, 100).bfloat16(), torch.randn(MANY, 4, 100).bfloat16()
    weights, comb = torch.rand(MANY, 4), torch.rand(MANY, 4, 4)
    made = execute("post_rows", SIZES, {"out": stream}, y=y, x=stream, post=weights, comb=comb, rows=MANY)["out"]
    torch.testing.assert_close(made, plain_op("mhc.post")(y, stream, weights, comb), atol=1e-6, rtol=ULP)
    made = execute("collapse_rows", SIZES, {"out": y}, x=stream, a=weights, rows=MANY)["out"]
    torch.testing.assert_close(made, plain_op("mhc.head")(stream, weights), atol=1e-2, rtol=ULP)
    made = execute("expand_rows", SIZES | {"width": 5120}, {"out": torch.empty(3, 4, 5120).bfloat16()},
                   x=(x := torch.randn(3, 5120).bfloat16()), rows=3)["out"]  # fmt: skip
    assert torch.equal(made, plain_op("mhc.expand")(x, 4))
