"""The ops of this backend, one file for each file of ``deepinfer_cpu.ops``.

A module exports ``OPS``, op id -> callable, and where it lacks an op of that file ``DELEGATED``, op id -> why the op of
``cpu`` is enough. That one then works on tensors of the device, and the execution plan says so.
"""
