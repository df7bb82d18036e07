"""``EngineConfig``: every setting of the engine, resolved once into one frozen object.

Precedence: flag (or argument in Python) > file (TOML) > environment ``DEEPINFER_*`` > default. The origin of each value
is kept, so that a message can name it. Sources: ``spec/sampling.md`` 5.1 and 5.3, ``spec/plugins.md`` 7 and 8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs import frozen

from deepinfer_core.errors import ConfigError, NotSupported
from deepinfer_core.observation.settings import NEEDED, ObserveSettings
from deepinfer_core.setting_sources import from_environment, from_file, from_flags
from deepinfer_core.settings import Setting, did_you_mean, read_value, setting, source_text

if TYPE_CHECKING:  # --help needs the settings, and no record
    from deepinfer_core.types import (
        Determinism,
        DraftSchedule,
        NumericMode,
        PrefixReplay,
        ReplayModeName,
        Verification,
        VerifySetting,
    )


@frozen
class PluginSettings:
    """Which plugins may load, and who wins a name (table ``[plugins]`` of the file)."""

    enable: tuple[str, ...] = setting((), "Extensions to load.", kind="names")
    disable: tuple[str, ...] = setting((), "Plugins never to load (names, or KIND:NAME).", kind="names")
    prefer: Mapping[str, str] = setting({}, "Distribution that wins a name: KIND:NAME=DISTRIBUTION.", kind="table")
    lock: str | None = setting(
        None, "File of deepinfer plugins lock: use exactly these plugins, or refuse.", kind="text"
    )
    allow: tuple[str, ...] | None = setting(
        None,
        "Third-party plugins allowed besides the first-party ones; empty: none.",
        kind="names",
        env="DEEPINFER_PLUGINS",
    )


@frozen
class EngineConfig:
    """All settings. Make one with :meth:`resolve`; the constructor takes values as they are and checks nothing."""

    model: str | None = setting(None, "Checkpoint directory; left out: the small checkpoint of a plugin.", kind="text")
    model_plugin: str | None = setting(None, "Model plugin to use when several match.", kind="text")
    load_format: str = setting(
        "checkpoint",
        "Where weights come from; dummy: random ones of the right shapes, for measurements without a checkpoint.",
        kind="text",
        choices=("checkpoint", "dummy"),
    )
    backend: str = setting("auto", "Backend plugin, or auto.", kind="text")
    device: str | None = setting(None, "Device of the backend, e.g. cuda:0.", kind="text")
    emulate: bool = setting(
        False, "Run a backend's own code on the processor, where it can; every result is marked.", kind="boolean"
    )
    seed: int | None = setting(
        None,
        "Makes the seeds of requests that bring none, each with its place; random unless given.",
        kind="integer",
        modulo=2**64,
    )
    numeric_mode: NumericMode = setting(  # noqa: RUF009 (attrs, not a dataclass)
        "released", "Rounding as released, or exact (fp32).", kind="text", choices=("released", "exact")
    )
    cache_formats: bool = setting(True, "Store caches in the model's quantised formats.", kind="boolean")
    max_model_len: int | None = setting(
        None,
        "Longest sequence, in tokens; an answer's last token, which no step runs, is not counted.",
        kind="integer",
        minimum=1,
        maximum=2**27,
    )
    max_num_seqs: int = setting(256, "Most sequences in one step.", kind="integer", minimum=1, maximum=65536)
    max_num_batched_tokens: int | None = setting(
        None, "Most tokens in one step.", kind="integer", minimum=1, maximum=2**24
    )
    max_chunk: int | None = setting(
        None, "Most prompt tokens of one sequence in a step.", kind="integer", minimum=1, maximum=2**24
    )
    chunked_prefill: bool = setting(True, "Split long prompts over several steps.", kind="boolean")
    target_itl_ms: int | None = setting(
        None,
        "Milliseconds between two decode steps that prompt chunks must keep to; measures step times once.",
        kind="integer",
        minimum=1,
        maximum=600_000,
    )
    block_size: int | None = setting(None, "Tokens of one cache block.", kind="integer", minimum=1, maximum=4096)
    prefix_cache: bool = setting(
        False,
        "Reuse the blocks of equal prompt beginnings. Of a reused beginning the last part runs again (prefix_replay).",
        kind="boolean",
    )
    prefix_replay: PrefixReplay = setting(  # noqa: RUF009
        "window",
        "How much of a reused beginning runs again: its last window, so that answers are those of a run whose windows "
        "start there, or so much that they are those of a run that reuses nothing (exact).",
        kind="text",
        choices=("window", "exact"),
    )
    replay_mode: ReplayModeName = setting(  # noqa: RUF009
        "off",
        "Prompt rows that the decoder half runs: all, all with windows cut at --keep-tokens, or the last ones only.",
        kind="text",
        choices=("off", "mask", "compact"),
    )
    keep_tokens: int | None = setting(
        None,
        "Prompt rows that a --replay-mode keeps in the decoder half: at least the window and what may be rolled back.",
        kind="integer",
        minimum=1,
        maximum=2**24,
    )
    kv_memory: int = setting(
        256 << 20,
        "Memory for the caches and for the distributions of drafts, e.g. 512MiB.",
        kind="size",
        minimum=1,
        maximum=2**48,
    )
    sampler: str = setting("canonical", "Sampler plugin.", kind="text")
    grammar_engine: str = setting("auto", "Grammar engine plugin for structured output, or auto.", kind="text")
    so_builder_cpus: int = setting(
        4, "Threads that compile grammars; no more than there are processors.", kind="integer", minimum=1, maximum=256
    )
    so_timeout_s: int = setting(
        20, "Seconds to compile a grammar.", kind="integer", minimum=1, maximum=86_400, env="DEEPINFER_XGRAMMAR_TIMEOUT"
    )
    so_cache_bytes: int = setting(
        1 << 30, "Memory for compiled grammars.", kind="size", minimum=0, env="DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES"
    )
    validation: str = setting(
        "boundary", "Checks of contract records.", kind="text", choices=("off", "boundary", "full")
    )
    sum_smaller: bool = setting(
        False,
        "With log-probabilities: also the mass of less likely tokens, for auditing the sampler.",
        kind="boolean",
        env="DEEPINFER_COMPUTE_SUM_SMALLER_PROBS",
    )
    draft_tokens: int = setting(
        0,
        "Draft tokens of each sequence in a decode step, at most the model's block; 0: no speculation.",
        kind="integer",
        minimum=0,
        maximum=15,
    )
    draft_schedule: DraftSchedule = setting(  # noqa: RUF009 (attrs, not a dataclass)
        "fixed",
        "Verify every draft, or as many as confidence and measured step times make worth while.",
        kind="text",
        choices=("fixed", "confidence"),
    )
    verify: VerifySetting = setting(  # noqa: RUF009
        "auto",
        "How drafts are verified; auto: coupled under --deterministic batch, else rejection.",
        kind="text",
        choices=("auto", "rejection", "coupled"),
    )
    deterministic: Determinism = setting(  # noqa: RUF009
        "off",
        "run: the same call of a fresh engine gives the same tokens; batch: and so does any other batch.",
        kind="text",
        choices=("off", "run", "batch"),
    )
    decode_token_blacklist: tuple[int, ...] = setting((), "Tokens that are never chosen.", kind="ids")
    sampler_force_topk: int = setting(
        0,
        "Candidates of every token, whatever the request says: the best so many after masks; 0: all.",
        kind="integer",
        minimum=0,
        maximum=2**31 - 1,
    )
    confidence_temperature: tuple[float, ...] = setting(
        (1.0,),
        "Divides what the draft head's confidences are made from; one number, or one for each draft.",
        kind="numbers",
        env="DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE",
    )
    max_backtracking_tokens: int = setting(
        0,
        "Positions that a sequence's ring buffers can take back at least; a whole block of drafts they always can.",
        kind="integer",
        minimum=0,
        maximum=1024,
    )
    overlap: bool = setting(True, "Launch a step before the one before it is committed.", kind="boolean")
    graphs: bool = setting(
        True, "Record decode steps as graphs of the device, where backend and model can.", kind="boolean"
    )
    graphs_at_start: bool = setting(
        False, "Record the graphs of all sizes before the first request, not each when it is needed.", kind="boolean"
    )
    sync_guard: bool = setting(
        False, "Debugging: a call that waits for the device while a step is launched is an error.", kind="boolean"
    )
    num_threads: int | None = setting(
        None, "Threads of the cpu backend; 1 unless given.", kind="integer", minimum=1, maximum=4096
    )
    dp: int = setting(1, "Data parallel size; this release runs 1.", kind="integer", minimum=1, maximum=4096)
    cp: int = setting(1, "Context parallel size; this release runs 1.", kind="integer", minimum=1, maximum=4096)
    ep: int = setting(1, "Expert parallel size; this release runs 1.", kind="integer", minimum=1, maximum=4096)
    plugins: PluginSettings = PluginSettings()
    observe: ObserveSettings = ObserveSettings()  # noqa: RUF009
    strict_plugins: bool = setting(False, "A plugin that fails stops the command at once.", kind="boolean")
    trace_hooks: bool = setting(False, "Print each hook call on stderr.", kind="boolean")
    debug: bool = setting(False, "Print tracebacks.", kind="boolean")

    origins: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, eq=False, repr=False)
    """Key -> where its value came from; keys that are absent have their default."""
    warnings: tuple[str, ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False)
    """Lines for stderr, each printed once by whoever resolved the settings."""

    @property
    def verification(self) -> Verification:
        """How drafts are verified, with ``auto`` resolved."""
        if self.verify == "auto":
            return "coupled" if self.deterministic == "batch" else "rejection"
        return self.verify

    @property
    def base_seed(self) -> int | None:
        """What the seeds of requests that bring none are made from: 0 in a deterministic engine without a seed."""
        return 0 if self.seed is None and self.deterministic != "off" else self.seed

    def origin(self, key: str) -> str:
        """``flag``, ``argument``, ``file PATH``, ``environment NAME`` or ``default``."""
        if key not in settings_by_key():
            raise ConfigError(f"no setting named {key!r}{did_you_mean(key, settings_by_key())}")
        return self.origins.get(key, "default")

    def get(self, key: str) -> Any:
        """The value of a setting by its key, e.g. ``plugins.allow``."""
        value: Any = self
        for part in key.split("."):
            value = getattr(value, part)
        return value

    @classmethod
    def resolve(
        cls,
        flags: Mapping[str, object] | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        flag_origin: str = "flag",
        recorded: Mapping[str, object] | None = None,
    ) -> Self:
        """Read every source once and check every value.

        :param flags: Setting key -> value; the strongest source. None means that a flag was not given.
        :param file: TOML file whose keys are setting keys. Relative paths in it are relative to the file.
        :param environ: The environment; None: that of this process. Pass ``{}`` to read none.
        :param flag_origin: What to call the first source: ``flag``, or ``argument`` in Python.
        :param recorded: Those of an earlier run, weaker than ``flags`` only.
        :raises ConfigError: for an unknown key (with the nearest name), or a value out of range.
        :raises NotSupported: for a group size above 1.
        """
        known = settings_by_key()
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        env_values, warnings = from_environment(os.environ if environ is None else environ, known)
        layers = [env_values]
        if file is not None:
            layers.append(from_file(Path(file), known))
        layers += [from_flags(recorded or {}, "the results", known), from_flags(flags or {}, flag_origin, known)]
        for layer in layers:
            for key, (raw, origin, source) in layer.items():
                values[key] = read_value(key, known[key], raw, source)
                origins[key] = origin
        config = cls(**_nested(values), origins=origins, warnings=warnings)
        config._refuse_groups()
        config._refuse_unused()
        return config

    def _refuse_groups(self) -> None:
        sizes = {key: self.get(key) for key in ("dp", "cp", "ep") if self.get(key) > 1}
        if sizes:
            asked = ", ".join(f"{key}={size}" for key, size in sizes.items())
            raise NotSupported(
                f"{asked} was asked for, and this release runs one device per engine",
                reason="the scheduler can step in a data-parallel group; models, caches and engines run on one device",
                remedy="leave " + " and ".join(f"--{key}" for key in sizes) + " out, and start one engine per device",
                details=sizes,
            )

    def _refuse_unused(self) -> None:
        """What only means something beside another setting is a mistake without it, where somebody wrote it for this
        run. A variable of the environment is there for every run."""
        for name, needed in NEEDED.items():
            key, origin = f"observe.{name}", self.origin(f"observe.{name}")
            is_written = origin not in ("default", "the results") and not origin.startswith("environment ")
            if is_written and self.get(key) is not False and getattr(self.observe, needed) is None:
                raise ConfigError(
                    f"{key} does nothing without observe.{needed}",
                    reason=f"set by {source_text(key, origin)}",
                    remedy=f"give --{needed.replace('_', '-')} (observe.{needed}) as well, or leave it out",
                    details={"field": key, "needs": f"observe.{needed}"},
                )


_TABLES: Mapping[str, type] = {"plugins": PluginSettings, "observe": ObserveSettings}
_SETTINGS: dict[str, Setting] = {}


def settings_by_key() -> Mapping[str, Setting]:
    """Every setting, in order of declaration; keys of tables are dotted."""
    if not _SETTINGS:
        for owner, prefix in ((EngineConfig, ""), *((owner, f"{table}.") for table, owner in _TABLES.items())):
            for declared in attrs.fields(owner):
                if "setting" in declared.metadata:
                    _SETTINGS[prefix + declared.name] = declared.metadata["setting"]
    return _SETTINGS


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys gathered into the records of their tables."""
    nested = {key: value for key, value in values.items() if "." not in key}
    for table, owner in _TABLES.items():
        own = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{table}.")}
        nested[table] = owner(**own)
    return nested
