"""The requests of an engine that name row samplers or logits filters, and where they are in a step."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from deepinfer_core.errors import NotSupported
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.sampled import BadRow
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.request_parts import NO_PARTS, PartsMaker, RequestParts


class NamedRequests:
    """Costs nothing while no request names anything.

    :param maker: None for an engine that was made without plugins: naming one is refused.
    """

    def __init__(self, maker: PartsMaker | None) -> None:
        self._maker = maker
        self._open: list[Request] = []
        """Those that have not ended, whether they run or wait for something."""

    def make(self, params: SamplingParams) -> RequestParts | None:
        """What a request with ``params`` names; None if it names nothing.

        :raises DeepInferError: nobody has the name, or its plugin refuses the parameters.
        """
        if params.sampler is None and not params.logits_filters:
            return None
        if self._maker is None:
            raise NotSupported(
                "this engine was made without plugins, so requests cannot name any",
                remedy="leave sampler and logits_filters out",
                details={"field": "sampler" if params.sampler is not None else "logits_filters"},
            )
        return self._maker.parts(params.sampler, params.logits_filters)

    def add(self, request: Request) -> None:
        """Before ``request`` is queued: it and its other samples get their parts. Raises as `make` does."""
        for sample in request.samples:
            sample.named = self.make(sample.params)
            if sample.named is not None:
                self._open.append(sample)

    def of_step(self, record: StepRecord, live: Mapping[int, Request]) -> Mapping[int, RequestParts]:
        """Place in the step -> parts, for the rows of ``record`` that get a token."""
        if not self._open:
            return NO_PARTS
        self._open = [request for request in self._open if not request.finished]
        ends = record.outputs.is_last_chunk.tolist() if record.is_prefill else [True] * record.num_reqs
        found = {}
        for place, (uid, gets_token) in enumerate(zip(record.uids, ends, strict=True)):
            request = live.get(uid)
            if request is not None and request.named is not None and gets_token:
                found[place] = request.named
        return found


def explained(record: StepRecord, row: int, why: BadRow) -> BadRow:
    """``why`` with what went wrong in a part that the row's request names, if that is the reason."""
    named = record.named.get(row)
    return why if named is None or named.fault is None else attrs.evolve(why, error=named.fault)
