"""``EngineConfig``: every setting of the engine, resolved once into one frozen object.

Precedence: flag (or argument in Python) > file (TOML) > environment ``DEEPINFER_*`` > default. The origin of each value
is kept, so that a message can name it. Sources: ``spec/sampling.md`` 5.1 and 5.3, ``spec/plugins.md`` 7 and 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs import frozen

from deepinfer_core.errors import ConfigError, NotSupported
from deepinfer_core.observation.settings import ObserveSettings
from deepinfer_core.settings import Setting, did_you_mean, nearest, read_value, setting, source_text

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

MAX_FILE_BYTES = 1 << 20
_ENV_PREFIX = "DEEPINFER_"


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
    max_model_len: int | None = setting(None, "Longest sequence, in tokens.", kind="integer", minimum=1, maximum=2**27)
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
        env_values, warnings = _from_environment(os.environ if environ is None else environ)
        layers = [env_values]
        if file is not None:
            layers.append(_from_file(Path(file)))
        layers += [_from_flags(recorded or {}, "the results"), _from_flags(flags or {}, flag_origin)]
        for layer in layers:
            for key, (raw, origin, source) in layer.items():
                values[key] = read_value(key, known[key], raw, source)
                origins[key] = origin
        config = cls(**_nested(values), origins=origins, warnings=warnings)
        config._refuse_groups()
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


def _is_of_plugin(name: str) -> bool:
    """Whether a variable, such as ``DEEPINFER_CUDA_CACHE``, belongs to a first-party plugin, which reads it itself."""
    from deepinfer_core.plugins.names import FIRST_PARTY  # 20 ms, where something is unknown

    return any(name.startswith(f"{_ENV_PREFIX}{plugin.upper()}_") for _, plugin in FIRST_PARTY)


_Layer = dict[str, tuple[object, str, str]]  # key -> raw value, origin, source as a message names it


def _from_environment(environ: Mapping[str, str]) -> tuple[_Layer, tuple[str, ...]]:
    by_name = {declared.env_name(key): (key, declared) for key, declared in settings_by_key().items()}
    layer: _Layer = {}
    warnings: list[str] = []
    for name in sorted(environ):
        if not name.startswith(_ENV_PREFIX):
            continue
        if name not in by_name:
            if _is_of_plugin(name):
                continue
            guess = nearest(name.removeprefix(_ENV_PREFIX), {known.removeprefix(_ENV_PREFIX) for known in by_name})
            hint = f"; did you mean {_ENV_PREFIX}{guess}?" if guess else ""
            warnings.append(f"W_ENV: {name} is not a setting, and is ignored{hint}")
            continue
        key, declared = by_name[name]
        # Empty means "not set", except where an empty value says something: false, or an allow list that allows nobody.
        if environ[name] == "" and declared.kind not in ("boolean", "names"):
            continue
        layer[key] = (environ[name], f"environment {name}", name)
    return layer, tuple(warnings)


def _from_file(path: Path) -> _Layer:
    table = _read_toml(path)
    flat: dict[str, object] = {}
    for key, value in table.items():
        if key in _TABLES and isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    known = settings_by_key()
    unknown = [key for key in flat if key not in known]
    if unknown:
        listed = ", ".join(f"{key!r}{_guess(key)}" for key in unknown)
        raise ConfigError(
            f"{path}: unknown setting{'s' if len(unknown) > 1 else ''} {listed}",
            reason="a misspelt setting would be ignored without a word",
            remedy=_of_requests(unknown) or "correct or remove it; deepinfer generate --help lists the settings",
            details={"unknown": unknown},
        )
    source = f"file {path}"
    for key, no_path in (
        ("model", ""),
        ("plugins.lock", ""),
        ("observe.step_log", "-"),
        ("observe.trace_file", "global"),
    ):
        if isinstance(flat.get(key), str) and flat[key] not in ("", no_path):
            flat[key] = str(path.parent / str(flat[key]))  # the file means the same from every working directory
    return {key: (value, source, source) for key, value in flat.items()}


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # only with --config

    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes", remedy="give a settings file in TOML")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"cannot read the settings file {path}", reason=exc.strerror or str(exc), remedy="check --config"
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not TOML", reason=str(exc), remedy="correct the file") from exc


def _from_flags(flags: Mapping[str, object], origin: str) -> _Layer:
    known = settings_by_key()
    for key in flags:
        if key not in known:
            raise ConfigError(
                f"no setting named {key!r}{'' if _of_requests([key]) else did_you_mean(key, known)}",
                remedy=_of_requests([key]) or "settings are: " + ", ".join(known),
                details={"unknown": [key]},
            )
    layer: _Layer = {}
    for key, raw in flags.items():
        if raw is not None:
            layer[key] = (raw, origin, source_text(key, origin))
    return layer


def _guess(key: str) -> str:
    guess = None if _of_requests([key]) else nearest(key, settings_by_key())
    return f" (did you mean {guess!r}?)" if guess else ""


def _of_requests(keys: Iterable[str]) -> str:
    """The remedy where one of ``keys`` belongs to a request, not to an engine; else empty."""
    from deepinfer_core.parameters.sampling_params import SamplingParams  # only for a message

    for key in keys:
        name = {"num_samples": "n"}.get(key, key)
        if name in attrs.fields_dict(SamplingParams):
            ways = f'an option of deepinfer generate, "{name}" in a JSON line, or SamplingParams({name}=...)'
            return f"{name} belongs to each request: give it as {ways}"
    return ""


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys gathered into the records of their tables."""
    nested = {key: value for key, value in values.items() if "." not in key}
    for table, owner in _TABLES.items():
        own = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{table}.")}
        nested[table] = owner(**own)
    return nested
