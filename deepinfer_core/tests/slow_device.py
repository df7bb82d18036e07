"""A device with a queue: a call only queues its work, and nothing runs until the host waits for an event.

Results are handles; reading one before its work ran is an error. Host memory is read when the work runs, not when it is
queued, so a staging buffer that is rewritten too early changes the tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from engine_toys import ToyBackend, ToyModel, ToySampler, feed_tokens

from deepinfer_contracts import SamplerOutput


class Handle:
    """A result of the device with ``rows`` rows."""

    dtype = "int32 of the device"

    def __init__(self, device: Device, rows: int, work: Callable[[], Any]) -> None:
        self._device = device
        self._rows = rows
        self._value: Any = None
        self._is_done = False

        def run() -> None:
            self._value = work()
            self._is_done = True

        device.queue.append(run)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: Any) -> Handle:
        return Handle(self._device, len(rows), lambda: self.value[rows])

    @property
    def value(self) -> Any:
        if not self._is_done:
            raise RuntimeError("a result was read before the device computed it")
        return self._value

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("memory of the device")


def now(record: Any) -> Any:
    """A record whose handles are replaced by their values."""
    values = {f.name: getattr(record, f.name) for f in attrs.fields(type(record))}
    out = copy.copy(record)
    for name, value in values.items():
        if isinstance(value, Handle):
            setattr(out, name, value.value)
    return out


class Device(ToyBackend):
    """The backend. ``log`` holds what the host did, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Callable[[], None]] = []
        self.ran = 0
        self.log: list[str] = []
        self.ops = {"meta.feed_tokens": self._feed}

    def record_event(self) -> int:
        self.log.append(f"event {len(self.queue)}")
        return len(self.queue)

    def wait(self, event: int) -> None:
        self.log.append(f"wait {event}")
        faults = []
        while self.ran < event:
            work = self.queue[self.ran]
            self.ran += 1
            try:
                work()
            except RuntimeError as err:  # of the device: it shows where the host waits, and the queue goes on
                faults.append(err)
        if faults:
            raise faults[0]

    def to_host(self, tensor: Any) -> Any:
        return tensor.value if isinstance(tensor, Handle) else tensor

    def alloc_caches(self, specs: Any, units: Mapping[str, int]) -> Any:
        return QueuedCaches(self, super().alloc_caches(specs, units))

    def _feed(self, fresh: Any, seqlens_q: Any, remap: Any, sampled: Any, total_q: int, **options: Any) -> Any:
        def work() -> Any:
            return feed_tokens(fresh, seqlens_q, remap, self.to_host(sampled), total_q, **options)["input_ids"]

        return {"input_ids": Handle(self, total_q, work)}


class QueuedCaches:
    def __init__(self, device: Device, caches: Any) -> None:
        self.device = device
        self.caches = caches

    def zero(self, pool: str, units: Sequence[int]) -> None:
        self.device.queue.append(lambda: self.caches.zero(pool, units))

    def clone(self, pool: str, pairs: Sequence[tuple[int, int]]) -> None:
        self.device.queue.append(lambda: self.caches.clone(pool, pairs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.caches, name)


class QueuedModel(ToyModel):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def forward(self, inputs: Any, caches: Any) -> Any:
        self.device.log.append("forward prompt" if inputs.is_prompt else "forward")
        whole = super().forward
        return Handle(self.device, int(inputs.total_q), lambda: whole(now(inputs), caches.caches))

    def logits(self, hidden: Any) -> Any:
        whole = super().logits
        return Handle(self.device, len(hidden), lambda: whole(hidden.value))


class QueuedSampler(ToySampler):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def sample(self, logits: Any, inputs: Any) -> SamplerOutput:
        self.device.log.append("sample")
        n = len(inputs.temperature)
        result: list[Any] = []
        whole = super().sample

        def field(name: str) -> Any:
            def work() -> Any:
                if not result:
                    result.append(whole(logits.value, inputs))
                return getattr(result[0], name)

            return Handle(self.device, n, work)

        return SamplerOutput(**{name: field(name) for name in ("sampled_ids", "sampled_logprob", "row_status")})


def slow_parts() -> dict[str, Any]:
    device = Device()
    return {"backend": device, "model": QueuedModel(device), "sampler": QueuedSampler(device)}


class ReuseWatch:
    """A chooser that refuses a unit which changes its owner while a step that used it may still run.

    A step may run until the host has waited for its event, whatever the core was told.
    """

    def __init__(self, chooser: Any, device: Device) -> None:
        self._chooser = chooser
        self._device = device
        self._steps: list[tuple[int, dict[tuple[str, int], int]]] = []
        """(place in the queue when the next step was scheduled, unit -> uid)."""
        self.reused = 0
        self._owners: dict[tuple[str, int], int] = {}

    def schedule(self, core: Any) -> Any:
        outputs = self._chooser.schedule(core)
        if not outputs.num_reqs:
            return outputs
        used: dict[tuple[str, int], int] = {}
        offsets = outputs.bt_offsets.tolist()
        for i, uid in enumerate(outputs.seq_uid.tolist()):
            used |= {("main", int(b)): uid for b in outputs.bt_ids[offsets[i] : offsets[i + 1]]}
            used["swa", int(outputs.swa_slot[i])] = uid
            used["row", int(outputs.row_slot[i])] = uid
        at = len(self._device.queue)
        self._steps = [(end or at, units) for end, units in self._steps]
        for end, units in self._steps:
            for unit, uid in used.items():
                if unit[0] != "row" and end > self._device.ran and units.get(unit, uid) != uid:
                    raise RuntimeError(f"{unit} changed its owner while a step that uses it may run")
        self.reused += sum(self._owners.get(unit, uid) != uid for unit, uid in used.items())
        self._owners |= used
        self._steps = [*self._steps[-3:], (0, used)]
        return outputs

    def settle(self, core: Any) -> bool:
        return bool(self._chooser.settle(core))


__all__ = ["Device", "Handle", "QueuedModel", "QueuedSampler", "ReuseWatch", "slow_parts"]
