"""What a step costs on this machine: measured once, kept in a file, given to the scheduler (``spec/engine.md`` 2.8)."""

from __future__ import annotations

from deepinfer_core.calibration.budget import TimeBudget, check_target, time_budget

__all__ = ["TimeBudget", "check_target", "time_budget"]
