"""Put a rendered project on disk, as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from deepinfer_core.errors import InvalidParameter, OutputError


def check_target(parent: Path, folder: str) -> Path:
    """The folder to make: ``folder`` inside ``parent``, which exists.

    :raises InvalidParameter: there is no such parent, or something has the folder's name already.
    """
    if not os.path.isdir(parent):  # Path.is_dir raises where a folder above may not be entered
        what = "is no folder" if os.path.exists(parent) else "does not exist"
        raise InvalidParameter(
            f"--dir {parent} {what}",
            reason=f"{folder} would be made in it",
            remedy=f"give a folder, or make it first: mkdir -p {parent}",
            details={"field": "dir", "value": str(parent)},
        )
    target = parent / folder
    if os.path.lexists(target):  # also a link that leads nowhere
        raise InvalidParameter(
            f"{target} is there already",
            reason="nothing is overwritten",
            remedy="choose another name, or another place with --dir",
            details={"field": "dir", "value": str(target)},
        )
    return target


def write(target: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """Write ``files`` under the new folder ``target``. It appears with its last file, or not at all.

    :raises OutputError: the disk is full, or the place may not be written.
    """
    scratch: Path | None = None
    try:
        # In the same folder, so that the last step is a rename. mkdtemp makes a folder for its owner alone.
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        scratch.chmod(0o777 & ~_umask())
        for path, content in files.items():
            file = scratch / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        os.rename(scratch, target)
    except OSError as err:
        raise OutputError(
            f"cannot write {target}",
            reason=err.strerror or str(err),
            remedy="choose another place with --dir",
            details={"folder": str(target)},
        ) from err
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)  # after the rename there is none


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
