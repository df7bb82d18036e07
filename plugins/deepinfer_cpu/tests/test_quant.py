"""Group quantisation: golden bytes (``spec/kernels.md`` 1.1, ``spec/model.md`` 9), a scalar version, weights."""

import math

import cpu_scalar
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import quant

Q8, Q4MX, Q4NV = ("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "e4m3")
EIGHTHS = [(i - 16) / 8 for i in range(32)]
SKEWED = [(i - 15.5) * 0.37 for i in range(32)]
GOLDEN = [
    (EIGHTHS, Q8, [120], "f8f7f6f5f4f3f2f1f0eeeceae8e4e0d800586064686a6c6e7071727374757677"),
    (EIGHTHS, Q4MX, [126], "eededdccccabaa890021224344545566"),
    (EIGHTHS, Q4NV, [0x2B, 0x2A], "ffefeededdccab991022435465667677"),
    ([(i - 7.5) * 0.37 for i in range(16)], Q4NV, [0x2F], "ffeecd9a21546677"),
    (SKEWED, Q4MX, [127], "ffeeeedecdbcab891032435465666677"),
    (SKEWED, Q8, [121], "fcfbfaf9f8f8f6f5f3f2f0edeae7e1d45461676a6d70727375767878797a7b7c"),
]


def cast(x: torch.Tensor, spec: tuple[str, int, str]):
    return quant.cast_per_token(x, fmt=spec[0], group=spec[1], sf=spec[2])


@pytest.mark.parametrize(("values", "spec", "scale", "data"), GOLDEN)
def test_cast_of_golden_input_gives_golden_bytes(values, spec, scale, data):
    q = cast(torch.tensor(values).bfloat16().unsqueeze(0), spec)
    assert q.sf[0].tolist() == scale
    assert bytes(q.data[0].tolist()).hex() == data


@pytest.mark.parametrize(
    ("fmt", "amax", "byte"),
    [
        ("e4m3", 448.0, 127), ("e4m3", 449.0, 128), ("e4m3", 224.0, 126), ("e4m3", 6.0, 121), ("e4m3", 1.0, 119),
        ("e4m3", 1e-4, 105), ("e4m3", 0.0, 105), ("e2m1", 6.0, 127), ("e2m1", 7.0, 128), ("e2m1", 3.0, 126),
        ("e2m1", 0.0, 1),
    ],
)  # fmt: skip
def test_scale_of_amax_is_the_power_of_two_above(fmt, amax, byte):
    x = torch.zeros(1, 32)
    x[0, 7] = -amax
    assert cast(x, (fmt, 32, "ue8m0")).sf.tolist() == [[byte]]


def test_q4nv_divides_by_the_fp32_reciprocal_of_the_stored_scale():
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 1] = 0.03662109375, 6 * 0.029296875
    q = cast(x, Q4NV)
    assert q.sf.tolist() == [[0x0F]]
    assert q.values[0, 0].item() == 1.5 * 0.029296875


