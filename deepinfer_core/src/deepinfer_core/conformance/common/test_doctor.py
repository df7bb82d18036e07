"""What the plugin says of itself to ``deepinfer doctor`` (``deepinfer_doctor_checks``)."""

from __future__ import annotations

import platform
import sys

import pytest

from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.types import DoctorCheck, HostInfo

HOST = HostInfo(os=sys.platform, machine=platform.machine(), python=platform.python_version())


@pytest.mark.level("core")
@pytest.mark.hook("deepinfer_doctor_checks")
def test_doctor_checks_are_well_formed(manager: PluginManager, subject: Subject) -> None:
    found = manager.hook(subject.record, "deepinfer_doctor_checks")
    if found is None:
        not_offered("deepinfer_doctor_checks")
    for _ in range(2):
        for checks in found(host=HOST):
            require(isinstance(checks, list | tuple), "deepinfer_doctor_checks returned no sequence", got=repr(checks))
            for check in checks:
                require(isinstance(check, DoctorCheck), "a check is no DoctorCheck", got=repr(check))
                require(check.status in ("ok", "note", "problem"), "a check has an unknown status", got=check.status)
                for name in ("name", "detail"):
                    text = getattr(check, name)
                    one_line = isinstance(text, str) and text.strip() and "\n" not in text
                    require(one_line, f"{name} of a check is not a line of text", got=repr(text), check=check.name)
                told = check.status != "problem" or check.reason or check.remedy
                require(told, "a problem without reason and remedy", check=check.name)
