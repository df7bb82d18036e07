"""What the backend tells ``deepinfer doctor``."""

from __future__ import annotations

import sys

from deepinfer_cpu.doctor import checks


def test_checks_with_torch_name_its_version_and_instructions():
    import torch

    library, threads = checks()
    assert (library.name, library.status) == ("torch", "ok")
    assert library.detail.startswith(f"{torch.__version__}, instructions ")
    assert (threads.name, threads.status) == ("threads", "ok")


def test_checks_with_a_torch_that_cannot_be_imported_are_a_problem_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    library, threads = checks()
    assert (library.status, library.remedy) == ("problem", "pip install --force-reinstall 'torch>=2.13,<2.15'")
    assert library.detail.startswith("torch cannot be imported: ModuleNotFoundError: ")
    assert threads.status == "ok"