@pytest.mark.parametrize("spec", [Q8, Q4MX, Q4NV])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-7, 1e-3, 1.0, 3e4])
def test_cast_of_random_groups_equals_the_scalar_version(spec, dtype, size):
    x = (torch.randn(4, 64) * size).to(dtype)
    x[0, :32] = 0.0
    x[1, 3] = -0.0
    q = cast(x, spec)
    for row, values in enumerate(x.float().tolist()):
        for g in range(64 // spec[1]):
            group = values[g * spec[1] : (g + 1) * spec[1]]
            byte, scale, codes = cpu_scalar.quantise(group, spec[0], spec[2])
            span = slice(g * spec[1], (g + 1) * spec[1])
            assert q.sf[row, g].item() == byte
            stored = codes if spec[0] == "e4m3" else cpu_scalar.pack_nibbles(codes)
            width = len(stored)
            assert q.data[row, g * width : (g + 1) * width].tolist() == stored
            assert q.values[row, span].tolist() == cpu_scalar.decode(codes, scale, spec[0])


@pytest.mark.parametrize("spec", [Q8, Q4MX])
@pytest.mark.parametrize("special", [None, math.inf, math.nan, 3e38, 1e-42])
def test_cast_of_few_values_has_the_bits_it_has_among_many(spec, special):
    x = torch.randn(64, 256) * torch.logspace(-40, 36, 64).unsqueeze(1)  # more than FEW_VALUES together
    if special is not None:
        x[::3, 5] = special
    many = cast(x, spec)
    for row in range(64):
        few = cast(x[row : row + 1], spec)
        for one, all_ in ((few.values, many.values), (few.data, many.data), (few.sf, many.sf)):
            torch.testing.assert_close(one[0], all_[row], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("spec", [Q8, Q4MX, Q4NV])
def test_values_equal_what_the_codes_decode_to(spec):
    q = cast(torch.randn(7, 96).bfloat16() * 3, spec)
    again = type(q).of_codes(q.data, q.sf, fmt=q.fmt, group=q.group, sf_kind=q.sf_kind)
    assert torch.equal(again.values, q.values)
    assert torch.equal(quant.dequantize(q, dtype=torch.bfloat16).float(), q.values)  # exact in bf16 too


@pytest.mark.parametrize("spec", [Q8, Q4MX])
def test_cast_of_its_own_values_changes_nothing(spec):
    once = cast(torch.randn(64, 128).bfloat16(), spec).values
    assert torch.equal(cast(once, spec).values, once)


def test_q4nv_of_its_own_values_with_a_subnormal_scale_is_not_idempotent():
    x = torch.zeros(1, 16)
    x[0, 0] = 1.6 * 6 * 2.0**-9  # the scale rounds up to 2 * 2^-9, the code down to 4, and the next scale to 2^-9
    x[0, 1] = 5 * 2.0**-9
    once = cast(x, Q4NV).values
    assert not torch.equal(cast(once, Q4NV).values, once)


@pytest.mark.parametrize(("spec", "error"), [(Q8, 1 / 16), (Q4MX, 1 / 2), (Q4NV, 1 / 3)])
def test_cast_stays_within_the_error_of_its_format(spec, error):
    x = torch.randn(128, 64)
    groups = x.view(128, -1, spec[1])
    off = (cast(x, spec).values.view_as(groups) - groups).abs()
    limit = groups.abs().amax(-1, keepdim=True) * error
    assert (off <= limit).all()
    assert (off > limit / 8).any()


def test_codes_over_an_unrounded_scale_are_those_of_one_division():
    x = torch.randn(512, 128)
    amax = x.abs().amax(1, keepdim=True)
    inverse = torch.from_numpy(448 / amax.numpy())  # torch's own 448 / amax is rounded twice
    assert (inverse != 448 / amax).any()
    q = quant.cast_per_token(x, group=128, sf="f32")
    assert torch.equal(q.data, (x * inverse).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def test_cast_of_a_width_that_is_no_multiple_names_argument_and_sizes():
    with pytest.raises(
        ShapeContractError, match=r"quant\.cast_per_token: argument 'x' must be .* multiple of 32, got 48"
    ):
        quant.cast_per_token(torch.zeros(2, 48))


def test_cast_of_an_unknown_pair_is_refused():
    with pytest.raises(ShapeContractError, match="fmt, sf"):
        quant.cast_per_token(torch.zeros(2, 32), fmt="e4m3", sf="e4m3")


def test_cast_into_out_fills_it():
    x = torch.randn(2, 64)
    target = cast(torch.zeros(2, 64), Q8)
    target.data, target.sf  # noqa: B018  made before they are filled
    assert quant.cast_per_token(x, out=target) is target
    fresh = cast(x, Q8)
    assert torch.equal(target.data, fresh.data)
    assert torch.equal(target.sf, fresh.sf)
    assert torch.equal(target.values, fresh.values)


# --- weights ----------------------------------------------------------------------------------------------------


def fp8_weight(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    grid = (-(-rows // 32), -(-columns // 32))
    return torch.randn(rows, columns).to(torch.float8_e4m3fn), torch.randint(118, 136, grid, dtype=torch.uint8)


def e8m0(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.float8_e8m0fnu)


@pytest.mark.parametrize(("rows", "columns"), [(33, 31), (130, 70), (32, 32), (1, 65)])
def test_prepare_fp8_weight_scales_each_block_of_32(rows, columns):
    w, sf = fp8_weight(rows, columns)
    matrix = quant.prepare_weight("w", w, e8m0(sf)).matrix
    assert matrix.shape == (columns, rows)
    plain = w.float()
    for o in range(0, rows, 31):
        for i in range(0, columns, 29):
            assert matrix[i, o].item() == plain[o, i].item() * 2.0 ** (int(sf[o // 32, i // 32]) - 127)


def test_prepare_with_a_transposed_scale_grid_is_refused():
    w, sf = fp8_weight(130, 70)
    with pytest.raises(ShapeContractError, match=r"scale of wq.*\(5, 3\), got \(3, 5\)"):
        quant.prepare_weight("wq", w, e8m0(sf.t().contiguous()))


def test_prepare_fp4_weight_scales_groups_along_the_inputs():
    codes = torch.randint(0, 256, (6, 32), dtype=torch.uint8)
    sf = torch.randint(118, 136, (6, 2), dtype=torch.uint8)
    matrix = quant.prepare_weight("e", codes.view(torch.int8), e8m0(sf)).matrix
    for o in range(6):
        for i in range(64):
            code = int(codes[o, i // 2]) >> (4 * (i & 1)) & 15
            expected = cpu_scalar.decode([code], 2.0 ** (int(sf[o, i // 32]) - 127), "e2m1")[0]
            assert matrix[i, o].item() == expected


def test_prepare_of_a_list_concatenates_the_outputs():
    (a, sa), (b, sb) = fp8_weight(64, 32), fp8_weight(33, 32)
    both = quant.prepare_weight("ab", [a, b], [e8m0(sa), e8m0(sb)])
    assert both.parts == (64, 33)
    assert torch.equal(both.matrix[:, 64:], quant.prepare_weight("b", b, e8m0(sb)).matrix)


def test_prepare_of_experts_stacks_and_concatenates():
    pairs = [[fp8_weight(32, 64), fp8_weight(32, 64)] for _ in range(3)]
    stack = quant.prepare_weight(
        "e", [[w for w, _ in p] for p in pairs], [[e8m0(s) for _, s in p] for p in pairs], use="experts"
    )
    assert stack.shape == (3, 64, 64)
    assert torch.equal(stack.matrix[1, :, 32:], quant.prepare_weight("u", pairs[1][1][0], e8m0(pairs[1][1][1])).matrix)


def test_prepare_of_heads_splits_rows_by_group():
    w = torch.randn(6, 8)
    assert torch.equal(quant.prepare_weight("o", w, use="heads:2").matrix[1], w[3:].t())


@pytest.mark.parametrize(
    ("w", "sf", "use"),
    [
        (torch.zeros(4, 4, dtype=torch.int8), None, "dense"),
        (torch.zeros(4, 4, dtype=torch.float16), torch.zeros(1, 1, dtype=torch.uint8), "dense"),
        (torch.zeros(4, 4), None, "column"),
        (torch.zeros(5, 4), None, "heads:2"),
    ],
)
def test_prepare_of_a_misfit_is_refused(w, sf, use):
    with pytest.raises(ShapeContractError):
        quant.prepare_weight("w", w, sf, use=use)
