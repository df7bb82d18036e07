"""What a message of torch-npu stands for: memory of the device or of the host, the device itself, or none of it."""

import pytest
import torch

from deepinfer_ascend.device.faults import typed
from deepinfer_core.errors import CapacityError, DeviceLost

MESSAGES = {
    "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 128.00 GiB total)": (CapacityError, "the device has"),
    "Malloc pin memory failed, host out of memory, Rried to allocate size: 65536": (CapacityError, "the host has"),
    "synchronize_and_throw: NPU function error: AclrtSynchronizeStream, error code is 507015": (DeviceLost, ""),
    "ACL stream synchronize failed, error code:507014": (DeviceLost, ""),
    "HBM MULTI BIT ECC ERROR.": (DeviceLost, ""),
    "EZ9999: Inner Error!": (DeviceLost, ""),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_gives_its_error_with_the_op_and_a_remedy(message):
    kind, what = MESSAGES[message]
    found = typed("gemm.dense", RuntimeError(message + "\nmore"))
    assert type(found) is kind
    assert what in found.what
    assert (found.reason, found.details["op"]) == (message, "gemm.dense")
    assert found.remedy


def test_torchs_own_error_of_memory_is_one():
    assert isinstance(typed("x", torch.OutOfMemoryError("whatever")), CapacityError)


def test_another_error_is_none_of_the_device():
    assert typed("x", RuntimeError("call aclnnAdd failed, detail: shapes do not fit")) is None
