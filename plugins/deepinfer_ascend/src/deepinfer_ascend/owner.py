"""Whose a device file is, for whoever may not open it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from attrs import frozen

_SHARED = stat.S_IRGRP | stat.S_IWGRP


@frozen
class Owner:
    """Names, or numbers where a container knows no name. :ivar is_shared: whether the group may read and write."""

    user: str
    group: str
    gid: int
    is_shared: bool

    @classmethod
    def of(cls, path: Path) -> Owner:
        found = path.stat()
        return cls(_user(found.st_uid), _group(found.st_gid), found.st_gid, found.st_mode & _SHARED == _SHARED)

    @property
    def told(self) -> str:
        return f"they belong to user {self.user} and group {self.group}; this process is of user {_user(os.geteuid())}"

    @property
    def remedy(self) -> str:
        if not self.is_shared:
            return f"run as {self.user}, or let the group {self.group} read and write them"
        joined = f"as root, usermod -aG {self.group} {_user(os.geteuid())}, and log in again"
        return f"{joined}; a container is started with --group-add {self.gid}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
