"""The ops of the backend: all that are required, its own, called as the op table says (``spec/kernels.md`` 3.1)."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from deepinfer_contracts import OPS
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.subject import Subject

pytestmark = pytest.mark.level("smoke")


def test_required_ops_are_there(backend: Any) -> None:
    lacking = [op for op, record in OPS.items() if record.required and op not in backend.ops]
    require(not lacking, "required ops are missing", got=lacking)


def test_ops_are_known_and_callable(backend: Any) -> None:
    unknown = sorted(op for op in backend.ops if op not in OPS)
    require(not unknown, "ops that the op table does not have", got=unknown)
    wrong = sorted(op for op, call in backend.ops.items() if not callable(call))
    require(not wrong, "ops that are not callable", got=wrong)


def test_claimed_ops_are_there(backend: Any, subject: Subject) -> None:
    claimed = [claim.removeprefix("op:") for claim in subject.claims if claim.startswith("op:")]
    lacking = sorted(op for op in claimed if op not in backend.ops)
    require(not lacking, "claimed ops are missing", got=lacking)


def test_optional_ops_that_nobody_fills_in_are_claimed(backend: Any, subject: Subject) -> None:
    """What is there and not claimed is never chosen, and never tested."""
    optional = {op for op, record in OPS.items() if not record.required and not record.default}
    surplus = sorted(op for op in optional if op in backend.ops and f"op:{op}" not in subject.claims)
    require(not surplus, "ops are there that the manifest does not claim", got=surplus)


def test_op_groups_hold_the_same_ops(backend: Any) -> None:
    for op in OPS:
        group, _, name = op.partition(".")
        missing = object()
        held = getattr(getattr(backend, group, None), name, missing)
        if held is missing:
            fail("an op is no attribute of its group; an optional one that is not there is None", op=op)
        require(held is backend.ops.get(op), "the attribute of the group is another object than the op", op=op)


def test_plan_says_who_provides_each_op(backend: Any, subject: Subject) -> None:
    require_equal(sorted(backend.plan), sorted(backend.ops), "the plan lists other ops than the backend has")
    for op, provider in backend.plan.items():
        require(isinstance(provider, str) and provider, "the plan names no provider", op=op, got=repr(provider))
    if set(subject.record.table.arch) == {"cpu"}:  # it runs on the processor and may leave ops to cpu; the plan says so
        return
    filled = sorted(op for op, record in OPS.items() if record.required and backend.plan[op] == "deepinfer-cpu")
    if backend.capabilities.emulated:  # so does an emulation, and whoever reads a report of it has to be told
        told = set(re.findall(r"\w+\.\w+", backend.capabilities.notes))
        unsaid = [op for op in filled if op not in told]
        require(not unsaid, "required ops are those of deepinfer-cpu, and capabilities.notes are silent", got=unsaid)
    else:
        require(not filled, "required ops are those of deepinfer-cpu, not of this backend", got=filled)


@pytest.mark.parametrize("op", sorted(OPS))
def test_op_has_the_signature_of_the_table(backend: Any, op: str) -> None:
    call = backend.ops.get(op)
    if call is None:
        pytest.skip(f"not offered: op:{op}")
    try:
        ours = inspect.signature(call)
    except (TypeError, ValueError) as exc:
        fail("the op has no signature that can be read; give it __signature__", op=op, got=str(exc))
    expected = _parameters(OPS[op].signature)
    given = [
        parameter
        for parameter in ours.parameters.values()
        if parameter.name in {name for name, _, _ in expected} or not _may_be_added(parameter)
    ]
    got = [(p.name, p.kind is p.KEYWORD_ONLY, "" if p.default is p.empty else repr(p.default)) for p in given]
    if got != expected:
        plain = [parameter.replace(annotation=parameter.empty) for parameter in given]
        fail("the op is called in another way", op=op, got=str(inspect.Signature(plain)), expected=OPS[op].signature)


def _may_be_added(parameter: inspect.Parameter) -> bool:
    """A keyword of the backend's own, which nobody has to give."""
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty


def _parameters(signature: str) -> list[tuple[str, bool, str]]:
    """(name, whether by keyword only, default as text) of each parameter of a signature of the table."""
    import ast

    function = ast.parse(f"def op{signature}: ...").body[0]
    if not isinstance(function, ast.FunctionDef):
        raise TypeError(f"{signature!r} is no signature")
    arguments = function.args
    plain = [argument.arg for argument in arguments.args]
    missing = len(plain) - len(arguments.defaults)
    defaults = ["" if place < missing else _text(arguments.defaults[place - missing]) for place in range(len(plain))]
    result = [(name, False, default) for name, default in zip(plain, defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        result.append((argument.arg, True, "" if default is None else _text(default)))
    return result


def _text(node: Any) -> str:
    """A default as ``repr`` writes the value."""
    import ast

    try:
        return repr(ast.literal_eval(node))
    except ValueError:  # a name, such as torch.bfloat16
        return ast.unparse(node)
