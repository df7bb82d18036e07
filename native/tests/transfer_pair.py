"""A PROMPT core and a COMPLETION core, each with a fake device that has memory, joined by a copier of units.

A unit that was not copied, was copied into the wrong place, or changed hands too early shows as a wrong value at a
later read of the device.
"""

from __future__ import annotations

from device_model import require
from native_driver import Driver, Request, small_config

from deepinfer_contracts import EngineType, FinishReason
from deepinfer_native.errors import CapacityError


class Injected(Request):
    """A request at the receiver: its first token is known before the event that says so."""

    first = None

    @property
    def history(self):
        return self.prompt + (self.output or ([] if self.first is None else [self.first]))


class Pair:
    """Both cores, and the transfers between them. Requests are known by their uid in the PROMPT core."""

    def __init__(self, depth=1, num_draft=0, send_drafts=True, prompt=None, completion=None):
        # Room for draft tokens is a matter of the cache layout, so both sides have the same num_draft.
        shared = {"num_draft": num_draft}
        self.sender = Driver(small_config(engine_type=EngineType.PROMPT, **shared, **(prompt or {})))
        self.receiver = Driver(
            small_config(
                engine_type=EngineType.COMPLETION, stop_preempted=True, depth=depth, **shared, **(completion or {})
            )
        )
        self.send_drafts = send_drafts
        self.requests = {}  # sender's uid -> (sender's request, parameters)
        self.reserved = {}  # sender's uid -> reservation
        self.sent = {}  # sender's uid -> receiver's request

    def submit(self, prompt, **parameters):
        request = self.sender.submit(prompt, **parameters)
        self.requests[request.uid] = (request, parameters)
        return request

    def handed(self):
        """Requests whose PREFILLED event was seen and that were not sent yet."""
        return [
            uid
            for uid, (request, _) in self.requests.items()
            if request.prefilled and request.reason == FinishReason.NONE and uid not in self.sent
        ]

    def reserve(self, uid):
        """Units at the receiver, None when it has no room now."""
        request, parameters = self.requests[uid]
        p = dict(parameters)
        stop = p.pop("stop", request.stop)
        max_tokens = p.pop("max_tokens", request.max_tokens)
        try:
            reservation = self.receiver.core.reserve(request.prompt, max_tokens=max_tokens, eos_ids=stop, **p)
        except CapacityError:
            return None
        self.reserved[uid] = reservation
        self.sent[uid] = Injected(reservation.uid, request.prompt, max_tokens, request.min_tokens, tuple(stop))
        self.receiver.follower.add(self.sent[uid])
        units = {("main", b) for b in reservation.block_ids.tolist()}
        units |= {("swa", reservation.swa_slot), ("state", reservation.state_slot)}
        for step in self.receiver.device.open:
            for row in step.rows:
                used = {("main", b) for b in row.table} | {("swa", row.swa), ("state", row.state)}
                require(not units & used, "a reserved unit is in use by step", step.step_id)
        return reservation

    def copy(self, uid):
        """Every unit of the hand-off over the reservation's; returns the hand-off."""
        h, r = self.sender.core.handoff(uid), self.reserved[uid]
        require(len(h.block_ids) == len(r.block_ids), "blocks of both sides")
        require(all(b > 0 for b in [*h.block_ids, *r.block_ids]), "the null block in a transfer")
        a, b, config = self.sender.device, self.receiver.device, self.sender.config
        for source, target in zip(h.block_ids.tolist(), r.block_ids.tolist(), strict=True):
            for ratio in a.main:
                n = config.block_size // ratio
                b.main[ratio][target * n : (target + 1) * n] = a.main[ratio][source * n : (source + 1) * n]
        ring = config.ring
        b.swa[r.swa_slot * ring : (r.swa_slot + 1) * ring] = a.swa[h.swa_slot * ring : (h.swa_slot + 1) * ring]
        b.state[r.state_slot] = dict(a.state[h.state_slot])
        return h

    def inject(self, uid, h):
        self.sent[uid].first = h.first_token
        drafts = h.drafts if self.send_drafts else ()
        if len(drafts):
            self.receiver.host_drafts[self.sent[uid].uid] = list(drafts)
        self.receiver.core.inject(self.reserved[uid].handle, h.first_token, -0.25, drafts=drafts)

    def transfer(self, uid):
        """The whole way of one request; False when the receiver has no room now."""
        if self.reserve(uid) is None:
            return False
        h = self.copy(uid)
        self.inject(uid, h)
        self.sender.core.acknowledge(uid)
        return True

    def step(self):
        self.sender.step()
        for uid in self.handed():
            if not self.transfer(uid):
                break
        self.receiver.step()
        for driver in (self.sender, self.receiver):
            driver.core.check()

    def run(self, limit=3000):
        for _ in range(limit):
            if not self.sender.core.unfinished and not self.receiver.core.unfinished:
                break
            self.step()
        for driver in (self.sender, self.receiver):
            driver.run()  # nothing left but to commit and report
            self.require_all_free(driver)
        return self

    @staticmethod
    def require_all_free(driver):
        driver.core.check()
        driver.core.audit()
        stats = driver.core.stats()
        for pool in (stats.main, stats.swa, stats.state, stats.draft):
            require(pool.free + pool.cached == pool.total, "leak", pool)
        require(stats.handoff == 0, "a transfer is left")

    def output(self, uid):
        """What a client sees of a request, however far it went: tokens and reason of the side that ended it."""
        request = self.sent.get(uid, self.requests[uid][0])
        return request.output, request.reason
