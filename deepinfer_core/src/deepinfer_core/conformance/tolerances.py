"""The tolerance classes of ``spec/kernels.md`` 1.4: how near an op has to be to its reference.

NaN and infinities are compared first, by position; the class judges what is left. References are fp64 or integers on
the host, so a tolerance is one for each op and not one for each pair of backends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.conformance.failures import fail

Q_EQUAL = 0.999
OUTPUT_CLASSES: dict[tuple[str, str], str] = {
    ("attn.sparse_prefill", "lse"): "A(1e-6, 8.01/65536)",
    ("attn.sparse_prefill", "cosine"): "C(1e-5)",
    ("attn.sparse_decode", "lse"): "A(1e-6, 8.01/65536)",
    ("attn.sparse_decode", "cosine"): "C(5e-6)",
    ("moe.gate", "weights"): "C(1e-11)",
    ("mhc.pre", "x"): "C(1e-4)",
}
"""(op, output) -> class, where the op table has that of another output (``spec/kernels.md`` 2.3, 2.7, 2.8)."""
_SPEC = re.compile(r"([BSQUCA])(?:\(([^()]*)\))?")
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@frozen
class Tolerance:
    """A parsed class: ``A(8e-4, 3.01/128)`` has the letter A and two limits."""

    spec: str
    letter: str
    limits: tuple[float, ...]


@frozen
class Measured:
    """How far a result was from its reference, in the unit of its class, and where it was farthest."""

    value: float
    limit: float
    worst: tuple[int, ...] = ()
    note: str = ""


def parse(spec: str) -> Tolerance:
    """A class as the op table writes it. Raises ValueError for anything else."""
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise ValueError(f"{spec!r} is no tolerance class; classes are B, S, Q, U(n), C(x), A(a, r)")
    letter, arguments = match.group(1), match.group(2)
    limits = tuple(_number(part) for part in arguments.split(",")) if arguments else ()
    wanted = {"U": 1, "C": 1, "A": 2}.get(letter, 0)
    if len(limits) != wanted:
        raise ValueError(f"{spec!r}: class {letter} takes {wanted} numbers")
    return Tolerance(spec, letter, limits)


def class_of(op: str, output: str = "") -> str:
    """The class of an output of an op; ``bytes`` is class B whatever the op.

    :raises KeyError: no such op, or no class for that output.
    """
    if output == "bytes":
        return "B"
    if output:
        return OUTPUT_CLASSES[op, output]
    from deepinfer_contracts import OPS

    return OPS[op].tolerance


def on_host(value: Any) -> Tensor:
    """``value`` as a tensor of the host, of its own dtype."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    return tensor.detach().cpu()


def ordinals(values: Tensor) -> Tensor:
    """int64 that counts the values of a floating dtype in order: neighbours differ by 1, and -0 equals 0."""
    bits = values.contiguous().view(_CARRIERS[values.element_size()]).to(torch.int64)
    if values.element_size() == 1:
        return _signed(bits, 0x80)
    return torch.where(bits < 0, -(bits & ((1 << (8 * values.element_size() - 1)) - 1)), bits)


def code_ordinals(codes: Tensor, fmt: str) -> Tensor:
    """The same for quantised codes, uint8: ``e4m3`` one a byte, ``e2m1`` two a byte, the even one low."""
    codes = codes.view(torch.uint8) if codes.element_size() == 1 else codes
    if fmt == "e4m3":
        return _signed(codes.to(torch.int64), 0x80)
    if fmt == "e2m1":
        pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
        return _signed(pairs.to(torch.int64), 8)
    raise ValueError(f"no codes of format {fmt!r}")


