"""The decorator, the caches and warm-up, without a device."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from doubling_kernel import doubled

from deepinfer_core.errors import BackendUnavailable
from deepinfer_cuda.jit import compiling, folder, kernel, survey, tasks, toolkit, warm
from deepinfer_cuda.jit.native_output import native_output, races
from deepinfer_cuda.jit.telling import Telling


def test_lower_gives_source_of_each_arch_without_a_device():
    for arch in ("sm_90a", "sm_100a"):
        source = doubled.lower(arch, width=256)
        assert 'extern "C" __global__ void' in source
        assert "doubled_kernel" in source


def test_cases_are_kept_for_warm_up():
    assert doubled.cases == ({"width": 256}, {"width": 64, "threads": 32})


def test_a_case_with_an_unknown_parameter_is_refused_at_import():
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'height'"):

        @kernel(cases=[{"height": 3}])
        def wrong(*, width: int = 1):
            raise NotImplementedError


def test_a_positional_parameter_is_refused_at_import():
    with pytest.raises(TypeError, match="parameter width must be keyword-only"):

        @kernel(cases=[{"width": 3}])
        def wrong(width: int):
            raise NotImplementedError


def test_no_cases_are_refused_at_import():
    with pytest.raises(TypeError, match="give at least one case"):

        @kernel(cases=[])
        def wrong(*, width: int):
            raise NotImplementedError


def test_call_with_equal_parameters_compiles_once(monkeypatch):
    loaded = []

    def load(label, program, *, arch, pass_configs):
        loaded.append((label, arch))
        return lambda *tensors: tensors

    monkeypatch.setattr(compiling, "load", load)
    monkeypatch.setattr("deepinfer_cuda.jit.factory.current_arch", lambda: "sm_90a")
    factory = kernel(cases=[{"width": 8}])(doubled.make)
    assert factory(width=8, threads=32) is factory(width=8, threads=32)
    assert factory(width=32, threads=8) is not factory(width=8, threads=32)
    assert loaded == [("doubled(width=8, threads=32)", "sm_90a"), ("doubled(width=32, threads=8)", "sm_90a")]


def test_first_use_says_that_it_compiles_and_then_how_many_but_not_of_kernels_that_were_kept():
    said, now = [], [100.0]
    telling = Telling(said.append, lambda: now[0])
    telling.had("kept(width=8)", "sm_90a", 0.05)
    assert said == []
    for at, name in ((100.0, "first"), (103.0, "second"), (114.9, "third"), (115.0, "fourth"), (118.0, "fifth")):
        now[0] = at
        telling.had(f"{name}(width=8)", "sm_90a", 3.0)
    assert len(said) == 2
    assert "python -m deepinfer_cuda.jit.warm" in said[0]
    assert "sm_90a" in said[0]
    assert said[1] == "deepinfer: 4 kernels compiled so far, the last one fourth(width=8)"


def test_a_slow_compilation_is_told_on_standard_error(monkeypatch, capfd):
    built = SimpleNamespace(adapter=SimpleNamespace(get_exportable_executable=lambda: SimpleNamespace(main=print)))
    seconds = iter((0.0, 4.0))
    monkeypatch.setattr(compiling, "build", lambda *_: built)
    monkeypatch.setattr(compiling, "_TELLING", Telling())
    monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    compiling.load("doubled(width=512)", None, arch="sm_90a", pass_configs={})
    out, err = capfd.readouterr()
    assert "compiling kernels for sm_90a" in err
    assert not out


def test_folder_is_versioned_by_tilelang_compiler_and_arch(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPINFER_CUDA_CACHE", str(tmp_path))
    monkeypatch.setattr(folder, "toolkit_version", lambda: "13.0")
    assert folder.cache_folder("sm_90a") == tmp_path / f"tilelang-{folder.tilelang_version()}" / "cuda-13.0" / "sm_90a"


def test_folder_without_a_compiler_is_that_of_the_newest_carried_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPINFER_CUDA_CACHE", str(tmp_path))
    monkeypatch.setattr(folder, "toolkit_version", lambda: "")
    carried = tmp_path / f"tilelang-{folder.tilelang_version()}"
    for name in ("cuda-9.9/sm_90a", "cuda-13.0/sm_90a", "cuda-14.0/sm_100a"):
        (carried / name).mkdir(parents=True)
    assert folder.cache_folder("sm_90a") == carried / "cuda-13.0" / "sm_90a"
    assert folder.cache_folder("sm_103a") == carried / "cuda-none" / "sm_103a"


def test_host_compiler_of_two_words_is_not_taken(monkeypatch):
    monkeypatch.setenv("CXX", "ccache g++")
    assert " " not in toolkit.host_compiler()


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_build_puts_the_kernel_into_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPINFER_CUDA_CACHE", str(tmp_path))
    doubled.build("sm_90a", width=256)
    assert list(tmp_path.glob("tilelang-*/cuda-*/sm_90a/**/*.so"))


CARRIED = """
import sys
sys.path.insert(0, {tests!r})
from doubling_kernel import doubled
from deepinfer_core.errors import BackendUnavailable
from deepinfer_cuda.jit import compiling, folder, toolkit
if sys.argv[1] == "without":
    import tilelang.contrib.nvcc
    def absent():
        raise RuntimeError("no compiler on this machine")
    tilelang.contrib.nvcc.get_nvcc_compiler = absent
    for module in (compiling, folder, toolkit):
        module.toolkit_version = lambda: ""
    toolkit.nvcc = lambda: ""
