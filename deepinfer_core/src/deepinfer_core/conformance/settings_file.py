"""Whose settings pytest takes: those of the folder that the kit runs in, in this process and in its workers.

pytest looks for its settings file above every existing path among the arguments, before it knows the kit's options. The
value behind ``--report`` or ``--checkpoint`` is such a path, and may lie in the tree of another project.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest


def settle_settings(config: pytest.Config) -> None:
    """Give workers the settings file of this process: for them a report exists that was not there when it began.

    :raises pytest.UsageError: the file is of a folder that this one does not lie in.
    """
    here, found = Path.cwd().resolve(), config.inipath
    explicit = config.option.inifilename
    if found is not None and not explicit and found.parent.resolve() not in (here, *here.parents):
        raise pytest.UsageError(
            f"pytest took the settings of {found}, which is not above {here}: it takes the value of an option that is "
            "an existing path for a place of tests; write it with an equals sign, as --report=FILE"
        )
    settings = ["-c", str(found) if found is not None else os.devnull, "--rootdir", str(config.rootpath)]
    params = config.invocation_params  # what xdist starts its workers with
    config.invocation_params = dataclasses.replace(params, args=(*settings, *map(str, params.args)))
