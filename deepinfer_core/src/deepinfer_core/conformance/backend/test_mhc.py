"""``mhc.*``: mixing coefficients, collapse and residual mixing against fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import mhc as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

EXPAND, PREPARE, PRE, POST, HEAD = "mhc.expand", "mhc.prepare", "mhc.pre", "mhc.post", "mhc.head"


@frozen(eq=False)
class Sublayer:
    """Checkpoint tensors of a sublayer of ``c`` streams: fn, scale, base."""

    fn: Tensor
    scale: Tensor
    base: Tensor

    def on(self, device: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self.fn.to(device), self.scale.to(device), self.base.to(device)


def sublayer(g: torch.Generator, width: int, c: int = 4, peak: float = 2.0) -> Sublayer:
    """Logits of size ``peak``: the larger, the slower the Sinkhorn iterations settle."""
    rows = c * (c + 2)
    fn = torch.randn(rows, c * width, generator=g) * (c * width) ** -0.5
    return Sublayer(fn, torch.tensor([0.7, 1.3, peak]), torch.randn(rows, generator=g) * peak)


def mix(g: torch.Generator, tokens: int, c: int = 4) -> Tensor:
    return torch.rand(tokens, c, generator=g) - 0.3


def require_pre(
    backend: Backend, device: Any, tolerance: Any, stream: Tensor, a: Tensor, layer: Sublayer, **numbers: Any
) -> None:
    params = backend.ops[PREPARE](*layer.on(device), **numbers)
    x, a_next, post, comb = backend.ops[PRE](stream.to(device), a.to(device), params)
    expected = reference.mixing(stream, layer.fn, layer.scale, layer.base, **numbers)
    require(x.dtype == stream.dtype, f"{PRE}: dtype of the input", op=PRE, got=x.dtype)
    for name, got, true in (("a", a_next, expected.a), ("post", post, expected.post), ("comb", comb, expected.comb)):
        require(got.dtype == torch.float32, f"{PRE}: dtype of {name}", op=PRE, got=got.dtype)
        tolerance(PRE)(got, true, part=name)
    tolerance(PRE, output="x")(x, reference.collapse(stream, a), rows=True, part="x")


@pytest.mark.op(PRE, PREPARE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_pre_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, width: int, tokens: int
) -> None:
    stream = samples.normal(generator, tokens, 4, width)
    require_pre(backend, device, tolerance, stream, mix(generator, tokens), sublayer(generator, width))


@pytest.mark.op(PRE, PREPARE)
@pytest.mark.parametrize("peak", [0.1, 3.0, 8.0])
@pytest.mark.parametrize("iters", [1, 2, 19, 20])
def test_pre_with_slowly_settling_logits_makes_exactly_its_iterations(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, peak: float, iters: int
) -> None:
    stream = samples.normal(generator, 33, 4, 64)
    layer = sublayer(generator, 64, peak=peak)
    require_pre(backend, device, tolerance, stream, mix(generator, 33), layer, iters=iters)


@pytest.mark.op(PRE, PREPARE)
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("norm_eps", [1e-20, 0.25])
def test_pre_uses_the_numbers_it_was_prepared_with(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, eps: float, norm_eps: float
) -> None:
    stream = samples.normal(generator, 9, 4, 64, scale=0.5)
    layer = sublayer(generator, 64)
    for tokens in (1, 9):
        part, a = stream[:tokens], mix(generator, tokens)
        require_pre(backend, device, tolerance, part, a, layer, eps=eps, norm_eps=norm_eps)


@pytest.mark.op(PRE, PREPARE)
@pytest.mark.parametrize("c", [1, 2, 3])
def test_pre_of_other_numbers_of_streams_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, c: int
) -> None:
    for tokens in (1, 6):
        stream = samples.normal(generator, tokens, c, 96)
        require_pre(backend, device, tolerance, stream, mix(generator, tokens, c), sublayer(generator, 96, c))


@pytest.mark.op(PRE)
@pytest.mark.parametrize("logit", [0.0, 30.0, 90.0, -90.0, 2000.0])
def test_pre_with_extreme_logits_stays_finite(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, logit: float
) -> None:
    """Every third logit is ``logit``: sigmoids at their ends, and a softmax with one, two or no large column."""
    base = torch.zeros(24)
    base[::3] = logit
    layer = Sublayer(torch.zeros(24, 4 * 32), torch.ones(3), base)
    for tokens in (1, 5):
        stream = samples.normal(generator, tokens, 4, 32)
        require_pre(backend, device, tolerance, stream, mix(generator, tokens), layer)


@pytest.mark.op(PRE)
@pytest.mark.level("smoke")
def test_pre_gives_the_golden_mixing_matrix(backend: Backend, device: Any, tolerance: Any) -> None:
    """S of ``spec/model.md`` 9, whose result the transposed matrix and the other order of sums do not have."""
    base = torch.zeros(24)
    base[8:] = torch.tensor([((4 * i + j) % 7) * 0.5 - 1 for i in range(4) for j in range(4)])
    params = backend.ops[PREPARE](*Sublayer(torch.zeros(24, 128), torch.zeros(3), base).on(device))
    golden = [
        [0.140349, 0.140349, 0.255214, 0.464087],
        [0.255214, 0.255214, 0.464087, 0.025485],
        [0.140349, 0.140349, 0.255214, 0.464087],
        [0.464086, 0.464087, 0.025485, 0.046341],
    ]
    for tokens in (1, 3):
        stream = torch.ones(tokens, 4, 32, dtype=torch.bfloat16, device=device)
        comb = backend.ops[PRE](stream, torch.ones(tokens, 4, device=device), params)[3]
        tolerance(PRE)(comb, torch.tensor(golden, dtype=torch.float64).expand(tokens, 4, 4), case="golden")


@pytest.mark.op(PRE)
def test_pre_of_a_zero_stream_depends_on_the_bases_alone(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    stream = torch.zeros(3, 4, 64, dtype=torch.bfloat16)
    require_pre(backend, device, tolerance, stream, mix(generator, 3), sublayer(generator, 64))


@pytest.mark.op(PRE, POST, HEAD)
def test_a_broken_row_spares_the_others(backend: Backend, device: Any, generator: torch.Generator) -> None:
    params = backend.ops[PREPARE](*sublayer(generator, 64).on(device))
    stream, a = samples.normal(generator, 5, 4, 64).to(device), mix(generator, 5).to(device)
    y = samples.normal(generator, 5, 64).to(device)

    def run() -> list[Tensor]:
        x, a_next, post, comb = backend.ops[PRE](stream, a, params)
        return [x, a_next, post, comb, backend.ops[POST](y, stream, post, comb), backend.ops[HEAD](stream, a)]

    clean = run()
    stream[2, 1, 7] = float("nan")
    broken = run()
    require(
        bool(broken[1][2].isnan().any()), f"{PRE}: a broken row has coefficients", op=PRE, got=broken[1][2].tolist()
    )
    require(bool(broken[4][2].isnan().any()), f"{POST}: a broken row became finite", op=POST)
    others = torch.tensor([0, 1, 3, 4], device=device)
    for left, right in zip(broken, clean, strict=True):
        require_same_bytes(left[others].contiguous(), right[others].contiguous(), "mhc: a broken row", op=PRE)


@pytest.mark.op(EXPAND)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("tokens", "width", "c"), [(5, 64, 4), (0, 64, 4), (1, 96, 1), (7, 32, 3), (9, 256, 4)])
def test_expand_copies_each_row_once_a_stream(
    backend: Backend, device: Any, generator: torch.Generator, tokens: int, width: int, c: int
) -> None:
    x = samples.normal(generator, tokens, width)
    expected = torch.stack([x] * c, dim=1)
    require_same_bytes(backend.ops[EXPAND](x.to(device), c).cpu(), expected, EXPAND, op=EXPAND)
    given = samples.strided(x.to(device)) if tokens else x.to(device)
    stream = backend.ops[EXPAND](given, c)
    require_same_bytes(stream.cpu(), expected, f"{EXPAND}: strided", op=EXPAND)
    stream[:, 0] = 0  # copies, not views of one row
    require_same_bytes(given.cpu().contiguous(), x, f"{EXPAND}: a stream is the input itself", op=EXPAND)
    if c > 1:
        require_same_bytes(stream[:, 1].cpu().contiguous(), x, f"{EXPAND}: streams share memory", op=EXPAND)


def coefficients(g: torch.Generator, tokens: int, c: int = 4) -> tuple[Tensor, Tensor]:
    """post ``[T, c]`` and a comb ``[T, source, destination]`` far from its own transpose."""
    comb = torch.rand(tokens, c, c, generator=g) * torch.tensor(
        [[2.0 ** (i - 2 * j) for j in range(c)] for i in range(c)]
    )
    return torch.rand(tokens, c, generator=g) * 2, comb


@pytest.mark.op(POST)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("tokens", "width", "c"), [(7, 64, 4), (0, 64, 4), (1, 256, 4), (65, 96, 3), (5, 32, 1)])
def test_post_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, tokens: int, width: int, c: int
) -> None:
    y, stream = samples.normal(generator, tokens, width), samples.normal(generator, tokens, c, width)
    post, comb = coefficients(generator, tokens, c)
    expected = reference.post(y, stream, post, comb)
    by_destination = comb.transpose(1, 2).contiguous().transpose(1, 2)  # the same values, other strides
    for given in (comb, by_destination):
        kept = stream.to(device)
        got = backend.ops[POST](y.to(device), kept, post.to(device), given.to(device))
        require(got.dtype == stream.dtype, f"{POST}: dtype of the stream", op=POST, got=got.dtype)
        tolerance(POST)(got, expected, rows=True)
        require_same_bytes(kept.cpu(), stream, f"{POST}: its input was changed", op=POST)


@pytest.mark.op(POST)
def test_post_sums_in_fp32_and_rounds_once(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    """Two streams that cancel to a few bf16 roundings of either: rounding a part leaves nothing of the result."""
    tokens, width = 6, 64
    stream = samples.normal(generator, tokens, 4, width)
    stream[:, 1] = stream[:, 0]
    comb = torch.zeros(tokens, 4, 4)
    comb[:, 0], comb[:, 1] = 1 + 2.0**-9, -1.0
    post = torch.full((tokens, 4), 2.0**-12)
    y = samples.normal(generator, tokens, width)
    got = backend.ops[POST](*(t.to(device) for t in (y, stream, post, comb)))
    tolerance(POST)(got, reference.post(y, stream, post, comb), rows=True)


@pytest.mark.op(HEAD)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("tokens", "width", "c"), [(7, 64, 4), (0, 64, 4), (1, 256, 4), (65, 96, 3), (5, 32, 1)])
def test_head_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, tokens: int, width: int, c: int
) -> None:
    stream, a = samples.normal(generator, tokens, c, width), mix(generator, tokens, c)
    got = backend.ops[HEAD](stream.to(device), a.to(device))
    require(got.dtype == stream.dtype, f"{HEAD}: dtype of the stream", op=HEAD, got=got.dtype)
    tolerance(HEAD)(got, reference.collapse(stream, a), rows=True)


@pytest.mark.op(HEAD, PRE)
def test_collapse_by_the_first_stream_alone_is_that_stream(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    """How a model starts: a = (1, 0, 0, 0) gives the embedding itself, bit for bit."""
    stream = samples.normal(generator, 5, 4, 64)
    a = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(5, 1)
    params = backend.ops[PREPARE](*sublayer(generator, 64).on(device))
    for got in (
        backend.ops[HEAD](stream.to(device), a.to(device)),
        backend.ops[PRE](stream.to(device), a.to(device), params)[0],
    ):
        require_same_bytes(got.cpu() + 0.0, stream[:, 0] + 0.0, f"{HEAD}: a single stream", op=HEAD)


@pytest.mark.op(PRE, POST, HEAD)
@pytest.mark.parametrize("tokens", [1, 11])
def test_sublayer_twice_gives_the_same_bits(
    backend: Backend, device: Any, generator: torch.Generator, tokens: int
) -> None:
    params = backend.ops[PREPARE](*sublayer(generator, 640).on(device))
    stream, a = samples.normal(generator, tokens, 4, 640).to(device), mix(generator, tokens).to(device)
    x, _, post, comb = run_twice(lambda s, a: backend.ops[PRE](s, a, params), stream, a, op=PRE)
    run_twice(backend.ops[POST], x, stream, post, comb, op=POST)
    run_twice(backend.ops[HEAD], stream, a, op=HEAD)


@pytest.mark.op(PRE, POST, HEAD)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("width", [64, 320])
def test_sublayer_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, width: int
) -> None:
    params = backend.ops[PREPARE](*sublayer(generator, width, peak=4.0).on(device))
    stream, a = samples.normal(generator, 41, 4, width).to(device), mix(generator, 41).to(device)
    y = samples.normal(generator, 41, width).to(device)

    def run(rows: Tensor) -> Tensor:
        """All results of a row side by side, as fp32."""
        rows = rows.to(device)
        x, a_next, post, comb = backend.ops[PRE](stream[rows], a[rows], params)
        mixed = backend.ops[POST](y[rows], stream[rows], post, comb)
        last = backend.ops[HEAD](mixed, a_next)
        return torch.cat([part.float().flatten(1) for part in (x, a_next, post, comb, mixed, last)], dim=1)

    require_row_invariant(PRE, run, 41, generator)


@pytest.mark.op(PRE, POST, HEAD)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(16))
def test_sublayer_of_random_shapes_equals_fp64(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    tokens, width = int(torch.randint(1, 130, (1,), generator=g)), 32 * int(torch.randint(1, 30, (1,), generator=g))
    stream, a = samples.uneven(g, tokens, 4, width, octaves=3), mix(g, tokens)
    require_pre(backend, device, tolerance, stream, a, sublayer(g, width, peak=float(seed % 9)))
    post, comb = coefficients(g, tokens)
    y = samples.normal(g, tokens, width)
    got = backend.ops[POST](*(t.to(device) for t in (y, stream, post, comb)))
    tolerance(POST)(got, reference.post(y, stream, post, comb), rows=True, seed=seed)


@pytest.mark.op(PRE)
@pytest.mark.level("full")
def test_pre_of_the_released_width_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    stream = samples.normal(generator, 9, 4, 5120)
    require_pre(backend, device, tolerance, stream, mix(generator, 9), sublayer(generator, 5120))


@pytest.mark.op(EXPAND, PREPARE, PRE, POST, HEAD)
def test_hyper_connections_that_do_not_fit_are_refused(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    fn, scale, base = sublayer(generator, 64).on(device)
    params = backend.ops[PREPARE](fn, scale, base)
    stream, a = samples.normal(generator, 5, 4, 64).to(device), mix(generator, 5).to(device)
    y = samples.normal(generator, 5, 64).to(device)
    post, comb = (t.to(device) for t in coefficients(generator, 5))
    for case, op, arguments, options in (
        ("no streams", EXPAND, (y, 0), {}),
        ("three dimensions", EXPAND, (stream, 4), {}),
        ("23 rows", PREPARE, (fn[:23], scale, base[:23]), {}),
        ("a width that is no multiple of c", PREPARE, (fn[:, :255], scale, base), {}),
        ("two scales", PREPARE, (fn, scale[:2], base), {}),
        ("a short base", PREPARE, (fn, scale, base[:8]), {}),
        ("no iterations", PREPARE, (fn, scale, base), {"iters": 0}),
        ("another number of streams", PRE, (stream[:, :3].contiguous(), a[:, :3].contiguous(), params), {}),
        ("another width", PRE, (stream[..., :32].contiguous(), a, params), {}),
        ("two dimensions", PRE, (y, a, params), {}),
        ("integers", PRE, (stream.int(), a, params), {}),
        ("a of fewer tokens", PRE, (stream, a[:4], params), {}),
        ("a of one token", PRE, (stream, a[:1], params), {}),
        ("y of fewer tokens", POST, (y[:4], stream, post, comb), {}),
        ("y of another width", POST, (y[:, :32].contiguous(), stream, post, comb), {}),
        ("post of one token", POST, (y, stream, post[:1], comb), {}),
        ("comb of three streams", POST, (y, stream, post, comb[:, :3]), {}),
        ("comb of one token", POST, (y, stream, post, comb[:1]), {}),
        ("a of another number of streams", HEAD, (stream, a[:, :3].contiguous()), {}),
        ("a of one token", HEAD, (stream, a[:1]), {}),
        ("two dimensions", HEAD, (y, a), {}),
    ):
        require_refused(backend.ops, op, case, *arguments, **options)
