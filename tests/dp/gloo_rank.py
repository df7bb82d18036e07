"""A rank as a process of its own: random traffic over gloo until the group ends, then a second act in which one dies.

``python gloo_rank.py SETTINGS.json RANK`` writes ``rank<RANK>.json`` beside the settings.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deepinfer_core" / "tests"))

from dp_ranks import Rank

from deepinfer_core.errors import GroupError, PluginLockError
from deepinfer_core.plugins.agreement import agree_on_plugins
from deepinfer_core.plugins.lock import LockedPlugin, PluginLock
from deepinfer_cpu.dp_group import join_group

DIES_AFTER = 40


def first_act(version, reducer):
    """The ranks compare their plugins, of which this one has another version than the others."""
    plugin = LockedPlugin("backend", "cpu", "deepinfer-cpu", version, "deepinfer_cpu.plugin", "ab" * 32, ">=1.0,<2", {})
    try:
        agree_on_plugins(reducer, PluginLock((plugin,)))
    except PluginLockError as error:
        return str(error)
    return ""


def second_act(rank, settings, reducer):
    """The last rank vanishes in mid-step; the others must hear of it in time."""
    busy = Rank(reducer, settings["seed"], busy=0.5, **settings["config"])
    begin = time.monotonic()
    try:
        for step in range(10 * DIES_AFTER):
            if rank == settings["size"] - 1 and step == DIES_AFTER:
                os._exit(9)  # no goodbye: as a process that was killed
            busy.traffic()
            begin = time.monotonic()
            busy.step()
    except GroupError as error:
        return {"error": str(error), "seconds": time.monotonic() - begin, "steps": busy.chooser.steps}
    return {"error": "", "steps": busy.chooser.steps}


def main():
    settings = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    folder, rank = Path(sys.argv[1]).parent, int(sys.argv[2])
    reducer = join_group(f"file://{folder / 'meet'}", rank, settings["size"], timeout_s=settings["timeout_s"])
    if settings.get("versions"):
        (folder / f"rank{rank}.json").write_text(json.dumps({"error": first_act(settings["versions"][rank], reducer)}))
        os._exit(0)
    actor = Rank(reducer, settings["seed"] + rank, busy=settings["busy"][rank], **settings["config"])
    begin = time.monotonic()
    actor.run(settings["steps"])
    report = {**actor.report(), "seconds": time.monotonic() - begin}
    (folder / f"rank{rank}.json").write_text(json.dumps(report), "utf-8")
    if settings["dies"]:
        act = second_act(rank, settings, reducer)
        (folder / f"rank{rank}.json").write_text(json.dumps({**report, "second_act": act}), "utf-8")
    os._exit(0)  # a broken group must not be waited for at exit


if __name__ == "__main__":
    main()
