"""What a step of the scheduler costs on the host (``benchmarks/README.md``)."""

from __future__ import annotations

import sys

from scheduler_bench.command import main

if __name__ == "__main__":
    sys.exit(main())
