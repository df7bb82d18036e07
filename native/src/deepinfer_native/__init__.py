"""The C scheduler core of DeepInfer: pools, queue, step records, packers, behind one Python object.

Importing it loads the compiled library and refuses one that was built from other contracts or another version.
"""

from deepinfer_contracts import StepMode
from deepinfer_native.config import CoreConfig
from deepinfer_native.core import Core
from deepinfer_native.cost import AttentionKind, CostModel, CostRow
from deepinfer_native.errors import NativeError, StaleBatchError
from deepinfer_native.events import EventView
from deepinfer_native.placeholder import placeholder_inputs
from deepinfer_native.stats import CoreStats, PoolStats
from deepinfer_native.transfer import Handoff, Reservation

__all__ = [
    "AttentionKind",
    "Core",
    "CoreConfig",
    "CoreStats",
    "CostModel",
    "CostRow",
    "EventView",
    "Handoff",
    "NativeError",
    "PoolStats",
    "Reservation",
    "StaleBatchError",
    "StepMode",
    "placeholder_inputs",
]
