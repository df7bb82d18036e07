"""Stand-ins for the streams of a device, on the host: what waits for what is written down, copies run at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Event:
    """One that is over when somebody says so, or when it is waited for."""

    def __init__(self, done: bool = True) -> None:
        self.done, self.waits = done, 0

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.waits += 1
        self.done = True


class HostQueues:
    """``device/queues.py`` for the host. ``log`` has the calls in order; ``done`` is what new events say."""

    def __init__(self, done: bool = True) -> None:
        self.log: list[str] = []
        self.done = done

    @contextmanager
    def upload(self) -> Iterator[None]:
        self.log.append("upload")
        yield

    def uploaded(self, block: torch.Tensor, spare: Event | None) -> Event:
        self.log.append("uploaded")
        return Event(self.done)

    def go_on_behind(self, event: Event) -> None:
        self.log.append("go on" if event.done else "go on behind")

    @contextmanager
    def download(self) -> Iterator[None]:
        self.log.append("download")
        yield

    def downloaded(self, spare: Event | None) -> Event:
        self.log.append("downloaded")
        return Event(self.done)


def allocate(num_bytes: int) -> torch.Tensor:
    return torch.full((num_bytes,), 0xA5, dtype=torch.uint8)
