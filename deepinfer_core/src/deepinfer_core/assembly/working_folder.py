"""The working folder is there: MKL, which torch loads, ends the process where it was removed."""

from __future__ import annotations

import os

from deepinfer_core.errors import ConfigError


def require_working_folder() -> None:
    """Raises ConfigError where the process stands in a folder that is gone."""
    try:
        os.getcwd()
    except FileNotFoundError as err:
        raise ConfigError(
            "the working folder is gone",
            reason="it was removed, and libraries that torch loads need one",
            remedy="change into a folder that exists: cd",
        ) from err
