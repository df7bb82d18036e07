"""Which tokens of recorded answers say something about the sampler (``spec/sampling.md`` 1.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import frozen

from deepinfer_core.parameters.sampling_params import GREEDY_BELOW
from deepinfer_core.replay import RecordedRequest
from deepinfer_core.requests.seeds import sample_seed


@frozen
class Draws:
    """Draws, in the order of the lines."""

    sum_smaller: tuple[float, ...]
    """Mass of tokens less likely than the drawn one, itself included: F(x), with tokens in the order of likelihood."""
    logprobs: tuple[float, ...]
    """Of the drawn token, in the distribution that it was drawn from."""
    left_out: Mapping[str, int]
    """Why a token is no draw to be looked at -> how many tokens."""


def collect(requests: Iterable[RecordedRequest]) -> Draws:
    """The draws of ``requests``.

    Left out is what says nothing, or would count twice: a choice without a draw (greedy, forced, or only one token had
    any probability), a distribution that is not known (``logprobs_mode`` raw, a sampler that the request names), and
    a draw with the seed and the position of an earlier one, whose noise it repeats.
    """
    smaller: list[float] = []
    logprobs: list[float] = []
    left_out: Counter[str] = Counter()
    keys: set[tuple[int, int]] = set()
    for request in requests:
        params = request.params
        whole = _reason(request)
        for sample, answer in enumerate(request.answers):
            if reason := whole or ("no sum_smaller" if answer.sum_smaller is None or answer.logprobs is None else ""):
                left_out[reason] += len(answer.token_ids)
                continue
            seed = sample_seed(params.seed or 0, sample)
            rows = zip(answer.sum_smaller or (), answer.logprobs or (), strict=True)
            for at, (mass, logprob) in enumerate(rows):
                key = (seed, len(request.prompt_token_ids) + at)
                if at < len(params.forced_token_ids) and params.forced_token_ids[at] >= 0:
                    left_out["forced"] += 1
                elif logprob == 0:
                    left_out["certain"] += 1
                elif key in keys:
                    left_out["repeated seed and position"] += 1
                else:
                    keys.add(key)
                    smaller.append(mass)
                    logprobs.append(logprob)
    return Draws(tuple(smaller), tuple(logprobs), dict(left_out))


def _reason(request: RecordedRequest) -> str:
    """Why no token of ``request`` is looked at."""
    params = request.params
    if params.temperature < GREEDY_BELOW or params.top_k == 1:
        return "greedy"
    if params.sampler is not None:
        return "sampler of the request"
    return "raw logprobs" if params.logprobs_mode == "raw" else ""
