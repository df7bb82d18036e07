"""The conformance kit: what a plugin must do to be one (``spec/plugins.md`` 11).

::

    pytest --pyargs deepinfer_core.conformance --backend NAME --level smoke|core|full --report=FILE

The tests of a folder (``backend/``, ``model/``, ...) judge plugins of that kind. They raise
:class:`deepinfer_core.conformance.failures.ConformanceFailure` and never use ``assert``: a verdict is the same under
``python -O``. Nothing here is imported by the engine.
"""
