"""The table of what an emulation covers is that of the code, on the page and in the op table."""

from pathlib import Path

import pytest

from deepinfer_ascend.backend import op_table
from deepinfer_ascend.coverage import EQUIVALENT, SIZES, coverage, page_table
from deepinfer_ascend.vendor.table import TABLE

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "ascend.md"


def test_an_op_with_a_bound_kernel_is_one_of_ours_and_has_its_sizes_told():
    bound = {op for symbol in TABLE.values() for op in symbol.ops}
    assert {op for op, how, _ in coverage() if how == EQUIVALENT} == set(SIZES) == bound
    assert bound <= set(op_table())


@pytest.mark.skipif(not PAGE.is_file(), reason="without the sources of the documentation")
def test_the_page_has_the_table():
    assert page_table() in PAGE.read_text(), "python -m deepinfer_ascend.coverage prints what belongs there"
