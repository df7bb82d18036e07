"""Several ranks are refused with a remedy, before anything of HCCL is asked for."""

import pytest
import torch
from emulated_backend import emulated, rows

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import NotSupported, UnsupportedFeature

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("kind", ["dp", "cp", "ep"])
def test_an_engine_of_several_ranks_is_refused(kind):
    with pytest.raises(NotSupported) as caught:
        EngineConfig.resolve({"backend": "ascend", kind: 2}, environ={})
    assert caught.value.details == {kind: 2}
    assert caught.value.remedy == f"leave --{kind} out, and start one engine per device"


def test_dispatch_to_a_group_is_refused():
    made = emulated()
    idx, weight = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
    with pytest.raises(UnsupportedFeature, match="expert groups over several devices") as caught:
        made.ops["moe.dispatch"](rows(3, 64), idx, weight, group="ep")
    assert caught.value.remedy == "leave 'group' unset, and run with --ep 1"
    made.close()
