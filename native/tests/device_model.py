"""A device, written plainly: what lies in its caches, and which units its unfinished steps use.

Every cache row holds a value that stands for a position and all tokens up to it. A step stores and reads through the
packed arrays (prefill) or the block tables (decode, as a backend does for rows behind a step in flight), so a wrong
block, a missing replay, a store into somebody else's block or a forgotten clone is a wrong value at a later read.
Steps run in launch order, each in the order zero list, clone list, forward. Nothing here uses ``assert``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from deepinfer_contracts import Pool, StepKind


def require(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def chain(tokens, known):
    """Values of all positions; ``known`` are those of a prefix."""
    values = list(known)
    for token in tokens[len(values) :]:
        before = values[-1] if values else 0
        values.append(zlib.crc32(int(token).to_bytes(4, "little"), before) + 1)
    return values


@dataclass
class LaunchedRow:
    uid: int
    start: int  # exact if nothing of the request was in flight, else a bound
    q: int
    table: list
    swa: int
    state: int
    is_mapped: bool
    is_new: bool
    valid_start: int
    store_from: int
    tokens: list  # known to the host at launch, drafts not included
    write_from: int = 0
    is_running: bool = True  # its writes are not known to be complete

    def written(self, size):
        """Blocks that it may write."""
        return set(self.table[self.write_from // size :]) if self.is_running else set()


@dataclass
class LaunchedStep:
    step_id: int
    kind: int
    rows: list
    zero: list
    clone_slots: list
    clone_blocks: list
    packed: dict
    sources: list = field(default_factory=list)  # (pool, unit)


class Device:
    """Caches and open steps. ``strict``: a unit that changes hands while a step that uses it is not done is refused."""

    def __init__(self, config, strict=True):
        self.config = config
        self.strict = strict
        self.done = 0
        self.open = []  # launched, not done
        self.unread = {}  # launched, results not read: a device may be done with a step before
        self.history = {}  # uid -> tokens as the device knows them after its last step
        self.hits = {}  # uid -> (generation, end of the hit)
        self.values = {}  # uid -> chain of its history
        self.main = {}  # ratio -> values by row
        for ratio in config.ratios or (1,):
            self.main[ratio] = np.zeros(config.num_blocks * (config.block_size // ratio), np.int64)
        self.swa = np.zeros(max(config.num_swa_slots, 1) * max(config.ring, 1), np.int64)
        self.state = {}  # slot -> {position: value}, of the last positions

    # --- launch: which units are in use --------------------------------------------------------------------------

    def launch(self, o, packed, histories):
        size = self.config.block_size
        offsets, rows = o.bt_offsets.tolist(), []
        for i, uid in enumerate(o.seq_uid.tolist()):
            q, k = int(o.seqlens_q[i]), int(o.seqlens_k[i])
            generation = int(o.generation[i])
            if o.hit_tokens[i] or self.hits.get(uid, (generation, 0))[0] != generation:
                self.hits[uid] = (generation, int(o.hit_tokens[i] + o.replayed_tokens[i]))
            row = LaunchedRow(
                uid=uid,
                start=k - q,
                q=q,
                table=o.bt_ids[offsets[i] : offsets[i + 1]].tolist(),
                swa=int(o.swa_slot[i]),
                state=int(o.state_slot[i]),
                is_mapped=bool(o.remap[i] >= 0),
                is_new=o.kind == StepKind.PREFILL and k - q == int(o.swa_valid_start[i]),
                valid_start=int(o.swa_valid_start[i]),
                store_from=self.hits.get(uid, (0, 0))[1],
                tokens=list(histories[uid]),
            )
            # Every step in flight adds at least one token, so the row writes from here on.
            row.write_from = max(int(o.cached[i]) + int(o.inflight[i]), row.store_from)
            require(all(b > 0 for b in row.table), "the null block is in use")
            require(len(set(row.table)) == len(row.table), "a table of", uid, "has a block twice")
            rows.append(row)
        step = LaunchedStep(
            o.step_id,
            o.kind,
            rows,
            o.zero_slots.tolist(),
            o.clone_slots.tolist(),
            o.clone_blocks.tolist(),
            packed,
            [(pool, source) for pool, source, _ in o.clone_slots.tolist()]
            + [(Pool.MAIN, source) for source, _ in o.clone_blocks.tolist()],
        )
        self._check_hands(step, size)
        self.open.append(step)
        self.unread[step.step_id] = step
        return step

    def _check_hands(self, step, size):
        mine = {}
        for row in step.rows:
            for unit in (("swa", row.swa), ("state", row.state)):
                if unit[1]:
                    require(mine.setdefault(unit, row.uid) == row.uid, unit, "is used twice in step", step.step_id)
        for other in [*self.open, step] if self.strict else [step]:
            for a in other.rows:
                for b in step.rows:
                    if a.uid == b.uid:
                        continue
                    shared = (a.written(size) & set(b.table)) | (b.written(size) & set(a.table))
                    require(not shared, "blocks", shared, "changed hands while step", other.step_id, "is not done")
                    for pool in ("swa", "state"):
                        unit = getattr(a, pool)
                        require(
                            not unit or unit != getattr(b, pool),
                            (pool, unit),
                            "changed hands while step",
                            other.step_id,
                            "is not done",
                        )
        if self.strict:
            for other in self.open:
                self._check_sources(other, step, size)

    @staticmethod
    def _check_sources(other, step, size):
        """What a clone of an unfinished step reads belongs to nobody new."""
        tables = {unit for row in other.rows for unit in row.table}
        for row in step.rows:
            for pool, unit in other.sources:
                if pool == Pool.MAIN:
                    require(unit not in row.written(size) or unit in tables, "a clone source changed hands")
                elif row.is_new:
                    require(unit != (row.swa if pool == Pool.SWA else row.state), "a clone source changed hands")

    def complete(self, step):
        self.done = max(self.done, step)
        self.open = [s for s in self.open if s.step_id > self.done]

    # --- execution: in launch order, when the results are read ------------------------------------------------------

    def execute(self, step_id, drafts):
        """Run the forward of a launched step. ``drafts(uid)`` are the drafts that a decode row verifies."""
        step = self.unread.pop(step_id)
        self._prologue(step)
        first = 0
        for i, row in enumerate(step.rows):
            tokens = list(self.history[row.uid]) if row.is_mapped else row.tokens
            if step.kind == StepKind.DECODE:
                row.start = len(tokens) - 1
                tokens = tokens + list(drafts(row.uid))[: row.q - 1]
                self._decode(row, self._chain(row, tokens))
            else:
                self._prefill(step, i, first, row, self._chain(row, tokens))
            self._compress(row, self._chain(row, tokens), step)
            first += row.q
        return step

    def finish(self, step, sampled, verified):
        """The results of a step were read: its writes are complete, and a later row writes behind them."""
        first = 0
        for row, token in zip(step.rows, sampled, strict=True):
            if step.kind == StepKind.DECODE or row.start + row.q == len(row.tokens):
                base = list(self.history[row.uid]) if row.is_mapped else list(row.tokens)
                accepted = [t for t in verified[first : first + row.q - 1] if t >= 0] if verified is not None else []
                self.history[row.uid] = [*base, *accepted, token]
                for later in self.open:
                    for other in later.rows:
                        if other.uid == row.uid and later.step_id > step.step_id and other.is_mapped:
                            other.write_from = len(self.history[row.uid]) - 1
            row.is_running = False
            first += row.q

    def _chain(self, row, tokens):
        known, ids = self.values.get(row.uid, ([], []))
        same = 0
        limit = min(len(ids), len(tokens))
        if ids[:limit] == tokens[:limit]:
            same = limit
        values = chain(tokens, known[:same])
        self.values[row.uid] = (values, list(tokens))
        return np.asarray(values, np.int64)

    def _prologue(self, step):
        ring = self.config.ring
        for pool, slot in step.zero:
            if pool == Pool.STATE:
                self.state[slot] = {}
            else:
                self.swa[slot * ring : (slot + 1) * ring] = 0
        for pool, source, target in step.clone_slots:
            if pool == Pool.STATE:
                self.state[target] = dict(self.state[source])
            else:
                self.swa[target * ring : (target + 1) * ring] = self.swa[source * ring : (source + 1) * ring]
        for source, target in step.clone_blocks:
            for ratio, rows in self.main.items() if target else ():
                n = self.config.block_size // ratio
                rows[target * n : (target + 1) * n] = rows[source * n : (source + 1) * n]

    def _row_of(self, row, keys, ratio):
        n = self.config.block_size // ratio
        table = np.asarray(row.table, np.int64)
        return table[keys // n] * n + keys % n

    def _read(self, row, end, values):
        """All compressed keys that a query at position ``end - 1`` sees."""
        for ratio, rows in self.main.items():
            keys = np.arange(end // ratio)
            got, want = rows[self._row_of(row, keys, ratio)], values[(keys + 1) * ratio - 1]
            wrong = np.flatnonzero(got != want)
            require(wrong.size == 0, "request", row.uid, "reads wrong keys", wrong[:5], "of ratio", ratio, row)

    def _decode(self, row, values):
        positions = np.arange(row.start, row.start + row.q)
        if self.config.window:
            ring, first = self.config.ring, max(row.start - self.config.window + 1, 0)
            history = np.arange(first, row.start)
            got = self.swa[row.swa * ring + history % ring]
            require((got == values[history]).all(), "request", row.uid, "reads a wrong window", history, row)
            self.swa[row.swa * ring + positions % ring] = values[positions]
        for ratio, rows in self.main.items():
            keys = positions[(positions + 1) % ratio == 0] // ratio
            rows[self._row_of(row, keys, ratio)] = values[(keys + 1) * ratio - 1]
        self._read(row, row.start + 1, values)

    def _prefill(self, step, i, first, row, values):
        end = row.start + row.q
        positions = np.arange(row.start, end)
        if step.packed is None:  # no arrays of this model: as decode, with the rules of the replay
            for ratio, rows in self.main.items():
                keys = np.arange(row.start // ratio, end // ratio)
                keys = keys[keys * ratio >= row.store_from]
                rows[self._row_of(row, keys, ratio)] = values[(keys + 1) * ratio - 1]
            self._read(row, end, values)
            if self.config.window:
                self.swa[row.swa * self.config.ring + positions % self.config.ring] = values[positions]
            return
        if self.config.window:
            self._prefill_window(step, i, first, row, values, positions)
        for ratio, rows in self.main.items():
            begin, stop = step.packed["cu_compressed_q"][ratio][i : i + 2].tolist()
            slots = step.packed["slot_main"][ratio][begin:stop]
            at = step.packed["positions_c"][ratio][begin:stop]
            stored = slots >= 0
            rows[slots[stored]] = values[at[stored] + ratio - 1]
        self._read(row, end, values)

    def _prefill_window(self, step, i, first, row, values, positions):
        window, ring = self.config.window, self.config.ring
        buffer = np.zeros(window, np.int64)
        for slot, begin, stop, target in step.packed["load_swa"].tolist():
            if i * window <= target < (i + 1) * window and slot >= 0:
                at = target - i * window
                buffer[at : at + stop - begin] = self.swa[slot * ring + begin : slot * ring + stop]
        for p, pivot in zip(positions.tolist(), step.packed["swa_pivots"][first : first + row.q].tolist(), strict=True):
            low = max(p - window + 1, row.valid_start)
            old, begin = pivot[1], pivot[0] - i * window
            fresh = pivot[2] - len(step.rows) * window - first + row.start
            seen = [*buffer[begin : begin + old].tolist(), *values[fresh : fresh + pivot[3]].tolist()]
            require(seen == values[low : p + 1].tolist(), "request", row.uid, "sees a wrong window at", p, row)
        slots = step.packed["slot_swa"][first : first + row.q]
        self.swa[slots[slots >= 0]] = values[positions[slots >= 0]]

    def _compress(self, row, values, step):
        """The compressor of the largest ratio: a record of the last positions, from which a half group goes on."""
        if not row.state:
            return
        ratio = max(self.config.ratios or (1,))
        record = self.state.get(row.state)
        require(record is not None, "state slot", row.state, "was neither zeroed nor cloned")
        if row.is_new:
            require(record == {}, "state slot", row.state, "shows what", row.uid, "did not write")
        for p in range(row.start - row.start % ratio, row.start):
            if (p >= row.valid_start and step.kind == StepKind.PREFILL) or step.kind == StepKind.DECODE:
                require(record.get(p) == values[p], "compressor of", row.uid, "lacks position", p, row)
        for p in range(row.start, row.start + row.q):
            record[p] = values[p]
        keep = row.start + row.q - ratio - self.config.q - max(self.config.backtrack, self.config.q)
        for p in [p for p in record if p < keep]:
            del record[p]