def check(actual: Any, reference: Any, spec: str, **context: Any) -> Measured:
    """Compare ``actual`` with ``reference`` in the class ``spec``.

    :param actual: A tensor of any device. Class Q of quantised values takes the pair (codes, scales).
    :param reference: The same on the host: fp64 or integers; a pair for class Q.
    :param context: ``op`` and ``case`` for the message; ``keys`` f64 ``[rows, n]`` for class S, the key of each
        index; ``offset`` int ``[rows]`` for class S, what is subtracted from an index first; ``fmt`` for class Q of
        codes (``e4m3``, ``e2m1``); ``rows=True`` for class C: the worst row (last dimension) is judged, where one
        wrong row among many would go unnoticed. Everything else goes into the message.
    :returns: What was measured.
    :raises ConformanceFailure: naming the worst element.
    """
    __tracebackhide__ = True
    tolerance = parse(spec)
    keys, offset, fmt, by_rows = (context.pop(name, None) for name in ("keys", "offset", "fmt", "rows"))
    context["tolerance"] = spec
    if tolerance.letter == "Q" and fmt is not None:
        return _quantised(actual, reference, fmt, context)
    got, expected = on_host(actual), on_host(reference)
    if got.shape != expected.shape:
        fail("the result has another shape", **context, got=tuple(got.shape), expected=tuple(expected.shape))
    if tolerance.letter == "S":
        return _as_sets(got, expected, keys, offset, context)
    finite = _compare_specials(got, expected, context)
    if tolerance.letter == "C":
        return _cosine(got, expected, finite, tolerance.limits[0], bool(by_rows), context)
    measure: Callable[..., tuple[Tensor, float, str]] = _MEASURES[tolerance.letter]
    distance, limit, note = measure(got, expected, finite, tolerance.limits)
    if not distance.numel():
        return Measured(0.0, limit)
    place = int(distance.argmax())
    worst, value = _unravel(place, got.shape), float(distance.max())
    share = float((distance > 0).double().mean())
    bad = value > limit or (tolerance.letter == "Q" and share > 1 - Q_EQUAL)
    if bad:
        if tolerance.letter == "Q" and value <= limit:
            note = f"{share:.3%} of the values are off, more than {1 - Q_EQUAL:.1%}"
        fail(
            note.format(value=value),
            **context,
            worst=list(worst),
            got=got[worst].item(),
            expected=expected[worst].item(),
            limit=limit,
            differing=f"{int((distance > limit).sum())} of {distance.numel()}",
        )
    return Measured(share if tolerance.letter == "Q" else value, limit, worst)


def _compare_specials(got: Tensor, expected: Tensor, context: dict[str, Any]) -> Tensor:
    """True where both are finite. NaN and infinities must be at the same places."""
    __tracebackhide__ = True
    if not got.is_floating_point():
        if expected.is_floating_point():
            fail("the result is of integers, the reference is not", **context, got=str(got.dtype))
        return torch.ones(got.shape, dtype=torch.bool)
    mine, theirs = got.double(), expected.double()
    rounded = expected.to(got.dtype).double()  # a reference beyond the range of the dtype is an infinity there
    theirs = torch.where(torch.isinf(rounded), rounded, theirs)
    for name, left, right in (
        ("NaN", mine.isnan(), theirs.isnan()),
        ("+inf", mine == float("inf"), theirs == float("inf")),
        ("-inf", mine == float("-inf"), theirs == float("-inf")),
    ):
        wrong = left != right
        if bool(wrong.any()):
            worst = _unravel(int(wrong.flatten().int().argmax()), got.shape)
            fail(
                f"{name} at other places than in the reference",
                **context,
                worst=list(worst),
                got=got[worst].item(),
                expected=expected[worst].item(),
                differing=f"{int(wrong.sum())} of {wrong.numel()}",
            )
    return mine.isfinite()


def _bytes(got: Tensor, expected: Tensor, finite: Tensor, _: tuple[float, ...]) -> tuple[Tensor, float, str]:
    if got.is_floating_point():
        same_type = expected.to(got.dtype)
        left = got.contiguous().view(_CARRIERS[got.element_size()])
        different = (left != same_type.contiguous().view(left.dtype)) & finite
    else:
        different = got.to(torch.int64) != expected.to(torch.int64)
    return different.flatten().double(), 0.0, "the values are not equal"


def _ulps(got: Tensor, expected: Tensor, finite: Tensor, limits: tuple[float, ...]) -> tuple[Tensor, float, str]:
    distance = (ordinals(got) - ordinals(expected.to(got.dtype))).abs().double()
    return torch.where(finite, distance, 0.0).flatten(), limits[0], "{value:.0f} ulp from the reference"


def _codes(got: Tensor, expected: Tensor, finite: Tensor, _: tuple[float, ...]) -> tuple[Tensor, float, str]:
    return *_ulps(got, expected, finite, (1.0,))[:2], "{value:.0f} codes from the reference"


def _absolute(got: Tensor, expected: Tensor, finite: Tensor, limits: tuple[float, ...]) -> tuple[Tensor, float, str]:
    reference = torch.where(finite, expected.double(), 0.0)
    distance = (torch.where(finite, got.double(), 0.0) - reference).abs()
    allowed = limits[0] + limits[1] * reference.abs()
    ratio = torch.where(distance == 0, 0.0, distance / allowed)
    return ratio.flatten(), 1.0, "{value:.3g} times the allowed distance from the reference"


