"""From an assembly (model, backend, cache shapes) to an engine: size the pools, make the native core, join them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from deepinfer_core.assembly.bounded_replay import BoundedReplay, bounded_replay
from deepinfer_core.assembly.determinism import check_deterministic
from deepinfer_core.assembly.memory import PoolPlan, plan_pools
from deepinfer_core.assembly.model_length import resolve_max_model_len
from deepinfer_core.assembly.native_core import make_core
from deepinfer_core.assembly.parts import Parts
from deepinfer_core.assembly.prefix import check_prefix_cache, fingerprint
from deepinfer_core.assembly.setting_names import settings_named_as_written
from deepinfer_core.assembly.speculation import check_sampler, draft_length, reserve
from deepinfer_core.calibration import check_target
from deepinfer_core.calibration.engine_facts import budget_of, curve_for
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import ConfigError, DeepInferError, EngineError, UnsupportedFeature, UnsupportedOp
from deepinfer_core.graphs import GraphChoice, choose_graphs
from deepinfer_core.graphs.progress import record_graphs
from deepinfer_core.interfaces import Backend, Sampler
from deepinfer_core.pipeline import CurveFeedback, Machinery, Owners
from deepinfer_core.pipeline.lengths import CORRECT_LENGTHS, DECODE_METADATA, VERIFY_LENGTHS
from deepinfer_core.pipeline.machinery import FEED_TOKENS
from deepinfer_core.pipeline.meter import StepObserver
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.requests.request_parts import PartsMaker
from deepinfer_core.structured.manager import GrammarManager
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import SchedulerHints

DEFAULT_BATCHED_TOKENS = 4096


@frozen
class Built:
    """An engine and the sizes it was made with."""

    engine: Engine
    tokenizer: Tokenizer
    plan: PoolPlan
    vocab_size: int
    """Ids that a caller may name: all rows of the model."""
    max_model_len: int
    max_num_batched_tokens: int
    graphs: GraphChoice
    """Whether decode steps run in graphs, and why not."""
    notes: tuple[str, ...] = ()
    """Lines for stderr about how it was made."""
    is_emulated: bool = False
    """The backend's code runs on the processor in place of its device."""


@frozen
class Sizes:
    """What is settled before anything is allocated."""

    sampler: Sampler
    plan: PoolPlan
    num_draft: int
    vocab_size: int
    sampled_vocab: int
    """Ids that may be chosen; rows of the head beyond the tokenizer have no text."""
    max_model_len: int
    block_size: int
    max_num_batched_tokens: int
    replay: BoundedReplay


def size_engine(parts: Parts, tokenizer: Tokenizer) -> Sizes:
    """Check the settings against the parts, and share the memory out. The weights need not be loaded.

    Raises CapacityError when the caches of one sequence do not fit, ConfigError for settings that contradict the model.
    """
    with settings_named_as_written(parts.config):
        return _sizes(parts, tokenizer)


def _sizes(parts: Parts, tokenizer: Tokenizer) -> Sizes:
    config, hints = parts.config, parts.hints
    num_draft = draft_length(config, hints, parts.model)
    _check_overlap(config, parts.backend, num_draft)
    check_deterministic(config, hints, parts.backend, num_draft)
    replay = bounded_replay(config, hints, num_draft)
    max_model_len = resolve_max_model_len(config, hints)
    block_size = config.block_size or hints.block_size
    vocab_size = hints.vocab_size or parts.model.vocab_size
    sampled_vocab = min(vocab_size, tokenizer.vocab_size)
    sampler = parts.make_sampler(config.sampler, {}, sampled_vocab)
    check_sampler(config, sampler, parts.owners.get("sampler", ""))
    with _blaming("backend.unit_bytes", Owners(**parts.owners)):
        plan = plan_pools(
            parts.cache_specs,
            parts.backend,
            kv_memory=config.kv_memory,
            block_size=block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            sequence_bytes=getattr(sampler, "sequence_bytes", 0),
        )
    if config.target_itl_ms is not None:
        tokens = min(max_model_len, plan.tokens)
        check_target(config.target_itl_ms, chunked_prefill=config.chunked_prefill, max_tokens=tokens)
    batched = _batched_tokens(config, plan, max_model_len, num_draft)
    if config.prefix_cache:
        check_prefix_cache(
            hints, replay, block_size=block_size, num_blocks=plan.num_blocks, max_model_len=max_model_len
        )
    return Sizes(sampler, plan, num_draft, vocab_size, sampled_vocab, max_model_len, block_size, batched, replay)


