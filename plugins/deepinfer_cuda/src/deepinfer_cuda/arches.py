"""The architectures with kernels: names as the manifest, the compilers and reports have them."""

from __future__ import annotations

SUPPORTED = ("sm_90", "sm_100", "sm_103")
"""As ``Capabilities.arch`` and the manifest say."""
COMPILED_AS = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_103": "sm_103a"}
"""The compiler's name: with the instructions that only this architecture has."""


def arch_of(capability: tuple[int, int]) -> str:
    """``sm_90`` of compute capability (9, 0)."""
    major, minor = capability
    return f"sm_{major}{minor}"


def compiler_arch(arch: str) -> str:
    """``sm_90a`` of ``sm_90``; a name that has its letter stays as it is."""
    return COMPILED_AS.get(arch, arch)
