"""setuptools needs this file for ``cffi_modules`` and the stable-ABI tag; the rest is in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["build_ffi.py:ffi"], options={"bdist_wheel": {"py_limited_api": "cp311"}})
