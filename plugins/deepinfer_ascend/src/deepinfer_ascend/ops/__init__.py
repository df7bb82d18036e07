"""The ops of this backend, one file for each file of ``deepinfer_cpu.ops``.

A module exports ``OPS``, op id -> callable. An op calls the vendor's kernel where that takes its arguments
(``vendor/table.py``), and the plain op otherwise. What no module exports is done by the plain op; the plan says so.
"""
