"""What the plugin takes from ``torch.npu`` and torch-npu's library: names, signatures, variables, words of errors."""

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checked import PROPERTIES, Checked

from deepinfer_ascend import backend, device
from deepinfer_ascend.device import environment, faults
from deepinfer_ascend.device.environment import RuntimeEnvironment
from deepinfer_ascend.device.queues import Queues
from deepinfer_core.interfaces import cpu_backend

NOT_TORCH_NPU = {"TILELANG_DEFAULT_TARGET", "HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE"}
"""Variables that other libraries read: TileLang, and HCCL itself."""
SOURCES = [Path(inspect.getfile(backend)), *sorted(Path(inspect.getfile(device)).parent.glob("*.py"))]
HOLDERS = {"module", "_module"}
"""Names of what holds ``torch.npu`` in those."""


@pytest.fixture(scope="module")
def npu(torch_npu):
    """``torch.npu``, after a backend was made, recorded an event, captured a call, copied, and was closed."""
    made = Checked(torch.npu)
    environ = RuntimeEnvironment({})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_runtime_module", lambda: made)
        patch.setattr(backend, "cpu_backend", lambda on: cpu_backend())  # its tables, on the host: nothing is computed
        on_npu = backend._on_npu("npu", environ)
        on_npu.wait(on_npu.record_event())
        on_npu.capture(lambda: None)()
        queues = Queues(made, on_npu.device)
        with queues.uploading():
            queues.uploaded(SimpleNamespace(record_stream=lambda stream: None))
        with queues.downloading():
            queues.downloaded()
        on_npu.close()
    return made


def named():
    """Attributes that the sources take from ``torch.npu``."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                holder = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if holder in HOLDERS:
                    yield node.attr


def test_everything_that_the_sources_take_was_taken_here_and_checked(npu):
    assert set(named()) == {name for name in npu.used if "." not in name}


def test_the_record_of_a_device_has_what_is_read(torch_npu):
    assert set(PROPERTIES) <= set(dir(torch_npu._C._NPUDeviceProperties))


def test_the_check_sees_what_is_not_there_and_what_is_called_wrongly(torch_npu):
    checked = Checked(torch.npu)
    with pytest.raises(AttributeError, match="graph_handle"):
        _ = checked.graph_handle
    with pytest.raises(TypeError, match="graph: got an unexpected keyword argument 'error_mode'"):
        checked.graph(checked.NPUGraph(), error_mode="thread_local")
    with pytest.raises(TypeError, match=r"Event\.record: too many positional arguments"):
        checked.Event().record("compute", 1)


@pytest.fixture(scope="module")
def library(torch_npu):
    """The bytes of torch-npu's own library."""
    return (Path(torch_npu.__file__).parent / "lib" / "libtorch_npu.so").read_bytes()


def test_variables_that_are_set_are_ones_that_torch_npu_reads(library):
    for name in environment.SETTINGS.keys() - NOT_TORCH_NPU:
        assert name.encode() in library, name


def test_words_of_errors_are_words_of_torch_npu(library):
    for words in (faults.NO_PINNED, *faults.NO_MEMORY, *faults.OF_DEVICE):
        assert words.encode() in library, words


def test_hccl_is_a_backend_of_process_groups(torch_npu):
    assert "hccl" in torch.distributed.Backend.backend_list
