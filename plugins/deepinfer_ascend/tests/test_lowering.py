"""Every kernel lowers for Ascend 950 without a device, calls what is known, and consists of what it did before.

``python -m deepinfer_ascend.jit.survey --json golden_kernels.json`` writes the golden file.
"""

import json
from pathlib import Path

import pytest

from deepinfer_ascend.chip import L1_BYTES, UB_BYTES
from deepinfer_ascend.jit import registry
from deepinfer_ascend.jit.lowering import lowered, signature
from deepinfer_ascend.jit.registry import SIZES, factories, tasks
from deepinfer_ascend.jit.structure import structure, unknown
from deepinfer_ascend.jit.survey import label

pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
GOLDEN = json.loads((Path(__file__).parent / "golden_kernels.json").read_text())
FIRST = [(name, listed[0]) for name, listed in SIZES.items()]
OTHERS = [task for task in tasks() if task not in FIRST]


def test_every_factory_has_sizes_and_a_golden_structure():
    assert set(factories()) == set(SIZES)
    assert set(GOLDEN) == {label(*task) for task in tasks() if task[0] not in registry.DOES_NOT_LOWER}


def check(name, sizes):
    kernel = lowered(name, **sizes)
    assert unknown(kernel) == []
    assert structure(kernel) == GOLDEN[label(name, sizes)]
    assert max(structure(kernel)["threads"], default=0) <= 1024


@pytest.mark.parametrize(("name", "sizes"), FIRST, ids=lambda value: value if isinstance(value, str) else "")
def test_a_kernel_lowers_and_is_what_it_was(name, sizes):
    check(name, sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), OTHERS, ids=str)
def test_a_kernel_of_the_released_sizes_lowers_and_is_what_it_was(name, sizes):
    check(name, sizes)


def test_signatures_are_read_from_the_source():
    source = 'extern "C" __global__ __vector__ void go_kernel(__gm__ const bfloat16_t* x, int32_t rows) {'
    entry, arguments = signature(source)
    assert entry == "go_kernel"
    assert [(a.name, a.ctype, a.is_pointer) for a in arguments] == [
        ("x", "bfloat16_t", True),
        ("rows", "int32_t", False),
    ]


def test_sizes_of_the_shim_are_those_of_the_chip():
    text = (Path(registry.__file__).parents[1] / "emulation/shim/tl_templates/ascend/common.h").read_text()
    assert f"Memory<{UB_BYTES >> 10} * 1024> UB" in text
    assert f"Memory<{L1_BYTES >> 10} * 1024> L1" in text