try:
    doubled.build("sm_90a", width=256)
except BackendUnavailable as exc:
    print(exc.reason)
else:
    print("there")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_carried_kernels_need_no_compiler_and_damaged_ones_are_compiled_again(tmp_path):
    """Each in a process of its own: within one, TileLang has kernels in its memory."""

    def child(compilers):
        env = {**os.environ, "DEEPINFER_CUDA_CACHE": str(tmp_path)}
        text = CARRIED.format(tests=str(Path(__file__).parent))
        command = [sys.executable, "-c", text, compilers]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
        return done.stdout.splitlines()[-1]  # TileLang logs that it found a damaged entry

    assert child("with") == "there"
    [entry] = tmp_path.glob("**/executable.so")
    whole = entry.read_bytes()
    assert child("without") == "there"
    assert entry.read_bytes() == whole
    entry.write_bytes(whole[:1000])
    assert child("with") == "there"
    assert len(entry.read_bytes()) == len(whole)


def test_build_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPINFER_CUDA_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "toolkit_version", lambda: "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tilelang.contrib.nvcc.get_nvcc_compiler", lambda: str(tmp_path / "nvcc"))
    with pytest.raises(BackendUnavailable) as caught:
        doubled.build("sm_90a", width=512)
    assert "kernel doubled(width=512) cannot be compiled for sm_90a" in str(caught.value)


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_survey_tells_registers_and_spills():
    found = survey.compile_source(doubled.lower("sm_90a", width=64, threads=32), "sm_90a")
    assert not found.failure
    assert 0 < found.registers <= 255
    assert found.spill_bytes == 0


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_survey_tells_the_first_error_of_a_source_that_does_not_compile():
    found = survey.compile_source("__global__ void f() { return 3; }", "sm_90a")
    assert "does not compile" in found.failure
    assert "error" in found.failure


def test_survey_tells_that_a_case_does_not_lower(monkeypatch):
    def refuse(*, width):
        raise ValueError(f"width {width} is odd")

    monkeypatch.setattr("deepinfer_cuda.jit.registry.find", lambda module, name: kernel(cases=[{"width": 3}])(refuse))
    task = tasks.Task("module", "refuse", 0, "sm_90a", "refuse(width=3)")
    assert survey.look_at(task).failure == "does not lower: ValueError: width 3 is odd"
    assert warm.compile_one(task) == (
        "kernel refuse(width=3) cannot be made for sm_90a\n  reason: ValueError: width 3 is odd"
    )


def test_warm_up_names_the_areas_for_an_unknown_one():
    done = CliRunner().invoke(warm.main, ["--area", "atention", "--arch", "sm_90a"])
    assert done.exit_code == 2
    assert "no area 'atention'; there are " in done.output


def test_warm_up_without_a_device_asks_for_an_architecture(monkeypatch):
    monkeypatch.setattr(warm, "arches_here", list)
    done = CliRunner().invoke(warm.main, [])
    assert done.exit_code == 2
    assert "no supported device here: name architectures with --arch" in done.output


def test_what_cpp_writes_is_caught_and_the_rest_goes_on():
    with native_output() as told:
        os.write(2, b"Warning: [ThreadSync] Hoisting sync ... so the race remains.\nWarning: other\n")
    assert races(told) == ["Warning: [ThreadSync] Hoisting sync ... so the race remains."]
    with native_output() as again:
        pass
    assert again == []


def test_survey_fails_a_kernel_with_a_race(monkeypatch):
    def lower(arch, **params):
        os.write(2, b"Warning: the race remains\n")
        return "source"

    racing = SimpleNamespace(lower=lower, cases=({},), pass_configs={})
    monkeypatch.setattr("deepinfer_cuda.jit.registry.find", lambda module, name: racing)
    task = tasks.Task("module", "racing", 0, "sm_90a", "racing()")
    assert survey.look_at(task).failure == "has a race: Warning: the race remains"
