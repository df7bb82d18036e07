"""The hooks of plugin API 1.0. Hooks compose the engine; none is on the token path.

A hook is called with keyword arguments, and an implementation may leave out any that it does not need. Every hook here
has a first-party plugin that implements it and a test of the conformance kit that is marked with its name
(``spec/plugins.md`` 7; ``docs/generate_reference.py`` refuses a hook without them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.interfaces import (
        Backend,
        GrammarEngine,
        LogitsFilter,
        Model,
        RowSampler,
        Sampler,
        Scorer,
        StepObserver,
    )
    from deepinfer_core.text.tokenizer import Tokenizer
    from deepinfer_core.types import (
        CacheSpec,
        CommandSpec,
        DoctorCheck,
        HostInfo,
        ModelCard,
        ModelMatch,
        ProbeReport,
        SchedulerHints,
    )

PROJECT = "deepinfer"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --- backends ---------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def deepinfer_backend_probe(name: str, host: HostInfo) -> ProbeReport | None:
    """Say what this backend finds on the host.

    Called once, in a child process with a limit of 5 s, before the backend is chosen. Creates no device context.

    :param name: The backend's name.
    :param host: Operating system, machine and Python of this host.
    :returns: The report. A device that is present but cannot be used has ``present=True, usable=False`` and says why
        in ``reasons``.

    Asked only of the plugin that owns ``name``. Since API 1.0.
    """


@hookspec(firstresult=True)
def deepinfer_backend_create(name: str, device: str | None, config: EngineConfig) -> Backend | None:
    """Make the backend called ``name``.

    Called once, in the process that runs the model. Heavy imports belong here, not at module level.

    :param name: The backend's name.
    :param device: The device asked for, e.g. ``cuda:0``; None leaves the choice to the backend.
    :param config: All settings, frozen.
    :returns: The backend, normally from ``deepinfer_core.interfaces.build_backend``. Raises BackendUnavailable, or
        another BackendError, when the device cannot be used.

    Stops at the first result. Asked only of the plugin that owns ``name``. Since API 1.0.
    """


# --- models -----------------------------------------------------------------------------------------------------


@hookspec
def deepinfer_model_match(card: ModelCard) -> ModelMatch | None:
    """Say whether this plugin runs the model, and what it needs of a backend.

    Called once for each such plugin. Reads no weights.

    :param card: ``config.json`` of the checkpoint, parsed.
    :returns: The match, or None. The highest score wins; equal scores are refused (E_MODEL_AMBIGUOUS).

    Asked only of plugins whose manifest lists the architecture. Since API 1.0.
    """


@hookspec(firstresult=True)
def deepinfer_cache_specs(match: ModelMatch, config: EngineConfig) -> Sequence[CacheSpec] | None:
    """List the caches of the model: which pool each belongs to and what each layer keeps.

    Called once, before the caches are allocated.

    :param match: This plugin's own answer to ``deepinfer_model_match``.
    :param config: All settings, frozen.
    :returns: One spec for each cache; an empty sequence for a model without caches.

    Asked only of the plugin that matched. Since API 1.0.
    """


@hookspec(firstresult=True)
def deepinfer_model_create(match: ModelMatch, config: EngineConfig, backend: Backend) -> Model | None:
    """Make the model, without weights; the core then calls ``load``.

    Called once, in the process that runs the model, after the backend was checked against the requirements.

    :param match: This plugin's own answer to ``deepinfer_model_match``.
    :param config: All settings, frozen.
    :param backend: The backend whose ops the model calls.
    :returns: The model.

    Stops at the first result. Asked only of the plugin that matched. Since API 1.0.
    """


# --- samplers, grammars and scheduling ---------------------------------------------------------------------------


@hookspec(firstresult=True)
def deepinfer_sampler_create(
    name: str, params: Mapping[str, Any], vocab_size: int, config: EngineConfig | None, backend: Backend | None
) -> Sampler | RowSampler | None:
    """Make the sampler called ``name``: that of the whole engine, or a row sampler that single requests name.

    Called once for each engine, and for each set of parameters that requests name it with, in the process that runs the
    model. A request's row sampler is made before the request is queued; what this raises then ends that request alone.

    :param name: The sampler's name.
    :param params: Parameters of this sampler; empty for its defaults. A name that it does not know is an error.
    :param vocab_size: Ids that may be chosen (the smaller of model and tokenizer); logits may be wider.
    :param config: All settings, frozen. ``draft_tokens`` and ``verification`` say what a sampler that verifies
        drafts has to do. None outside an engine: no drafts.
    :param backend: The backend whose ops the sampler may call. None outside an engine.
    :returns: The sampler: a ``Sampler``, or a ``RowSampler`` if requests may name it.

    Stops at the first result. Asked only of the plugin that owns ``name``. Since API 1.0.
    """


@hookspec(firstresult=True)
def deepinfer_logits_filter_create(name: str, params: Mapping[str, Any], vocab_size: int) -> LogitsFilter | None:
    """Make the logits filter called ``name``.

    Called when a request names it, once for each engine and set of parameters, before the request is queued and in the
    process that runs the model. What it raises ends that request alone.

    :param name: The filter's name.
    :param params: What the request gave with the name; empty for the defaults. A name that the filter does not know is
        an error.
    :param vocab_size: Width of the rows that the filter gets.
    :returns: The filter.

    Stops at the first result. Asked only of the plugin that owns ``name``. Since API 1.0.
    """


@hookspec(firstresult=True)
def deepinfer_grammar_create(
    name: str, tokenizer: Tokenizer, vocab_size: int, config: EngineConfig
) -> GrammarEngine | None:
    """Make the grammar engine called ``name``.

    Called once for each engine, when the first request asks for structured output, in a worker thread of the process
    that runs the model. Heavy imports belong here, not at module level.

    :param name: The grammar engine's name.
    :param tokenizer: ``token_bytes`` has the text of each token, ``eos_ids`` the end tokens.
    :param vocab_size: Width of the masks in tokens, that of the logits. It may be above ``tokenizer.vocab_size``; the
        ids in between have no text.
    :param config: All settings, frozen.
    :returns: The grammar engine.

    Stops at the first result. Asked only of the plugin that owns ``name``. Since API 1.0.
    """


@hookspec
def deepinfer_scheduler_hints(match: ModelMatch, backend: Backend, config: EngineConfig) -> SchedulerHints | None:
    """Tell the scheduler what the model or the backend needs of it.

    Called once for the plugins of the chosen model and backend, before the scheduler is made.

    :param match: The chosen model's match.
    :param backend: The chosen backend.
    :param config: All settings, frozen.
    :returns: The hints, or None. A field left at its default asks for nothing; two plugins that ask for different
        values of one field are refused.

    Asked only of the plugins of the chosen model and backend. Since API 1.0.
    """


# --- evaluation -------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def deepinfer_scorer_create(name: str, params: Mapping[str, Any]) -> Scorer | None:
    """Make the scorer called ``name``, which judges answers of an evaluation.

    Called by ``deepinfer eval`` for each set of parameters that a run or its items name it with, before anything is
    generated and without a model.

    :param name: The scorer's name.
    :param params: What was given with the name; empty for the defaults. A name that the scorer does not know is an
        error.
    :returns: The scorer.

    Stops at the first result. Asked only of the plugin that owns ``name``. Since API 1.0.
    """


# --- observation ------------------------------------------------------------------------------------------------


@hookspec
def deepinfer_step_observer(config: EngineConfig) -> StepObserver | None:
    """Make what sees the steps of an engine: metrics, health, logs, traces.

    Called once for each engine, before a model is looked at: what cannot be had, such as a port that is taken, is told
    before weights are read. What this raises stops the start.

    :param config: All settings, frozen; those of table ``[observe]`` are for this.
    :returns: The observer; None where these settings want nothing of it.

    Asked only of extensions that the settings enable. Since API 1.0.
    """


# --- commands ---------------------------------------------------------------------------------------------------


@hookspec
def deepinfer_cli_commands() -> Sequence[CommandSpec] | None:
    """Say what the commands that the plugin's manifest declares run.

    Called when one of them was typed: ``deepinfer NAME`` for a first-party plugin and for one that the settings enable
    or allow by name, ``deepinfer DISTRIBUTION.NAME`` for every other.

    :returns: One spec for each command in ``commands`` of the manifest's table, and no other.

    Asked only of the plugin that declares the command. Since API 1.0.
    """


# --- diagnosis --------------------------------------------------------------------------------------------------


@hookspec
def deepinfer_doctor_checks(host: HostInfo) -> Sequence[DoctorCheck] | None:
    """Say for ``deepinfer doctor`` whether what this plugin rests on is there and fits: libraries, drivers, versions.

    Called in a child process with a limit of 60 s, after the plugin was loaded in another one. Heavy imports belong
    here. Creates no device context, and changes nothing on the host.

    :param host: Operating system, machine and Python of this host.
    :returns: One check for each thing looked at, in the order to print. What this raises is reported as a problem of
        the plugin.

    Any plugin may implement it. Since API 1.0.
    """