def build_engine(parts: Parts, tokenizer: Tokenizer | None = None) -> Built:
    """Make an engine for ``parts``; ``tokenizer`` replaces that of the model directory.

    Raises what :func:`size_engine` raises, and TokenizerError.
    """
    config, hints = parts.config, parts.hints
    if tokenizer is None:
        tokenizer = Tokenizer.load(parts.card.path, parts.card.config)
    sizes = size_engine(parts, tokenizer)
    sampler, plan, num_draft, sampled_vocab = sizes.sampler, sizes.plan, sizes.num_draft, sizes.sampled_vocab
    batched = sizes.max_num_batched_tokens
    owners = Owners(**parts.owners)
    with _blaming("sampler.reserve", owners):
        reserve(sampler, plan.max_num_seqs)
    with _blaming("backend.alloc_caches", owners):
        caches = parts.backend.alloc_caches(parts.cache_specs, plan.units(parts.cache_specs))
    graphs = choose_graphs(config.graphs, parts.backend, parts.model)
    settings = _core_settings(config, hints, plan, sizes.vocab_size, sizes.max_model_len, batched)
    settings.update(num_draft=num_draft, **sizes.replay.core_settings)
    if config.prefix_cache:
        salt = fingerprint(parts.card, parts.cache_specs, config, sizes.block_size, parts.backend.name)
        settings.update(prefix_cache=True, prefix_salt=salt)

    def make_engine(changes: Mapping[str, Any], *observers: StepObserver) -> Engine:
        if observers:
            # They time each step, so it must not overlap with the next one, nor save anything.
            changes = {**changes, "depth": 1, "prefix_cache": False}
        machinery = Machinery.of(
            parts.backend,
            parts.model,
            sampler,
            caches,
            sampled_vocab,
            owners=owners,
            sync_guard=config.sync_guard,
            graphs=graphs.on,
            with_sum_smaller=config.sum_smaller,
            parts_maker=PartsMaker(
                lambda name, given: parts.make_row_sampler(name, given, sampled_vocab),
                lambda name, given: parts.make_logits_filter(name, given, sampled_vocab),
            ),
        )
        core = make_core(**{**settings, **changes})
        grammars = GrammarManager.of(parts, tokenizer, core.config, sampled_vocab)
        return Engine(core, machinery, tokenizer, grammars=grammars, observers=observers)

    notes: list[str] = []
    changes: dict[str, Any] = {}
    curve = budget = None
    if config.draft_schedule == "confidence" and num_draft:
        curve = curve_for(parts, plan, settings, make_engine, tokenizer)
        changes["verify_lengths"] = "confidence"
        notes.append(f"deepinfer: drafts verified by confidence; step times {curve.origin}")
    if config.target_itl_ms is not None:
        budget = budget_of(parts, plan, settings, make_engine, tokenizer)
        changes.update(budget.settings(config.max_chunk or batched))
        notes.append(budget.text)
    if not graphs.on and hasattr(parts.backend, "capture"):
        notes.append(f"deepinfer: {graphs.line}")
    engine = make_engine(changes)
    if config.graphs_at_start and engine.graphs is not None:
        with _blaming("model.forward", owners):
            notes.append(f"deepinfer: {record_graphs(engine.graphs)}")
    if curve is not None:
        curve.give_to(engine.core)
        if config.deterministic == "off":
            engine.feedback = CurveFeedback(engine.core, curve.sizes)
    if budget is not None:
        engine.core.set_cost_model(budget.profile.prefill, decode=budget.profile.decode)
    if observers := getattr(parts, "observers", ()):  # after calibration, whose steps are nobody's
        from deepinfer_core.observation.watch import Watch

        Watch(engine, observers)
    emulated = parts.backend.capabilities.emulated
    sized = (plan, sizes.vocab_size, sizes.max_model_len, batched)
    return Built(engine, tokenizer, *sized, graphs, tuple(notes), emulated)


def _check_overlap(config: EngineConfig, backend: Backend, num_draft: int) -> None:
    """A step that continues the one in flight takes its tokens on the device, so the backend must have those ops."""
    needed = [FEED_TOKENS, *((CORRECT_LENGTHS, DECODE_METADATA) if num_draft else ())]
    if num_draft and config.draft_schedule == "confidence":
        needed.append(VERIFY_LENGTHS)
    missing = [op for op in needed if op not in backend.ops]
    if config.overlap and missing:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no {', '.join(missing)}, which two steps in flight need",
            reason="it was not made by build_backend, which fills such ops in from the cpu plugin",
            remedy="run with --no-overlap, or give the backend what is missing",
            details={"ops": missing, "field": "overlap"},
        )
    if config.sync_guard and not hasattr(backend, "no_sync"):
        raise UnsupportedFeature(
            f"backend {backend.name!r} has no no_sync, which sync_guard needs",
            remedy="leave sync_guard off, or give the backend the method",
            details={"field": "sync_guard"},
        )


