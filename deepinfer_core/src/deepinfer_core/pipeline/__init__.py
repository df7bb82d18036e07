"""One step in four phases, up to two steps at a time (``spec/engine.md`` 5).

======  ====================  ================================================================================
phase   module                 what it does
======  ====================  ================================================================================
A       ``schedule``           policy and step record
B       ``forward``, ``feed``  zero and clone lists, inputs, tokens that only the device knows, the model
C       ``sample``             sampler inputs, logits, sampling; the results stay on the device
D       ``collect``            waits for the results, brings them to the host, checks them
======  ====================  ================================================================================

The engine calls them in the order of 5.2: A(n), B(n), D(n-1), C(n). So A and B of a step must not read what D of the
step before finds out. The phases hold no state of their own: a step is one :class:`StepRecord`, and the parts that they
work on are one :class:`Machinery`.
"""

from deepinfer_core.pipeline.faults import Owners, StepFault
from deepinfer_core.pipeline.feedback import CurveFeedback
from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.times import PhaseTimes

__all__ = ["CurveFeedback", "Machinery", "Owners", "PhaseTimes", "StepFault", "StepRecord"]
