"""What setuptools takes only from here: ``cffi_modules``, the stable-ABI tag, the check for a compiler."""

import shutil

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError


class BuildNative(build_ext):
    """Says what is missing where there is no C compiler, in place of a traceback that ends with its name."""

    def build_extensions(self) -> None:
        command = getattr(self.compiler, "compiler_so", None) or ()  # MSVC finds its own, and says so
        if command and shutil.which(command[0]) is None:
            raise PlatformError(
                f"deepinfer-native needs a C11 compiler, and {command[0]} is not on PATH. Install one "
                "(Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc), or name yours: CC=clang pip install ..."
            )
        super().build_extensions()


setup(
    cffi_modules=["build_ffi.py:ffi"],
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