_MEASURES: dict[str, Callable[..., tuple[Tensor, float, str]]] = {
    "B": _bytes,
    "U": _ulps,
    "Q": _codes,
    "A": _absolute,
}


def _cosine(
    got: Tensor, expected: Tensor, finite: Tensor, limit: float, by_rows: bool, context: dict[str, Any]
) -> Measured:
    """calc_diff = 1 - 2 sum(xy) / sum(x^2 + y^2) of the whole, or of the worst row."""
    __tracebackhide__ = True
    if not got.numel():
        return Measured(0.0, limit)
    width = got.shape[-1] if by_rows and got.dim() else got.numel()
    x, y = (torch.where(finite, side.double(), 0.0).reshape(-1, width) for side in (got, expected))
    power = (x * x + y * y).sum(1)
    differences = torch.where(power > 0, 1 - 2 * (x * y).sum(1) / power.clamp(min=1e-300), 0.0).clamp(min=0.0)
    row = int(differences.argmax())
    value = float(differences[row])
    worst = _unravel(row * width + int((x[row] - y[row]).abs().argmax()), got.shape)
    if value >= limit:
        fail(
            f"calc_diff {value:.3g} from the reference",
            **context,
            worst=list(worst),
            got=got[worst].item(),
            expected=expected[worst].item(),
            limit=limit,
        )
    return Measured(value, limit, worst)


def _quantised(actual: Any, reference: Any, fmt: str, context: dict[str, Any]) -> Measured:
    """Scale bytes equal; 99.9 % of the codes equal, the rest off by one."""
    __tracebackhide__ = True
    (codes, scales), (true_codes, true_scales) = actual, reference
    check(scales, true_scales, "B", **{**context, "part": "scales"})
    context = {**context, "part": "codes"}
    left, right = code_ordinals(on_host(codes), fmt), code_ordinals(on_host(true_codes), fmt)
    if left.shape != right.shape:
        fail("the result has another shape", **context, got=tuple(left.shape), expected=tuple(right.shape))
    distance = (left - right).abs().flatten()
    if not distance.numel():
        return Measured(0.0, 1 - Q_EQUAL)
    share, farthest = float((distance > 0).double().mean()), int(distance.max())
    if farthest > 1 or share > 1 - Q_EQUAL:
        worst = _unravel(int(distance.argmax()), left.shape)
        fail(
            f"{share:.3%} of the codes differ, one by {farthest}",
            **context,
            worst=list(worst),
            got=int(left[worst]),
            expected=int(right[worst]),
            limit=f"{1 - Q_EQUAL:.1%}, each by 1",
        )
    return Measured(share, 1 - Q_EQUAL)


def _as_sets(got: Tensor, expected: Tensor, keys: Any, offset: Any, context: dict[str, Any]) -> Measured:
    """Equal sets in each row, -1 left out; indices may differ only where their keys are equal."""
    __tracebackhide__ = True
    width = got.shape[-1] if got.dim() else 0
    rows, true_rows = got.reshape(-1, width).tolist(), expected.reshape(-1, width).tolist()
    shifts = on_host(offset).flatten().tolist() if offset is not None else [0] * len(rows)
    key_rows = on_host(keys).double().flatten(0, -2) if keys is not None else None
    for row, (mine, theirs, shift) in enumerate(zip(rows, true_rows, shifts, strict=True)):
        mine, theirs = ([index for index in line if index != -1] for line in (mine, theirs))
        context["row"] = row
        if len(set(mine)) != len(mine):
            fail("an index is there twice", **context, got=sorted(i for i in set(mine) if mine.count(i) > 1))
        extra, lacking = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
        if not extra and not lacking:
            continue
        if key_rows is not None and len(extra) == len(lacking):
            places = torch.tensor([[i - shift for i in part] for part in (extra, lacking)])
            inside = (places >= 0) & (places < key_rows.shape[1])
            if bool(inside.all()):
                values = key_rows[row][places].sort(dim=1).values
                if bool((values[0] == values[1]).all()):
                    continue
        fail("another set of indices than in the reference", **context, got=extra[:8], expected=lacking[:8])
    return Measured(0.0, 0.0)


def _signed(codes: Tensor, sign: int) -> Tensor:
    return torch.where(codes >= sign, -(codes - sign), codes)


def _unravel(place: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape)) if shape else ()


def _number(text: str) -> float:
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom) if bottom else float(top)
