"""Steps of a sampler over prescribed logits: the inputs as the core packs them, and what came back, on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from attrs import define, frozen

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.errors import NotSupported
from deepinfer_core.records import RowStatus, SamplerInputs, SamplerOutput

MAX_ROWS = 256
"""Requests of a step: ``max_num_seqs`` unless somebody sets it."""
_COLUMNS: dict[str, tuple[type[np.generic], float]] = {
    "temperature": (np.float32, 1.0),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "repetition_penalty": (np.float32, 1.0),
    "presence_penalty": (np.float32, 0.0),
    "frequency_penalty": (np.float32, 0.0),
    "top_k": (np.int32, -1),
    "seed": (np.uint64, 0),
    "sample_pos": (np.int32, 7),
}
_TYPES = {"bias_value": np.float32, "logprobs_raw": np.uint8}


@frozen
class Sampled:
    """What a step gave, as host arrays."""

    tokens: Any
    """``[N]``."""
    logprobs: Any
    """f32 ``[N]``."""
    status: Any
    """int ``[N]``, of ``RowStatus``."""
    verified: Any = None
    """``[T]`` in a step that verifies, else None."""
    accepted: Any = None
    """``[N]`` in a step that verifies, else None."""
    top_ids: Any = None
    top_logprobs: Any = None
    output: Any = None
    """The record itself."""


def step_inputs(n: int, **given: Any) -> SamplerInputs:
    """``SamplerInputs`` of ``n`` requests with a row each; a scalar in ``given`` goes for all of them.

    Host arrays in the types of the contract. Request i has row slot i.
    """
    fields: dict[str, Any] = {
        "selected_rows": np.arange(n, dtype=np.int32),
        "row_slot": np.arange(n, dtype=np.int32),
        "stop_ids": np.zeros((n, 0), np.int32),
        "max_top_logprobs": 0,
    }
    for name, (dtype, neutral) in _COLUMNS.items():
        values = np.asarray(given.pop(name, neutral), dtype=dtype)
        fields[name] = np.broadcast_to(values, (n,)).copy()
    for name, value in given.items():
        fields[name] = np.asarray(value, _TYPES.get(name, np.int32)) if isinstance(value, list | tuple) else value
    return SamplerInputs(**fields)


def masks(n: int, vocab_size: int, **rows: Sequence[int]) -> dict[str, Any]:
    """The fields of a step in which some requests have a grammar: ``r3=[1, 2]`` allows request 3 the tokens 1 and 2."""
    from deepinfer_core.conformance.reference.sampling import words

    mask = np.zeros((n, -(-vocab_size // 32)), np.int32)  # of the others: whatever lies there is not to be read
    listed = sorted(int(name[1:]) for name in rows)
    for request in listed:
        mask[request] = words(rows[f"r{request}"], vocab_size)
    return {"grammar_mask": [mask], "grammar_rows": [np.asarray(listed, np.int32)]}


@define(eq=False)
class Bench:
    """One sampler, and the backend that its steps run on."""

    sampler: Any
    backend: Any
    vocab_size: int

    def device(self, array: Any) -> Any:
        """A host array as a tensor of the backend, through the record that the engine uses for this as well."""
        bound = self.backend.bind_inputs(SamplerOutput(top_logprobs=np.ascontiguousarray(array)))
        return bound.top_logprobs

    def step(self, logits: Any, inputs: SamplerInputs) -> Sampled:
        """Sample ``logits`` (anything numpy takes, ``[R, V]``), and check the form of what comes back.

        Skips the test where the sampler refuses what the inputs ask for (NotSupported).
        """
        rows = np.array(logits, dtype=np.float32)
        given = inputs if getattr(self.sampler, "host_inputs", False) else self.backend.bind_inputs(inputs)
        try:
            output = self.sampler.sample(self.device(rows), given)
        except NotSupported as error:
            not_offered(error.what)
        except Exception as error:  # it never raises for a row, and a step of the kit is one of an engine
            fail("sample raised", got=f"{type(error).__name__}: {error}")
        return self.read(output, len(np.asarray(inputs.temperature)))

    def static(self, logits: Any) -> Sampled:
        """What the sampler gives for rows of which ``is_static`` holds (``interfaces.StaticSampler``)."""
        rows = np.array(logits, dtype=np.float32)
        return self.read(self.sampler.sample_static(self.device(rows)), len(rows))

    def read(self, output: Any, n: int) -> Sampled:
        """The result of ``n`` requests on the host; fails for one of another form."""
        require(getattr(output, "sampled_ids", None) is not None, "sample returned no sampled_ids", got=repr(output))
        tokens = self.host(output, "sampled_ids")
        require_equal(tokens.shape, (n,), "sampled_ids has a wrong shape")
        require(tokens.dtype.kind in "iu", "sampled_ids holds no integers", got=tokens.dtype)
        status = self.host(output, "row_status")
        require(status is not None and status.shape == (n,), "row_status is missing or has a wrong shape")
        ok = status == RowStatus.OK
        wrong = ok & ((tokens < 0) | (tokens >= self.vocab_size))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            fail(
                f"row {row} is OK and its token is outside the vocabulary", got=int(tokens[row]), limit=self.vocab_size
            )
        logprobs = self.host(output, "sampled_logprob")
        require(logprobs is not None and logprobs.shape == (n,), "sampled_logprob is missing or has a wrong shape")
        require(not np.isnan(logprobs[ok]).any(), "sampled_logprob is NaN in a row that is OK")
        require((logprobs[ok] <= 1e-6).all(), "sampled_logprob is above 0", got=float(logprobs.max()))
        return Sampled(
            tokens.astype(np.int64),
            logprobs,
            status,
            self.host(output, "verified_ids"),
            self.host(output, "accepted"),
            self.host(output, "top_ids"),
            self.host(output, "top_logprobs"),
            output,
        )

    def host(self, output: Any, name: str) -> Any:
        value = getattr(output, name, None)
        return None if value is None else np.asarray(self.backend.to_host(value))

    def draws(self, logits: Sequence[float], count: int, *, vary: str = "seed", **given: Any) -> list[int]:
        """``count`` tokens of one row of logits, whose ``seed`` (or ``sample_pos``) runs from 1."""
        tokens: list[int] = []
        for first in range(1, count + 1, MAX_ROWS):
            n = min(MAX_ROWS, count + 1 - first)
            parameters = {vary: np.arange(first, first + n), **given}
            out = self.step(np.tile(np.asarray(logits, np.float32), (n, 1)), step_inputs(n, **parameters))
            require((out.status == RowStatus.OK).all(), "a row that can be sampled is not OK", got=out.status.tolist())
            tokens += out.tokens.tolist()
        return tokens


def arrays_of(record: Any) -> Iterator[tuple[str, Any]]:
    """Name and host array of every field that is set, lists of arrays opened."""
    for field in attrs.fields(type(record)):
        value = getattr(record, field.name)
        for place, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, np.ndarray):
                yield f"{field.name}[{place}]" if isinstance(value, list) else field.name, item


def random_logits(rows: int, vocab_size: int, seed: int, spread: float = 2.0) -> Any:
    """f32 ``[rows, vocab_size]``, normal with that deviation."""
    return np.random.default_rng(seed).normal(0.0, spread, (rows, vocab_size)).astype(np.float32)