@contextmanager
def _blaming(op: str, owners: Owners) -> Iterator[None]:
    """What a plugin raises before the first step, with its name; a typed error already says what is wrong."""
    try:
        yield
    except DeepInferError:
        raise
    except Exception as err:
        owner = owners.of(op)
        raise EngineError(
            f"{op}{f' of {owner}' if owner else ''} failed",
            reason=f"{exception_text(err)} (raised at {blame(err)})",
            remedy=f"report it to the authors of {owner or 'the plugin'}, with the traceback that --debug prints",
            details={"op": op, "plugin": owner, "exception": type(err).__name__},
        ) from err


def _batched_tokens(config: EngineConfig, plan: PoolPlan, max_model_len: int, num_draft: int) -> int:
    """Tokens of one step at most; a bound of the core (``spec/engine.md`` 2.1) is explained before it is met."""
    asked = config.max_num_batched_tokens
    decode = plan.max_num_seqs * (num_draft + 1)
    if asked is None:
        return max(max_model_len if not config.chunked_prefill else 0, DEFAULT_BATCHED_TOKENS, decode)
    whole = 0 if config.chunked_prefill else max_model_len
    least = max(plan.block_size, decode, whole)
    if asked < least:
        bounds = (
            ("lower --block-size", plan.block_size),
            ("lower --max-num-seqs", decode),
            ("leave --no-chunked-prefill out", whole),
        )
        instead = " and ".join(change for change, bound in bounds if asked < bound)
        raise ConfigError(
            f"max_num_batched_tokens {asked} is below {least}",
            reason=f"a step must hold a block ({plan.block_size}), the {decode} tokens of {plan.max_num_seqs} sequences"
            + ("" if config.chunked_prefill else f", and without chunked prefill a whole prompt ({max_model_len})"),
            remedy=f"set --max-num-batched-tokens to {least} or more, or {instead}",
            details={"field": "max_num_batched_tokens", "value": asked, "least": least},
        )
    return asked


def _check_max_chunk(config: EngineConfig, asked: int, max_model_len: int, batched: int) -> None:
    """Bounds of the core, explained before they are met."""
    details = {"field": "max_chunk", "value": asked}
    if not config.chunked_prefill and asked < max_model_len:
        raise ConfigError(
            f"max_chunk is {asked}, and chunked_prefill is off",
            reason=f"without chunks a whole prompt, of up to {max_model_len} tokens, is in one step",
            remedy="leave --max-chunk or --no-chunked-prefill out",
            details=details,
        )
    if asked > batched:
        raise ConfigError(
            f"max_chunk is {asked}, and a step holds {batched} tokens",
            reason="a chunk is a part of one step",
            remedy=f"set --max-chunk to {batched} or less, or raise --max-num-batched-tokens",
            details=details,
        )


def _core_settings(
    config: EngineConfig, hints: SchedulerHints, plan: PoolPlan, vocab_size: int, max_model_len: int, batched: int
) -> dict[str, Any]:
    optional: dict[str, Any] = {}
    if config.max_chunk is not None:
        _check_max_chunk(config, config.max_chunk, max_model_len, batched)
        optional["max_chunk"] = config.max_chunk
    return dict(
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        num_swa_slots=plan.num_swa_slots,
        num_state_slots=plan.num_state_slots,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=batched,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        chunked_prefill=config.chunked_prefill,
        window=hints.window,
        backtrack=hints.backtrack,
        swa_ring=hints.swa_ring,
        ratios_sparse=hints.ratios_sparse,
        ratios_dense=hints.ratios_dense,
        ngram=hints.ngram,
        ngram_table=hints.ngram_table,
        ngram_pad=hints.ngram_pad,
        inputs=hints.inputs,
        validation=config.validation,
        stream_ordered_reuse=hints.stream_ordered_reuse,
        row_order=hints.row_order,
        zero_swa_on_alloc=hints.zero_swa_on_alloc,
        depth=2 if config.overlap else 1,
        **optional,
    )
