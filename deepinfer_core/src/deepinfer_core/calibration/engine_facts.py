"""The time budget of an engine that is being built: its facts, and how prompts run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from deepinfer_core.assembly.memory import PoolPlan
from deepinfer_core.assembly.parts import Parts
from deepinfer_core.calibration.budget import Measured, TimeBudget, time_budget
from deepinfer_core.calibration.measure import Run
from deepinfer_core.calibration.profile import host_facts, model_fingerprint
from deepinfer_core.calibration.verify_curve import VerifyCurve, verify_curve
from deepinfer_core.pipeline.meter import StepObserver
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import ReplayModeName

SPEED_SETTINGS = (
    "numeric_mode",
    "cache_formats",
    "num_threads",
    "device",
    "sampler",
    "validation",
    "verify",
    "deterministic",
    "replay_mode",
    "keep_tokens",
)
"""Settings of the engine that change what a step costs."""
DISTRIBUTIONS = ("deepinfer-core", "deepinfer-native", "deepinfer-contracts")


def facts_of(parts: Parts, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that changes what a step costs: a profile belongs to equal facts."""
    config = parts.config
    has = parts.backend.capabilities
    return {
        "model": model_fingerprint(parts.card.path, parts.card.config),
        "plugins": dict(sorted(parts.owners.items())),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
        "device": [has.name, has.device_type, has.arch, has.count, str(parts.backend.device)],
        "groups": [config.dp, config.cp, config.ep],
        "settings": {name: config.get(name) for name in SPEED_SETTINGS},
        "core": {name: settings[name] for name in ("block_size", "inputs", "num_draft") if name in settings},
        **host_facts(),
    }


def budget_of(
    parts: Parts,
    plan: PoolPlan,
    settings: Mapping[str, Any],
    make_engine: Callable[[Mapping[str, Any], StepObserver], Measured],
    tokenizer: Tokenizer,
) -> TimeBudget:
    """The time budget of ``target_itl_ms`` for an engine with these core ``settings``. See :func:`time_budget`."""
    target = parts.config.target_itl_ms
    if target is None:
        raise ValueError("target_itl_ms is not set")
    return time_budget(
        target,
        parts.hints,
        facts_of(parts, settings),
        make_engine=make_engine,
        run_on=_runner(tokenizer, settings),
        max_tokens=min(settings["max_model_len"], plan.tokens),
        max_step_tokens=settings.get("max_chunk") or settings["max_num_batched_tokens"],
        max_num_seqs=plan.max_num_seqs,
        keep=settings.get("replay_keep", 0) if parts.config.replay_mode == "compact" else 0,
    )


def curve_for(
    parts: Parts,
    plan: PoolPlan,
    settings: Mapping[str, Any],
    make_engine: Callable[[Mapping[str, Any], StepObserver], Measured],
    tokenizer: Tokenizer,
) -> VerifyCurve:
    """Step times by rows for an engine that chooses how many drafts to verify. See :func:`verify_curve`."""
    return verify_curve(
        facts_of(parts, settings),
        make_engine=make_engine,
        run_on=_runner(tokenizer, settings),
        num_draft=settings["num_draft"],
        max_num_seqs=plan.max_num_seqs,
        max_tokens=min(settings["max_model_len"], plan.tokens),
    )


def _runner(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Callable[[Any], Run]:
    def run_on(engine: Any) -> Run:
        def run(prompts: list[list[int]], tokens: int, replay_mode: ReplayModeName | None = None) -> None:
            sizes = settings["vocab_size"], settings["max_model_len"]
            run_prompts(engine, tokenizer, prompts, tokens, *sizes, replay_mode)

        return run

    return run_on


def run_prompts(
    engine: Any,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    tokens: int,
    vocab_size: int,
    max_model_len: int,
    replay_mode: ReplayModeName | None = None,
) -> None:
    """Generate ``tokens`` tokens for each prompt, all at once. Raises the error of a prompt that fails."""
    from deepinfer_core.parameters.sampling_params import SamplingParams
    from deepinfer_core.requests.prompts import inputs_of  # the request side is not needed to build an engine otherwise
    from deepinfer_core.requests.runs import Run as Requests

    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, replay_mode=replay_mode)
    running = Requests(
        engine,
        tokenizer,
        inputs_of(prompts, params),
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        window=len(prompts),
        seed=0,
        streaming=False,
    )
    for request in running:
        if request.error is not None:
            raise request.error
