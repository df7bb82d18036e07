"""Every factory lowers: here its first case, for one of the architectures; session ``kernels`` does all, with nvcc."""

import re

import pytest

from deepinfer_cuda.jit.native_output import native_output, races
from deepinfer_cuda.jit.registry import areas, factories

ARCHES = ("sm_90a", "sm_100a")
SLICE = [(factory, ARCHES[index % 2]) for index, factory in enumerate(factories())]


@pytest.mark.parametrize(("factory", "arch"), SLICE, ids=lambda value: getattr(value, "name", value))
def test_first_case_lowers(factory, arch):
    with native_output() as told:
        source = factory.lower(arch, **factory.cases[0])
    assert "__global__" in source
    assert races(told) == []


def test_every_area_has_a_factory():
    assert [area for area in areas() if not factories(area)] == []


def test_sums_that_other_blocks_send_have_memory_of_their_own():
    """They may come while this block still multiplies, which the compiler of the language does not know."""
    [source] = [f.lower("sm_90a", **f.cases[0]) for f in factories("dense") if f.name == "dense_rows"]
    begins = {name: int(at) for name, at in re.findall(r"void\* (\w+) = .*? \+ (\d+)\)\)", source)}
    assert {"pieces", "packed", "xs"} <= set(begins)
    following = min((at for at in begins.values() if at > begins["pieces"]), default=1 << 30)
    assert following - begins["pieces"] >= 64 * 8 * 4
    assert len(set(begins.values())) == len(begins)
