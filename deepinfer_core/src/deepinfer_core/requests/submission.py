"""A checked request on its way into the native core: which parameter becomes which argument."""

from __future__ import annotations

from typing import Any

from deepinfer_core.errors import DeepInferError, InvalidParameter, NotSupported
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline import Machinery
from deepinfer_core.requests.request import Request


def check_params(parts: Machinery, params: SamplingParams) -> None:
    """Raise a DeepInferError for parameters that the sampler cannot honour, and for tokens that it never chooses."""
    params.check_chosen(parts.vocab_size)
    sampler = parts.sampler
    if params.prompt_logprobs and not hasattr(sampler, "prompt_logprobs"):
        raise NotSupported(
            "prompt_logprobs: the sampler of this engine has no log-probabilities of prompts",
            remedy="leave it out, or choose another --sampler",
            details={"field": "prompt_logprobs"},
        )
    named = "sampler" if params.sampler is not None else "logits_filters" if params.logits_filters else ""
    if named and not hasattr(sampler, "sample_with"):
        raise NotSupported(
            f"{named}: the sampler of this engine calls no row samplers and no logits filters",
            remedy="leave it out, or choose another --sampler",
            details={"field": named},
        )
    check = getattr(sampler, "check_params", None)
    if check is None:
        return
    try:
        check(params)
    except DeepInferError:
        raise
    except Exception as err:  # the plugin boundary: only this prompt fails
        raise parts.at.fault("sampler.check_params", err).error(0) from err


def submit(core: Any, request: Request) -> int:
    """Queue ``request``; its uid. Raises InvalidParameter for what the core refuses."""
    params = request.params
    # The other samples have the same prompt: the first tells how likely it is.
    scores_prompt = params.prompt_logprobs and request.first is None
    try:
        uid: int = core.submit(
            request.prompt_token_ids,
            max_tokens=params.max_tokens,
            eos_ids=() if params.ignore_eos else tuple(request.eos_ids),
            stop_ids=params.stop_token_ids,
            ignore_eos=params.ignore_eos,
            min_tokens=params.min_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            bias=params.logit_bias,
            seed=request.seed or 0,
            forced=params.forced_token_ids,
            top_logprobs=params.top_logprobs,
            logprobs_raw=params.logprobs_mode == "raw",
            prompt_logprobs=scores_prompt,
            prefix_lookup=not scores_prompt,  # a hit would skip positions
        )
    except ValueError as err:  # an argument that the core refuses; it is unchanged
        raise InvalidParameter(str(err)) from err
    return uid


def fork(core: Any, first: Request, other: Request) -> int | None:
    """Start ``other`` over copies of the caches of ``first``; its uid.

    None where it has to start from the prompt: ``first`` has ended, or there are forced tokens, which no fork takes
    over.
    """
    from deepinfer_native.errors import NotFoundError  # the core exists, so its package does

    if other.params.forced_token_ids:
        return None
    try:
        uid: int = core.fork(first.uid, seed=other.seed or 0, at_prompt=True)
    except NotFoundError:
        return None
    return uid
