"""Options of the kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.conformance.kinds import DEFAULT_LEVEL, KINDS, LEVELS, option_of

PREFIX = "conformance_"
_ONLY_FOR = {"checkpoint": ("model",), "emulate": ("backend",), "params": ("sampler", "logits_filter", "scorer")}


def add_options(parser: pytest.Parser) -> None:
    """Add them to this run of pytest.

    :raises pytest.UsageError: another pytest plugin already has an option of one of these names.
    """
    options: list[tuple[str, str, dict[str, object]]] = [
        (option_of(kind), kind, {"metavar": "NAME", "help": f"the {kind.replace('_', ' ')} to test"}) for kind in KINDS
    ]
    options += [
        ("--on", "on", {"metavar": "NAME", "default": "cpu", "help": "backend that the part runs on (cpu)"}),
        (
            "--emulate",
            "emulate",
            {"action": "store_const", "const": True, "help": "the backend's code on the processor, where it can"},
        ),
        ("--checkpoint", "checkpoint", {"metavar": "DIR", "help": "checkpoint of the model (the one that it ships)"}),
        (
            "--params",
            "params",
            {"metavar": "JSON", "help": "parameters of what is tested, as an object"},
        ),
        ("--level", "level", {"choices": LEVELS, "default": DEFAULT_LEVEL, "help": "how much to test (core)"}),
        ("--report", "report", {"metavar": "FILE", "action": "append", "default": [], "help": "write .json or .html"}),
        (
            "--time-limit",
            "time_limit",
            {"metavar": "SECONDS", "type": float, "default": 300.0, "help": "of a test (300)"},
        ),
        ("--known-failures", "known_failures", {"metavar": "FILE", "help": "tests that fail (./conformance.toml)"}),
    ]
    groups = [*getattr(parser, "_groups", ()), getattr(parser, "_anonymous", None)]
    # pytest itself sees a clash within one group only; between two it ends in a traceback of argparse
    taken = {name for known in groups if known is not None for entry in known.options for name in entry.names()}
    group = parser.getgroup("deepinfer_conformance", "conformance kit of DeepInfer")
    for name, dest, attributes in options:
        if name in taken:
            raise pytest.UsageError(
                f"the conformance kit needs the option {name}, which another pytest plugin has; "
                "switch that plugin off with -p no:NAME"
            )
        group.addoption(name, dest=PREFIX + dest, **attributes)


def check_options(config: pytest.Config, kind: str) -> None:
    """Refuse options that say nothing about a plugin of ``kind``, and a checkpoint that is not there.

    :raises pytest.UsageError: naming the option.
    """
    for name, kinds in _ONLY_FOR.items():
        if option(config, name) is not None and kind not in kinds:
            wanted = " or ".join(option_of(kind) for kind in kinds)
            raise pytest.UsageError(f"--{name} goes with {wanted}, and not with {option_of(kind)}")
    from deepinfer_core.conformance.part import params_of

    params_of(config)
    checkpoint = option(config, "checkpoint")
    if checkpoint is not None and not Path(str(checkpoint), "config.json").is_file():
        raise pytest.UsageError(f"--checkpoint {checkpoint}: there is no config.json in it, so it is no checkpoint")


def option(config: pytest.Config, name: str) -> object:
    """The value of an option of the kit."""
    return config.getoption(PREFIX + name)
