"""Lowered kernels of sampling: the tokens of the plain draw, and what its filters leave."""

from types import SimpleNamespace

import pytest
import torch
from executed import MANY, MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.plain import plain_op

pytestmark = MARKS
WIDTH = 1536
NEVER = -float("inf")


def draws(logprobs, seeds, positions, kind):
    given = {"logprobs": logprobs, "seeds": seeds, "positions": positions, "kind": kind, "rows": len(logprobs)}
    tokens = torch.empty(len(logprobs), dtype=torch.int32)
    return execute("draw_rows", {"width": logprobs.shape[1]}, {"tokens": tokens}, **given)["tokens"]


@pytest.mark.parametrize(("kind", "width"), [(0, WIDTH), (1, 9001), (4, WIDTH)])
def test_tokens_are_those_of_the_plain_draw(kind, width):
    """Rows without weight, of NaN, of a few tokens, of the last one alone, of equals. Of 9,001 tokens a thread looks at
    two of the stretch that the number falls into."""
    logprobs = torch.log_softmax(torch.randn(MANY, width) * 4, 1)
    logprobs[7:20] = -8.0
    logprobs[3], logprobs[3, 7], logprobs[4] = -100.0, -99.0, float("nan")
    logprobs[5, 10:], logprobs[6], logprobs[6, -1] = NEVER, NEVER, 0.0
    seeds, positions = torch.randint(-(2**63), 2**63 - 1, (MANY,)), torch.randint(0, 2**20, (MANY,))
    tokens = draws(logprobs, seeds, positions, kind)
    assert torch.equal(tokens, plain_op("sample.draw")(logprobs, seeds, positions, case=kind))
    assert tokens[[3, 4, 6]].tolist() == [7, 0, width - 1]


def test_the_draws_of_the_specification():
    """``spec/sampling.md`` 2.5: p = (.1, .2, .3, .4), the keys of 2.4."""
    logprobs = torch.full((6, WIDTH), NEVER)
    logprobs[:, :4] = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    seeds, positions = torch.tensor([0, 0, 1, 42, 42, -1]), torch.tensor([0, 1, 0, 1000, 1000, 131071])
    assert draws(logprobs, seeds, positions, 0)[[0, 1, 2, 3, 5]].tolist() == [3, 3, 2, 3, 2]
    assert draws(logprobs, seeds, positions, 1)[4] == 3


def parameters(rows):
    return SimpleNamespace(
        temperature=torch.rand(rows) + 0.3, top_p=torch.rand(rows), min_p=torch.rand(rows) * 0.05,
        top_k=torch.randint(-1, 50, (rows,), dtype=torch.int32),
    )  # fmt: skip


def test_what_the_filters_leave():
    """Greedy rows, rows of ties at the cut, without top-p, without any filter, broken and forbidden ones."""
    logits, p = torch.randn(MANY, WIDTH) * 5, parameters(MANY)
    for row, (top_p, top_k) in {1: (0.9, 200), 2: (0.5003, -1), 6: (1.0, 300)}.items():
        logits[row] = logits[row].round() if row != 2 else 0.0
        p.temperature[row], p.top_p[row], p.top_k[row], p.min_p[row] = 1.0, top_p, top_k, 0.0
    logits[2, 5] = -0.0
    logits[3, 9], logits[4], logits[5, 3:] = float("nan"), NEVER, NEVER
    p.temperature[7], p.top_p[8:20], p.top_k[8:14] = 0.0, 1.0, -1
    given = {name: getattr(p, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    outputs = {"out": torch.empty(MANY, WIDTH)}
    made = execute("logprob_rows", {"width": WIDTH}, outputs, logits=logits, rows=MANY, **given)["out"]
    wanted = plain_op("sample.logprobs")(logits, p)
    assert torch.equal(made == NEVER, wanted == NEVER)
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-5, equal_nan=True)
    assert (made[7] > NEVER).sum() == 1
    assert (made[2] > NEVER).nonzero().max() == 768  # of equals the lower ids stay, and both zeros are equal
