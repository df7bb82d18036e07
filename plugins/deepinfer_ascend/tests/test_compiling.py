"""Kernels for a device, up to their launch: with programs in place of ``bisheng`` and its linker."""

import os
import shlex
import sys

import pytest
import torch

from deepinfer_ascend.jit import compiling, hosted, survey
from deepinfer_ascend.jit.compiling import Compiled, compiled
from deepinfer_ascend.jit.lowering import Lowered, lowered
from deepinfer_ascend.jit.placing import on_its_device, wanted_on_device
from deepinfer_core.errors import EngineError, ShapeContractError, VendorImportError

SIZES = {"width": 32}
FAKE = """#!{python}
import shutil, sys
with open({log!r}, "a") as log:
    log.write({name!r} + " " + " ".join(sys.argv[1:]) + "\\n")
out = sys.argv[sys.argv.index("-o") + 1]
if {broken!r}:
    print("tl_kernel.asc:3:1: error: no such intrinsic"); sys.exit(1)
for argument in sys.argv[1:]:
    if argument.endswith(".asc"):
        shutil.copy(argument, {source!r})
open(out, "wb").write(b"code of the chip")
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """``tools(broken=False)`` puts the two programs on PATH; ``tools.log``, ``tools.source``: what they were given."""
    pytest.importorskip("tilelang", reason="TileLang is not installed")

    def put(broken=False):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("bisheng", "ld.lld"):
            program = folder / name
            log, source = str(tmp_path / "log"), str(tmp_path / "source")
            program.write_text(FAKE.format(python=sys.executable, name=name, log=log, source=source, broken=broken))
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    for name in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    import tilelang

    monkeypatch.setattr(tilelang.env, "TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    tilelang.disable_cache()
    compiling._compiled.cache_clear()
    put.log, put.source = tmp_path / "log", tmp_path / "source"
    yield put
    compiling._compiled.cache_clear()
    tilelang.enable_cache()


def test_a_kernel_is_compiled_and_linked_for_the_chip_from_the_lowered_source(tools):
    tools()
    made = compiled("ring_indices", SIZES)
    assert made.arguments == ("start_length", "out", "ring")
    compile_, link = map(shlex.split, tools.log.read_text().splitlines())
    assert compile_[0] == "bisheng"
    assert {"--npu-arch=dav-3510", "--cce-aicore-only", "-O2"} <= {*compile_}
    assert link[:3] == ["ld.lld", "-m", "aicorelinux"]
    entry = lowered("ring_indices", **SIZES).entry
    assert f"void {entry}(" in tools.source.read_text()
    assert compiled("ring_indices", SIZES) is made

    host = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, 32, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="start_length device_type mismatch, expected ext_dev"):
        made(start_length=host[0], out=host[1], ring=8, rows=4)  # the host code of the kernel says so: it came that far


def test_what_bisheng_refuses_is_told_in_its_words(tools):
    tools(broken=True)
    with pytest.raises(EngineError, match="ring_indices cannot be compiled for the device") as caught:
        compiled("ring_indices", SIZES)
    assert caught.value.reason == "tl_kernel.asc:3:1: error: no such intrinsic"


def test_without_bisheng_the_error_names_it_and_the_remedy(tools, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VendorImportError) as caught:
        compiled("ring_indices", SIZES)
    assert caught.value.reason.startswith("bisheng, ld.lld, a C++ compiler not found")
    assert "source set_env.sh of CANN" in caught.value.remedy
    assert "DEEPINFER_ASCEND_LOWERED=0" in caught.value.remedy


def test_arguments_go_by_their_place_and_sizes_are_left_out():
    seen = []
    Compiled("k", lambda *given: seen.append(given), ("x", "out", "eps"))(eps=3, out=2, x=1, rows=9)
    assert seen == [(1, 2, 3)]
    with pytest.raises(ShapeContractError, match="no out"):
        Compiled("k", print, ("x", "out"))(x=1)


def test_the_survey_compiles_what_lowers_and_tells_what_bisheng_refuses(monkeypatch):
    kernel = Lowered("rms_rows", 'extern "C" __global__ __vector__ void k(float a) {}', "k", (), 0.5)
    refusal = EngineError(
        "the kernel k cannot be compiled for the device", reason="error: no such intrinsic", remedy="x"
    )

    def compiled(name, sizes):
        if sizes["width"] == 2:
            raise refusal

    monkeypatch.setattr(survey, "tasks", lambda: [("rms_rows", {"width": 1}), ("rms_rows", {"width": 2})])
    monkeypatch.setattr(survey, "lowered", lambda name, **sizes: kernel)
    monkeypatch.setattr(survey, "structure", lambda kernel: {})
    monkeypatch.setattr(survey, "unknown", lambda kernel: [])
    monkeypatch.setattr(survey, "compiled", compiled)
    assert survey.survey()[1] == []
    found, problems, _ = survey.survey(compile_too=True)
    assert [*found] == ["rms_rows(width=1)", "rms_rows(width=2)"]
    assert problems == ["rms_rows(width=2) does not compile: error: no such intrinsic"]


def test_a_kernel_with_tensors_of_a_device_is_launched_there(monkeypatch):
    ran = []
    monkeypatch.setattr(hosted, "compiled", lambda name, sizes: lambda **given: ran.append((name, sizes, [*given])))
    kernel = Lowered("k", "", "k", (), 0.0, (("width", 32),))
    assert hosted.run(kernel, 2, x=torch.zeros(2, device="meta"), rows=2) == {}
    assert ran == [("k", {"width": 32}, ["x", "rows"])]


def test_what_an_op_makes_lies_on_the_device_of_what_it_gets():
    made = on_its_device(lambda x, shape: torch.empty(shape))
    assert made(torch.zeros(1), 3).device.type == "cpu"
    assert made(torch.zeros(1, device="meta"), 3).device.type == "meta"
    assert made(None, 3).device.type == "cpu"


@pytest.mark.parametrize(
    ("asked", "there", "serves"),
    [("", True, True), ("", False, False), ("0", True, False), ("1", True, True), ("1", False, None)],
)
def test_kernels_serve_on_a_device_where_they_can_be_compiled_or_are_asked_for(
    monkeypatch, tmp_path, asked, there, serves
):
    monkeypatch.setattr("deepinfer_ascend.jit.toolchain.find_spec", lambda name: object())
    for name in ("bisheng", "ld.lld", "g++") if there else ():
        (tmp_path / name).touch()
    environ = {"PATH": str(tmp_path), **({"DEEPINFER_ASCEND_LOWERED": asked} if asked else {})}
    if serves is None:
        with pytest.raises(VendorImportError, match="cannot be compiled for the device"):
            wanted_on_device(environ)
    else:
        assert wanted_on_device(environ) is serves
