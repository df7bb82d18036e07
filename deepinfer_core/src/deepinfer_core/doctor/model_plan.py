"""What a model would run on: the steps of ``assemble`` and ``build_engine`` up to the weights, each told by itself.

Runs in a child process, because backends are created here. Nothing is allocated, and the checkpoint is looked at
without its weights, by models that offer ``check_checkpoint``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from deepinfer_core.assembly.assemble import Assembly, match_model
from deepinfer_core.assembly.build import size_engine
from deepinfer_core.assembly.model_card import read_model_card
from deepinfer_core.assembly.model_length import resolve_max_model_len
from deepinfer_core.assembly.named_plugins import enabled_extensions
from deepinfer_core.config import EngineConfig
from deepinfer_core.doctor.findings import Finding
from deepinfer_core.errors import DeepInferError
from deepinfer_core.graphs import choose_graphs
from deepinfer_core.interfaces import Backend, Model
from deepinfer_core.plugins.emulation import check_emulation
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.requirements import missing_capabilities
from deepinfer_core.plugins.selection import Selection, refuse_missing, select_backend
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import CacheSpec, ModelCard, ModelMatch, SchedulerHints

AREA = "model"


def examine(config: EngineConfig, manager: PluginManager | None = None) -> list[Finding]:
    """The findings for ``config.model``. A step that fails is a problem; those that need it are left out and named.

    :param manager: Plugins to use; None: the installed ones.
    """
    return _Examination(config, manager or PluginManager.from_config(config)).run()


class _Examination:
    """One pass over the steps, and what they leave for the next ones."""

    card: ModelCard
    owner: PluginRecord
    match: ModelMatch
    selection: Selection
    specs: tuple[CacheSpec, ...]
    hints: SchedulerHints
    model: Model
    tokenizer: Tokenizer

    def __init__(self, config: EngineConfig, manager: PluginManager) -> None:
        self.config = config
        self.manager = manager
        self.hooks = Hooks(manager)
        self.backend: Backend | None = None

    def run(self) -> list[Finding]:
        # Step, and whether those behind it need what it leaves.
        steps: tuple[tuple[str, Callable[[], Finding], bool], ...] = (
            ("card", self._card, True),
            ("plugin", self._plugin, True),
            ("backend", self._backend, True),
            ("plan", self._plan, False),
            ("requirements", self._requirements, True),
            ("caches", self._caches, True),
            ("checkpoint", self._checkpoint, False),
            ("tokenizer", self._tokenizer, True),
            ("memory", self._memory, False),
        )
        findings: list[Finding] = []
        for place, (name, step, is_needed_later) in enumerate(steps):
            findings.append(_guarded(name, step))
            left = [later for later, _, _ in steps[place + 1 :]]
            if findings[-1].status == "problem" and is_needed_later and left:
                text = f"not examined, because of the problem above: {', '.join(left)}"
                findings.append(Finding(AREA, "rest", "note", text, data={"left_out": left}))
                break
        if self.backend is not None:
            closed = _guarded("close", self._close)
            findings += [closed] if closed.status == "problem" else []
        return findings

    def _close(self) -> Finding:
        self._created().close()
        return Finding(AREA, "close", "ok", "the backend was closed")

    def _card(self) -> Finding:
        if self.config.model is None:
            raise ValueError("no model was given")
        self.card = read_model_card(self.config.model)
        data = {"path": str(self.card.path), "architecture": self.card.architecture, "type": self.card.model_type}
        return Finding(AREA, "card", "ok", f"{self.card.architecture} in {self.card.path}", data=data)

    def _plugin(self) -> Finding:
        self.owner, self.match = match_model(self.manager, self.card)
        detail = f"{self.owner.origin}, score {self.match.score}"
        return Finding(AREA, "plugin", "ok", detail, data={"plugin": self.owner.key, "score": self.match.score})

    def _backend(self) -> Finding:
        self.selection = select_backend(self.manager, self.match.requirements)
        self.backend = self.hooks.backend_create(self.selection.record, self.config.device, self.config)
        check_emulation(self.selection.record, self.backend, self.config)
        refused = dict(self.selection.refused)
        return Finding(
            AREA,
            "backend",
            "ok",
            self.selection.line.removeprefix("backend: "),
            data={
                "backend": self.backend.name,
                "device": str(self.backend.device),
                "emulated": self.backend.capabilities.emulated,
                "refused": refused,
            },
            lines=[f"not {name}: {reason}" for name, reason in refused.items()],
        )

    def _plan(self) -> Finding:
        """Who computes each op that the model asks for."""
        backend = self._created()
        needed = sorted(self.match.requirements.ops)
        ops = {op: backend.plan.get(op, backend.name) if op in backend.ops else None for op in needed}
        missing = [op for op, provider in ops.items() if provider is None]
        counts = Counter(provider for provider in ops.values() if provider is not None)
        shares = ", ".join(f"{count} by {provider}" for provider, count in sorted(counts.items()))
        detail = f"{len(needed)} op{'' if len(needed) == 1 else 's'}" + (f": {shares}" if shares else "")
        width = max(map(len, ops), default=0)
        return Finding(
            AREA,
            "plan",
            "problem" if missing else "ok",
            detail + (f"; missing: {', '.join(missing)}" if missing else ""),
            code="E_OP" if missing else "",
            remedy="install a kernel pack or backend that offers these, or choose --backend cpu" if missing else "",
            data={"ops": ops},
            lines=[f"{op.ljust(width)}  {provider or 'nobody'}" for op, provider in ops.items()],
        )

    def _requirements(self) -> Finding:
        backend, needs = self._created(), self.match.requirements
        missing = missing_capabilities(backend, needs)
        if missing:
            raise refuse_missing(backend.name, backend.capabilities.arch, missing)
        has = {name.removeprefix("feature:") for name in needs.features_preferred} & backend.capabilities.features
        parts = [f"formats {', '.join(sorted(needs.formats))}"] if needs.formats else []
        parts += [f"features {', '.join(sorted(needs.features_required))}"] if needs.features_required else []
        parts += [f"{name} {value}" for name, value in sorted(needs.limits.items())]
        if needs.features_preferred:
            parts.append(f"{len(has)} of {len(needs.features_preferred)} preferred features")
        data = {
            "formats": sorted(needs.formats),
            "features": sorted(needs.features_required),
            "preferred": sorted(needs.features_preferred),
            "limits": dict(needs.limits),
        }
        return Finding(AREA, "requirements", "ok", "met: " + ("; ".join(parts) or "none"), data=data)

    def _caches(self) -> Finding:
        """The caches and the model itself, without weights."""
        backend = self._created()
        extensions = [self.manager.require("extension", name) for name in enabled_extensions(self.config)]
        self.specs = self.hooks.cache_specs(self.owner, self.match, self.config)
        owners = [self.owner, self.selection.record, *extensions]
        self.hints = self.hooks.scheduler_hints(owners, self.match, backend, self.config)
        resolve_max_model_len(self.config, self.hints)
        self.model = self.hooks.model_create(self.owner, self.match, self.config, backend)
        caches = {spec.name: {"pool": spec.pool, "layers": len(spec.layers)} for spec in self.specs}
        listed = ", ".join(
            f"{name} ({about['layers']} layer{'' if about['layers'] == 1 else 's'})" for name, about in caches.items()
        )
        return Finding(AREA, "caches", "ok", listed or "none", data={"caches": caches})

    def _checkpoint(self) -> Finding:
        check = getattr(self.model, "check_checkpoint", None)
        if check is None:
            text = f"{self.owner.name} cannot check a checkpoint without loading it"
            return Finding(AREA, "checkpoint", "note", text, data={"checked": False})
        return Finding(AREA, "checkpoint", "ok", str(check(self.card.path)), data={"checked": True})

    def _tokenizer(self) -> Finding:
        self.tokenizer = Tokenizer.load(self.card.path, self.card.config)
        size = self.tokenizer.vocab_size
        return Finding(AREA, "tokenizer", "ok", f"{size:,} tokens", data={"vocab_size": size})

    def _memory(self) -> Finding:
        assembly = Assembly(
            self.config,
            self.manager,
            self.card,
            self.match,
            self.selection,
            self._created(),
            self.model,
            self.specs,
            self.hints,
            {"backend": self.selection.record.origin, "model": self.owner.origin},
        )
        sizes = size_engine(assembly, self.tokenizer)
        plan = sizes.plan
        detail = (
            f"{_mib(plan.nbytes)} of {_mib(self.config.kv_memory)}: {plan.num_blocks - 1} blocks of {plan.block_size} "
            f"tokens, {plan.max_num_seqs} sequences of at most {sizes.max_model_len} tokens"
        )
        data: dict[str, Any] = {
            **attrs.asdict(plan),
            "kv_memory": self.config.kv_memory,
            "tokens": plan.tokens,
            "max_model_len": sizes.max_model_len,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "num_draft": sizes.num_draft,
            "sampler": self.config.sampler,
        }
        batched, drafts = sizes.max_num_batched_tokens, sizes.num_draft
        lines = [f"a step: {batched} tokens at most, {drafts} drafts, sampler {self.config.sampler}"]
        slots = [
            f"{count - 1} {pool} slots"
            for pool, count in (("swa", plan.num_swa_slots), ("state", plan.num_state_slots))
            if count
        ]
        lines += [", ".join(slots)] if slots else []
        graphs = choose_graphs(self.config.graphs, self._created(), self.model)
        data["graphs"] = graphs.on
        lines.append(graphs.line)
        if plan.warnings:
            text = "; ".join(plan.warnings)
            return Finding(AREA, "memory", "note", f"{detail}; {text}", data=data, lines=lines)
        return Finding(AREA, "memory", "ok", detail, data=data, lines=lines)

    def _created(self) -> Backend:
        if self.backend is None:
            raise ValueError("the backend was not created")
        return self.backend


def _guarded(name: str, step: Callable[[], Finding]) -> Finding:
    try:
        return step()
    except DeepInferError as exc:
        return Finding.of_error(AREA, name, exc)
    except Exception as exc:  # of a plugin's object, which no hook guards
        reason = f"raised at {blame(exc)}"
        remedy = "report it to the authors of the plugin in that line"
        return Finding(AREA, name, "problem", exception_text(exc), code="E_PLUGIN", reason=reason, remedy=remedy)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
