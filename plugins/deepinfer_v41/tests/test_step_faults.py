"""An op that fails in a step names the layer that called it."""

from __future__ import annotations

from typing import Any

import pytest
from test_config_variants import varied
from v41_models import make_driver
from v41_tiny import prompt

from deepinfer_core.errors import CapacityError


def test_a_typed_error_of_an_op_gets_the_number_of_its_layer() -> None:
    driver = make_driver(varied("released-formats"), "released")
    blocks: Any = driver.model._blocks

    def full(*_: Any) -> Any:
        raise CapacityError("moe.experts: the device has no memory left", details={"op": "moe.experts"})

    driver.model._blocks = [*blocks[:3], full, *blocks[4:]]
    with pytest.raises(CapacityError) as caught:
        driver.all_logits(prompt(9, seed=3))
    assert caught.value.details == {"op": "moe.experts", "layer": 3}
