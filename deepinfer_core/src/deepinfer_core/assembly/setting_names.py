"""Errors about a setting name it as its writer did: an option, a variable, a key in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deepinfer_core.config import EngineConfig, settings_by_key
from deepinfer_core.errors import DeepInferError
from deepinfer_core.settings import option_name, source_text

BY_OPTION = ("flag", "argument", "default", "the results")
"""Origins for which a message speaks of the option: it corrects them, or has the name of the argument."""


@contextmanager
def settings_named_as_written(config: EngineConfig) -> Iterator[None]:
    """What is raised inside about a setting (``details["field"]``) sends the reader to where its value is written.

    The remedies of the assembly speak of options. Where the value came from a file or the environment, its place stands
    in the remedy instead, or behind the reason where the remedy does not name the option.
    """
    try:
        yield
    except DeepInferError as err:
        key = err.details.get("field")
        if isinstance(key, str) and key in settings_by_key() and config.origin(key) not in BY_OPTION:
            _send_to(err, key, config.origin(key))
        raise


def _send_to(err: DeepInferError, key: str, origin: str) -> None:
    source = source_text(key, origin)
    place = source if origin.startswith("environment ") else f"{key} in {source}"
    option = re.compile(rf"(?<![\w-]){re.escape(option_name(key))}(?![\w-])")
    remedy, count = option.subn(lambda _: place, err.remedy)
    if count:
        err.remedy = remedy
    else:
        err.reason = f"{err.reason}; set by {source}" if err.reason else f"set by {source}"
