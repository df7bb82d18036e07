"""The reduces of a data-parallel group over a gloo process group: on the CPU, so that no vote enters a device's queue.

It implements ``deepinfer_core.step_choice.DpReducer``. Any backend may use it; the ranks need not be on one host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deepinfer_core.errors import ConfigError, GroupError

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_JOIN_TIMEOUT_S = 600.0


class GlooReducer:
    """``DpReducer`` over a process group whose backend is gloo."""

    def __init__(self, group: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """``group``: a ``torch.distributed`` process group; None: the default one.

        ``timeout_s``: how long a reduce may wait for the slowest rank, a whole step included. Raises ConfigError for a
        group of another backend, whose reduces would run on the device.
        """
        name = dist.get_backend(group)
        if name != "gloo":
            raise ConfigError(
                f"the data-parallel group uses {name}, gloo is needed",
                reason="a vote on the device would wait behind the step that runs there",
                remedy='torch.distributed.new_group(backend="gloo")',
            )
        self._group = group
        self._timeout = timedelta(seconds=timeout_s)
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def start_max(self, values: Sequence[int]) -> _Pending:
        tensor = torch.tensor(values, dtype=torch.int64)
        work = self._guarded(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True))
        return _Pending(self, tensor, work)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as err:  # what torch raises for a closed connection, and after the timeout
            raise GroupError(
                f"rank {self.rank} lost its data-parallel group of {self.size}",
                reason=str(err).strip().splitlines()[0],
                remedy="see which rank ended first, and start all of them again",
                details={"rank": self.rank, "size": self.size, "timeout_s": self._timeout.total_seconds()},
            ) from err


class _Pending:
    """A reduce under way; ``wait`` gives its result once."""

    def __init__(self, owner: GlooReducer, tensor: torch.Tensor, work: Any) -> None:
        self._owner, self._tensor, self._work = owner, tensor, work

    def wait(self) -> list[int]:
        self._owner._guarded(lambda: self._work.wait(self._owner._timeout))
        values: list[int] = self._tensor.tolist()
        return values


def join_group(
    init_method: str,
    rank: int,
    size: int,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    join_timeout_s: float = DEFAULT_JOIN_TIMEOUT_S,
) -> GlooReducer:
    """Make this process rank ``rank`` of ``size``, where no launcher did, and return its reducer.

    ``init_method``: where the ranks meet, ``tcp://HOST:PORT`` or ``file:///PATH`` (a file that does not exist yet).
    ``timeout_s``: of a reduce. Raises GroupError when the others do not come within ``join_timeout_s``: they start at
    different times, and load what they need first.
    """
    try:
        dist.init_process_group(
            "gloo", init_method=init_method, rank=rank, world_size=size, timeout=timedelta(seconds=join_timeout_s)
        )
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    except RuntimeError as err:
        raise GroupError(
            f"rank {rank} of {size} did not meet its group at {init_method}",
            reason=str(err).strip().splitlines()[0],
            remedy="start all ranks within the time limit, with the same address and size",
            details={"rank": rank, "size": size, "timeout_s": join_timeout_s},
        ) from err
    return GlooReducer(group, timeout_s=timeout_s)
