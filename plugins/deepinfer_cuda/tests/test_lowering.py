"""Every factory lowers: here its first case, for one of the architectures; session ``kernels`` does all, with nvcc."""

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
