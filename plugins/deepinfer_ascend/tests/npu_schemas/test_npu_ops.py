"""Each operator of torch-npu that the plugin calls: its schema is that of the equivalent and takes what the plugin
passes, and its shape function gives the shape and dtype that the equivalent gives."""

import inspect

import pytest
import torch
from emulated_backend import emulated, fp4_weight, fp8_weight, rows

from deepinfer_ascend import emulation, vendor
from deepinfer_ascend.vendor.table import TABLE

OURS = {name: symbol for name, symbol in TABLE.items() if symbol.module == "torch_npu"}
KINDS = {False: inspect.Parameter.POSITIONAL_OR_KEYWORD, True: inspect.Parameter.KEYWORD_ONLY}
PRIVATE = {"npu_format_cast": "_npu_format_cast"}
"""Operators without a shape function of their own -> the one that does their work, which has it."""


@pytest.fixture(scope="module")
def calls():
    """(symbol, arguments, options, result) of every call of the vendor's library, weights in all forms prepared."""
    made, found = emulated(), []
    symbol = vendor.symbol

    def recording(name, of):
        call = symbol(name, of)

        def recorded(*arguments, **options):
            result = call(*arguments, **options)
            found.append((name, arguments, options, result))
            return result

        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor, "symbol", recording)
        prepare = made.quant.prepare_weight
        for pair in (fp8_weight(), fp4_weight(), (rows(192, 256), None)):
            _ = prepare("w", *pair).matrix  # back from NZ
            values, scales = ([item] * 2 for item in pair)
            prepare("w", values, None if pair[1] is None else scales, use="experts")
            prepare("w", *pair, use="heads:2")
    made.close()
    return [call for call in found if call[0] in OURS]


def schema(symbol):
    return getattr(torch.ops.npu, symbol.attribute).default._schema


def told(arguments):
    return [(a.name, KINDS[a.kwarg_only], a.default_value if a.has_default_value() else None) for a in arguments]


@pytest.mark.parametrize("name", OURS)
def test_a_bound_operator_exists(torch_npu, name):
    assert callable(getattr(torch_npu, OURS[name].attribute))
    assert schema(OURS[name]).name == f"npu::{OURS[name].attribute}"


@pytest.mark.parametrize("name", OURS)
def test_the_equivalent_has_the_names_kinds_and_defaults_of_the_schema(torch_npu, name):
    empty = inspect.Parameter.empty
    mine = inspect.signature(emulation._found(name)).parameters.values()
    found = [(p.name, p.kind, None if p.default is empty else p.default) for p in mine]
    assert found == told(schema(OURS[name]).arguments)


def test_every_bound_operator_is_called(torch_npu, calls):
    assert {name for name, *_ in calls} == set(OURS)
    stored = {(arguments[0].dtype, len(arguments[0].shape)) for _, arguments, *_ in calls}
    assert stored >= {(t, n) for t in (torch.float8_e4m3fn, torch.uint8, torch.bfloat16) for n in (2, 3)}


def meta(value):
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if hasattr(value, "dtype") else value


def test_every_call_is_one_that_the_schema_takes(torch_npu, calls):
    """By torch's own parser: it refuses an argument before it looks for a kernel, and finds none for meta tensors."""
    for name, arguments, options, _ in calls:
        given = [meta(argument) for argument in arguments]
        with pytest.raises(NotImplementedError, match="there was no fake impl or Meta kernel registered"):
            getattr(torch_npu, OURS[name].attribute)(*given, **options)
        with pytest.raises(RuntimeError, match="Unknown keyword argument 'no_such'"):
            getattr(torch_npu, OURS[name].attribute)(*given, no_such=1)


def test_shape_functions_give_what_the_equivalents_give(torch_npu, calls):
    for name, arguments, options, result in calls:
        attribute = OURS[name].attribute
        shaped = getattr(torch.ops.npu, PRIVATE.get(attribute, attribute)).default(*map(meta, arguments), **options)
        assert (tuple(shaped.shape), shaped.dtype) == (tuple(result.shape), result.dtype)
