"""Validation of numpy records: presence, dtype and shape of every field, then the rules of the schema.

Order, the same as in C: presence, dtype and dimensions of each field; rules over scalars; shapes; all other rules in
schema order. The first failure is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deepinfer_contracts._chains import DTYPES
from deepinfer_contracts._enums import Level
from deepinfer_contracts._evaluate import ContractSpec, Env, FieldSpec, RuleSpec, Undefined, readable
from deepinfer_contracts._record import Record
from deepinfer_contracts._validators import SPECS

if TYPE_CHECKING:
    from deepinfer_contracts._records import Limits, SchedulerOutputs


_NUMPY = {dtype: np.dtype(name) for dtype, (name, _) in DTYPES.items()}  # of this machine's byte order


class ContractViolation(ValueError):
    """A record breaks its contract.

    ``contract``, ``field``: which. ``check``: the rule's text from the schema, or ``presence ...``, ``dtype ...``,
    ``shape ...``. ``values``: ``index`` of the first offending element (absent for scalars), ``value`` found there,
    ``ratio`` or ``draft_step`` of a keyed field. ``step_id``: 0 if unknown.
    """

    code: ClassVar[str] = "E_CONTRACT"

    def __init__(
        self, contract: str, field: str, check: str, values: Mapping[str, object] | None = None, step_id: int = 0
    ) -> None:
        self.contract = contract
        self.field = field
        self.check = check
        self.values = dict(values or {})
        self.step_id = step_id
        shown = ", ".join(f"{k} {v}" for k, v in self.values.items())
        super().__init__(
            f"{contract}.{field} violates '{check}'"
            + (f" ({shown})" if shown else "")
            + (f" in step {step_id}" if step_id else "")
        )


def rule_text(contract: str, check: int) -> str:
    """Text of check number ``check`` of a contract, as `di_error.check` counts them; "" if there is none."""
    rules = SPECS[contract].rules
    return rules[check].text if 0 <= check < len(rules) else ""


def validate(
    record: Record,
    limits: Limits,
    level: int = Level.BOUNDARY,
    *,
    step: SchedulerOutputs | None = None,
    step_id: int | None = None,
) -> None:
    """Check ``record`` against its schema. Raises ContractViolation; see `Record.validate`."""
    if level == Level.OFF:
        return
    spec = SPECS[type(record).CONTRACT]
    number = step_id if step_id is not None else getattr(step if step is not None else record, "step_id", 0)
    env = Env(record, limits, step, spec.dims, max(_largest(record), _largest(step)))
    _Run(spec, env, int(level), int(number or 0)).all()


def _largest(record: Record | None) -> int:
    """Elements of the largest host array."""
    if record is None:
        return 0
    values = [getattr(record, name) for name in record.FIELDS]
    entries = [v for x in values for v in (x.values() if isinstance(x, dict) else x if isinstance(x, list) else [x])]
    return max((v.size for v in entries if isinstance(v, np.ndarray)), default=0)


class _Run:
    def __init__(self, spec: ContractSpec, env: Env, level: int, step_id: int) -> None:
        self.spec, self.env, self.level, self.step_id = spec, env, level, step_id
        self.prefill = bool(spec.prefill(env)) if spec.prefill else False

    def all(self) -> None:
        for f in self.spec.fields:
            if f.shape is None:
                self._scalar(f)
            else:
                for _ in self._keys(f.per, f.ratios, every=True):
                    self._array(f)
        for rule in self.spec.rules:
            if rule.only_scalars:
                self._rule(rule)
        for f in self.spec.fields:
            if f.shape is not None:
                for _ in self._keys(f.per, f.ratios):
                    self._shape(f)
        for rule in self.spec.rules:
            if not rule.only_scalars:
                self._rule(rule)

    def _fail(self, field: str, per: str, check: str, **values: object) -> ContractViolation:
        key = {"ratio": {"ratio": self.env.r}, "draft_step": {"draft_step": self.env.j}}.get(per, {})
        return ContractViolation(self.spec.name, field, check, {**values, **key}, self.step_id)

    def _keys(self, per: str, ratios: str, every: bool = False) -> Iterator[None]:
        """Set `r` or `j` to each key of a field in turn; once for a field without keys."""
        if not per:
            yield
        elif per == "draft_step":
            for j in range(self.env.limits.num_draft + 1):
                self.env.j = j
                yield
        else:
            limits = self.env.limits
            wanted = {"all": limits.ratios, "sparse": limits.ratios_sparse, "dense": limits.ratios_dense}[ratios]
            for r in limits.ratios:
                if every or r in wanted:
                    self.env.r = r
                    yield

    # --- fields ------------------------------------------------------------------------------------------------

    def _scalar(self, f: FieldSpec) -> None:
        if f.dtype == "handle":
            return
        value = getattr(self.env.record, f.name)
        for v in value.values() if isinstance(value, dict) else [0 if value is None else value]:
            name, size = DTYPES[f.dtype]
            if name.startswith("float"):
                if not isinstance(v, (int, float, np.floating, np.integer)):
                    raise self._fail(f.name, "", f"dtype {f.dtype}", value=v)
                continue
            low = -(1 << (8 * size - 1)) if name.startswith("int") else 0
            high = (1 << (8 * size - (1 if low else 0))) - 1
            if not isinstance(v, (int, np.integer, np.bool_)) or not low <= v <= high:
                raise self._fail(f.name, "", f"dtype {f.dtype}", value=v)

    def _array(self, f: FieldSpec) -> None:
        env = self.env
        array = env.raw(f.name)
        keyed_out = f.per == "ratio" and f.ratios != "all" and env.r not in getattr(env.limits, f"ratios_{f.ratios}")
        phase = "prefill" if self.prefill else "decode"
        allowed = not keyed_out and any(p in ("", phase) for p, _, _ in f.presence)
        required = not keyed_out and any(
            p in ("", phase) and not optional and all(c(env) for c in caps) for p, caps, optional in f.presence
        )
        if array is None:
            if required:
                raise self._fail(f.name, f.per, f"presence {f.presence_text}", value="absent")
            return
        if not allowed:
            raise self._fail(f.name, f.per, f"presence {f.presence_text}", value="present")
        if isinstance(array, np.ndarray):
            if array.dtype != _NUMPY[f.dtype]:
                raise self._fail(f.name, f.per, f"dtype {f.dtype}", value=str(array.dtype))
        else:  # an array of another library, as torch.int32
            got = str(getattr(array, "dtype", "")).split(".")[-1]
            if got != DTYPES[f.dtype][0]:
                raise self._fail(f.name, f.per, f"dtype {f.dtype}", value=got)
        if len(array.shape) != len(f.shape or ()):
            raise self._fail(f.name, f.per, f"shape {f.count}", value=tuple(array.shape))
        if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
            raise self._fail(f.name, f.per, "contiguous", value=array.strides)

    def _shape(self, f: FieldSpec) -> None:
        env = self.env
        array = env.raw(f.name)
        if array is None:
            return
        shape = f.shape if self.prefill or f.decode_shape is None else f.decode_shape
        for axis, (text, value) in enumerate(shape or ()):
            got = int(array.shape[axis])
            if value is None:
                key = (text, env.r if "(r)" in text else env.j if "(j)" in text else 0)
                want = env.free.setdefault(key, got)
            else:
                try:
                    want = value(env)
                except (Undefined, AttributeError):  # a dimension that an absent array would give
                    want = -1
            if got != want:
                raise self._fail(f.name, f.per, f"shape {f.count}", index=axis, value=got)

    # --- rules -------------------------------------------------------------------------------------------------

    def _rule(self, rule: RuleSpec) -> None:
        if (rule.full and self.level < Level.FULL) or (rule.needs_step and self.env.step is None):
            return
        for _ in self._keys(rule.per, rule.ratios):
            if all(readable(self.env.raw(name, step)) for step, name in rule.arrays):
                self._one(rule)

    def _one(self, rule: RuleSpec) -> None:
        env = self.env
        env.begin()
        try:
            if not all(guard(env) for guard in rule.guards):
                return
            env.begin()
            with np.errstate(invalid="ignore", over="ignore"):
                index = _first_offence(rule, env)
                if index is None:
                    return
                found = rule.witness(env)
        except Undefined:
            raise self._fail(rule.field, rule.per, rule.text) from None
        if index < 0:
            raise self._fail(rule.field, rule.per, rule.text, value=_plain(found))
        if isinstance(found, np.ndarray):
            found = found[index] if index < len(found) else "missing"
        raise self._fail(rule.field, rule.per, rule.text, index=index, value=_plain(found))


def _plain(value: Any) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _first_offence(rule: RuleSpec, env: Env) -> int | None:
    """None: the rule holds. -1: a scalar rule fails. Else the first offending index."""
    if rule.form == "true":
        return None if rule.body[0](env) else -1
    if rule.form == "all":
        ok = np.atleast_1d(rule.body[0](env))
        if env.outside is not None:
            n = min(len(ok), len(env.outside))
            ok = np.concatenate([ok[:n] & ~env.outside[:n], ok[n:]])
        wrong = np.flatnonzero(~ok)
        if len(wrong):
            return int(wrong[0])
        return len(ok) if env.mismatch else None
    x = rule.body[0](env)
    if rule.form == "disjoint":
        wrong = np.flatnonzero(np.isin(x, rule.body[1](env)))
        return int(wrong[0]) if len(wrong) else None
    at = np.arange(len(x)) if rule.form == "unique" else np.flatnonzero(x >= 0)
    x = x[at]
    order = np.argsort(x, kind="stable")
    again = order[1:][x[order[1:]] == x[order[:-1]]]
    return int(at[again.min()]) if len(again) else None
