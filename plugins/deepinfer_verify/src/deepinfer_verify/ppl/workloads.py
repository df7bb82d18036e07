"""What is computed: a workload is a TOML file, with its text beside it."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from attrs import field, frozen

from deepinfer_core.bounded_file import read_bounded_text
from deepinfer_core.config import settings_by_key
from deepinfer_core.errors import CommandUsageError, InvalidInputFile
from deepinfer_core.settings import did_you_mean

Arithmetic = Literal["exact", "released"]
FOLDER = "workloads"
COUNTS = {"samples": 1, "prompt_tokens": 1, "new_tokens": 2, "draft_tokens": 0}
"""Keys that are integers, and their smallest values: one new token is that of the prefill, so two give one decoded."""
DETERMINISM = "run"
KEYS = ("text", *COUNTS, "arithmetic")


@frozen
class Sample:
    """One text, cut: the second part is forced, token by token, behind the first."""

    id: str
    prompt: tuple[int, ...]
    forced: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """Of all token ids in decimal, with where they are cut."""
        text = f"{len(self.prompt)}:" + ",".join(map(str, (*self.prompt, *self.forced)))
        return hashlib.sha256(text.encode()).hexdigest()


@frozen
class Workload:
    """Pieces of one text, all of the same lengths, computed in one batch."""

    name: str
    text: str
    samples: int
    prompt_tokens: int
    new_tokens: int
    """Forced tokens of each sample. The first one's row is the prefill's last and is not counted."""
    draft_tokens: int
    arithmetic: Arithmetic
    """``exact``: FP32 throughout, so another order of the same sums moves results by rounding only. ``released``: the
    model's own rounding, where the last bit of a sum may decide the code of a value, so that machines of another kind
    differ by percents."""
    origins: Mapping[str, str] = field(factory=dict, eq=False, repr=False)
    """Key -> where its value is written, as the origin of a setting (``EngineConfig.origin``)."""

    @property
    def length(self) -> int:
        """Positions that a sample takes."""
        return self.prompt_tokens + self.new_tokens

    @property
    def settings(self) -> dict[str, object]:
        """Those of the engine on which a result depends. Determinism ``run`` is enough, and every backend has it."""
        exact = self.arithmetic == "exact"
        return {
            "deterministic": DETERMINISM,
            "verify": "coupled",
            "draft_tokens": self.draft_tokens,
            "numeric_mode": "exact" if exact else "released",
            "cache_formats": not exact,
            "seed": 0,
        }

    def description(self, samples: Sequence[Sample]) -> dict[str, object]:
        """What an entry of a baseline says of it; results of two descriptions are not compared."""
        digest = hashlib.sha256("\n".join(sample.sha256 for sample in samples).encode())
        return {
            "name": self.name,
            "inputs_sha256": digest.hexdigest(),
            "n": self.samples,
            "in": self.prompt_tokens,
            "out": self.new_tokens,
            "nextn": self.draft_tokens,
            "parallel": "dp1 cp1 ep1",
            "determinism": DETERMINISM,
            "arithmetic": self.arithmetic,
        }

    def cut(self, ids: Sequence[int], start: Sequence[int] = ()) -> list[Sample]:
        """The samples: consecutive pieces of ``ids``, each behind ``start`` (the token that begins every text).

        Raises InvalidInputFile for a text that is too short.
        """
        step = self.length - len(start)
        if step <= 0 or len(ids) < self.samples * step:
            raise InvalidInputFile(
                f"the text of workload {self.name} has {len(ids):,} tokens",
                reason=f"{self.samples} x {self.length:,} positions need {max(step, 1) * self.samples:,}",
                remedy="give a longer text, fewer samples, or shorter ones",
                details={"workload": self.name, "tokens": len(ids)},
            )
        pieces = [(*start, *ids[at * step : (at + 1) * step]) for at in range(self.samples)]
        cut = self.prompt_tokens
        return [Sample(f"{self.name}-{at}", piece[:cut], piece[cut:]) for at, piece in enumerate(pieces)]


def shipped() -> list[str]:
    """Names of the workloads that come with this distribution."""
    folder = files("deepinfer_verify").joinpath(FOLDER)
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def find_workload(name: str) -> Workload:
    """A shipped workload by its name, or one's own by the path of its TOML file.

    Raises CommandUsageError for a name that there is none of, InvalidInputFile for a file that is none.
    """
    if name in shipped():
        return read_workload(Path(str(files("deepinfer_verify").joinpath(FOLDER, f"{name}.toml"))))
    if name.endswith(".toml"):
        return read_workload(Path(os.path.expanduser(name)))
    raise CommandUsageError(
        f"no workload named {name!r}{did_you_mean(name, shipped())}",
        reason=f"workloads: {', '.join(shipped())}",
        remedy="name one of these, or give the path of a .toml file of your own",
        details={"workload": name, "known": shipped()},
    )


def read_workload(path: Path) -> Workload:
    """Raises InvalidInputFile, which names file, line and key."""
    try:
        text = read_bounded_text(path)
        table = tomllib.loads(text)
    except OSError as err:
        raise _refused(path, f"cannot read the workload {path}", err.strerror or str(err)) from err
    except (ValueError, RecursionError) as err:
        raise _refused(path, f"the workload {path} is not TOML", str(err)) from err
    for key in KEYS:
        if key not in table:
            raise _refused(path, f"the workload {path} has no {key}", f"it needs {', '.join(KEYS)}")
    places = {key: f"{path}{_line(text, key)}" for key in table}
    for key, place in places.items():
        if key not in KEYS:
            raise _refused(path, f"the workload {place} has an unknown key {key!r}", f"known: {', '.join(KEYS)}")
    for key, least in COUNTS.items():
        value, most = table[key], _most(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= (most or value):
            reason = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
            raise _refused(path, f"{key} = {value!r} in the workload {places[key]}", reason)
    if table["arithmetic"] not in get_args(Arithmetic):
        reason = f"one of {', '.join(get_args(Arithmetic))}"
        raise _refused(path, f"arithmetic = {table['arithmetic']!r} in the workload {places['arithmetic']}", reason)
    origins = {key: f"file {place}" for key, place in places.items()}
    return Workload(**{**table, "name": path.stem, "text": _text(path, table["text"]), "origins": origins})


def _line(text: str, key: str) -> str:
    """``, line 4``, where ``key`` stands at the beginning of one line; a file that writes it otherwise has no such."""
    starts = [match.start() for match in re.finditer(rf"""(?m)^[ \t]*["']?{re.escape(key)}["']?[ \t]*=""", text)]
    return f", line {text.count(chr(10), 0, starts[0]) + 1}" if len(starts) == 1 else ""


def _most(key: str) -> int | None:
    """The largest value, of a key that is a setting of the engine too."""
    declared = settings_by_key().get(key)
    return declared.maximum if declared is not None else None


def _text(path: Path, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise _refused(path, f"text = {name!r} in the workload {path}", "the path of a text file, from that folder")
    try:
        return read_bounded_text(path.parent / name)
    except OSError as err:
        raise _refused(path, f"cannot read {path.parent / name}", err.strerror or str(err)) from err
    except UnicodeDecodeError as err:
        raise _refused(path, f"{path.parent / name} is not UTF-8", str(err)) from err


def _refused(path: Path, what: str, reason: str) -> InvalidInputFile:
    remedy = "correct the file; the page on decode perplexity has one"
    return InvalidInputFile(what, reason=reason, remedy=remedy, details={"path": str(path)})
