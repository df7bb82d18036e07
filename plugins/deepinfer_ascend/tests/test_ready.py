"""What lowered kernels need is asked for before anything is loaded, and each lack has its remedy."""

import importlib.util
import shutil

import pytest
from emulated_backend import emulated

from deepinfer_ascend.jit import serving
from deepinfer_ascend.jit.ready import require_tools
from deepinfer_core.errors import BackendUnavailable, ConfigError, VendorImportError

pytestmark = pytest.mark.emulated


@pytest.fixture
def asked(monkeypatch, tmp_path):
    monkeypatch.setenv(serving.VARIABLE, "1")
    monkeypatch.setenv("DEEPINFER_ASCEND_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("CXX", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "tilelang" else found(name))


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_all_that_is_needed_is_taken_and_the_folder_is_made(asked, tmp_path):
    require_tools()
    assert list((tmp_path / "kernels").iterdir()) == []


def test_without_tilelang_the_extra_is_named(asked, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VendorImportError, match="TileLang") as refused:
        emulated()
    assert "deepinfer-ascend[kernels]" in refused.value.remedy


def test_without_a_compiler_it_is_named(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable) as refused:
        emulated()
    assert refused.value.reason == "g++ is not on PATH, and CXX is not set"
    assert "g++" in refused.value.remedy


@pytest.mark.parametrize(("compiler", "said"), [("/bin/false", "exit status 1"), ("/nowhere/g++", "FileNotFoundError")])
def test_a_compiler_that_does_not_work_says_so(asked, monkeypatch, compiler, said):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BackendUnavailable) as refused:
        emulated()
    assert said in refused.value.reason


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_folder_that_cannot_be_written_is_named(asked, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPINFER_ASCEND_CACHE", str(tmp_path / "file" / "kernels"))
    with pytest.raises(ConfigError, match="cannot be kept") as refused:
        emulated()
    assert "DEEPINFER_ASCEND_CACHE" in refused.value.remedy
