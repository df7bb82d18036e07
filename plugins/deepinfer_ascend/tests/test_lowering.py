"""Every kernel lowers for Ascend 950 without a device, calls what is known, and consists of what it did before.

``python -m deepinfer_ascend.jit.survey --json golden_kernels.json`` writes the golden file.
"""

import ast
import sys
from pathlib import Path

import pytest
from executed import GOLDEN, look_at

import deepinfer_ascend.chip as chip_module
import deepinfer_ascend.jit.lowering as lowering_module
import deepinfer_core.caches.formats as formats_module
from deepinfer_ascend.chip import L0C_BYTES, L1_BYTES, UB_BYTES, UB_BYTES_SIMT
from deepinfer_ascend.jit import registry
from deepinfer_ascend.jit.lowering import Lowered, kernel_files, signature
from deepinfer_ascend.jit.registry import SIZES, factories, tasks
from deepinfer_ascend.jit.structure import pipes, too_large, unknown
from deepinfer_ascend.jit.survey import label

pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
SHIPPED = Path(registry.__file__).parents[1]
"""The package."""


def test_every_factory_has_sizes_and_a_golden_structure():
    assert set(factories()) == set(SIZES)
    assert set(GOLDEN) == {label(*task) for task in tasks() if task[0] not in registry.DOES_NOT_LOWER}


def test_a_kernel_is_made_again_where_a_module_that_it_uses_changes():
    """What it uses is found here in the imported modules, and from their text by what makes the digest."""
    chip, formats, lowering = (Path(module.__file__) for module in (chip_module, formats_module, lowering_module))
    for name, factory in factories().items():
        used, left = set(), {factory.__module__}
        while left:
            used |= left
            parts = [part for module in left for part in vars(sys.modules[module]).values()]
            named = {getattr(getattr(part, "orig_func", part), "__module__", None) or "" for part in parts}
            left = {module for module in named if module.startswith("deepinfer_ascend.tl.")} - used
        files = {Path(sys.modules[module].__file__) for module in used}
        assert files | {chip, formats, lowering} == set(kernel_files(name)), name


def held(node):
    """Buffers that an expression reads."""
    return {n.value.id for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)}


def written_in(body):
    """Buffers that statements write; a macro may write what it is given."""
    for node in (n for statement in body for n in ast.walk(statement)):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        yield from (t.value.id for t in targets if isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name))
        if isinstance(node, ast.Call):
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


@pytest.mark.parametrize(
    "path", sorted(Path(lowering_module.__file__).parents[1].glob("tl/*.py")), ids=lambda p: p.stem
)
def test_no_condition_asks_again_what_its_body_has_changed(path):
    """The passes take a condition to hold in all of its body, whatever that writes: one below it is removed."""
    conditions = (ast.If, ast.While, ast.IfExp)
    for outer in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.If | ast.While)):
        changed = held(outer.test) & set(written_in(outer.body))
        for node in (n for statement in outer.body for n in ast.walk(statement) if isinstance(n, conditions)):
            assert not held(node.test) & changed, f"line {node.lineno}: {ast.unparse(node.test)}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), tasks(), ids=str)
def test_a_kernel_lowers_and_is_what_it_was(name, sizes):
    """Tests that execute one look at it in the same way."""
    assert label(name, sizes) in GOLDEN
    look_at(name, sizes)


def written(source, **memory):
    return Lowered("hand", source, "hand_kernel", (), 0.0, memory=tuple(memory.items()))


def test_what_the_survey_refuses_is_found():
    assert unknown(written("asc_copy_gm2ub_align(a, b); made[0] = expf(x); region_0(y); (int32_t)(z);")) == ["region_0"]
    assert unknown(written("asc_copy_gm2zz(a); void region_0(int y) {} region_0(y);")) == ["asc_copy_gm2zz"]
    assert too_large(written("", UB=UB_BYTES, L1=L1_BYTES, L0C=L0C_BYTES)) == []
    found = too_large(written("asc_vf_call<region>(cce::dim3(4));", UB=UB_BYTES_SIMT + 1, L1=L1_BYTES + 1))
    assert [text.split()[3].rstrip(",") for text in found] == ["UB", "L1"]
    source = (
        "asc_sync_notify(PIPE_MTE2, PIPE_V, e); asc_sync_wait(PIPE_MTE2, PIPE_V, e); asc_sync_wait(PIPE_V, PIPE_S, e);"
    )
    assert pipes(written(source)) == {"MTE2 -> V": [1, 1], "V -> S": [0, 1]}


def test_signatures_are_read_from_the_source():
    source = 'extern "C" __global__ __vector__ void go_kernel(__gm__ const bfloat16_t* x, int32_t rows) {'
    entry, arguments = signature(source)
    assert entry == "go_kernel"
    assert [(a.name, a.ctype, a.is_pointer) for a in arguments] == [
        ("x", "bfloat16_t", True),
        ("rows", "int32_t", False),
    ]


def test_sizes_of_the_shim_are_those_of_the_chip():
    text = (SHIPPED / "emulation/shim/tl_templates/ascend/common.h").read_text()
    assert f"Memory<{UB_BYTES >> 10} * 1024> UB" in text
    assert f"Memory<{L1_BYTES >> 10} * 1024> L1" in text
