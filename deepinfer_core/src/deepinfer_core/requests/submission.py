"""A checked request on its way into the native core: which parameter becomes which argument."""

from __future__ import annotations

from typing import Any

from deepinfer_core.errors import DeepInferError, InvalidParameter, NotSupported
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline import Machinery
from deepinfer_core.requests.request import Request
from deepinfer_core.types import REPLAY_MODES, ReplayModeName


def check_params(parts: Machinery, params: SamplingParams, replay_mode: ReplayModeName = "off") -> None:
    """Raise a DeepInferError for parameters that the sampler cannot honour, and for tokens that it never chooses.

    ``replay_mode``: of the engine.
    """
    params.check_chosen(parts.vocab_size)
    check_replay(params, replay_mode)
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


def check_replay(params: SamplingParams, engine_mode: ReplayModeName) -> None:
    """Raise InvalidParameter for a mode of bounded replay that the inputs of this engine cannot carry, NotSupported for
    log-probabilities of a prompt of which rows are left out."""
    mode = params.replay_mode or engine_mode
    if REPLAY_MODES.index(mode) > REPLAY_MODES.index(engine_mode):
        raise InvalidParameter(
            f"replay_mode {mode!r} is beyond that of the engine, {engine_mode!r}",
            reason="the inputs of a step say no more about the decoder half than the engine's mode",
            remedy=f"make the engine with replay_mode={mode!r} (--replay-mode {mode}), or leave it out of the request",
            details={"field": "replay_mode", "value": mode, "engine": engine_mode},
        )
    if params.prompt_logprobs and mode != "off":
        raise NotSupported(
            f"prompt_logprobs with replay_mode {mode!r}",
            reason="the decoder half runs the last rows of a prompt only, so the others have no log-probabilities",
            remedy="set replay_mode='off' for this request",
            details={"field": "prompt_logprobs", "replay_mode": mode},
        )


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
            replay_mode=-1 if params.replay_mode is None else REPLAY_MODES.index(params.replay_mode),
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
