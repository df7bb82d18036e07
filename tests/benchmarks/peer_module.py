"""An external scheduler for the tests: the reference scheduler behind `deepinfer_peer`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from scheduler_bench.peers.plain_python import PlainPython


def deepinfer_peer(settings):
    return PlainPython(settings)
