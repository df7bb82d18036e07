"""Draft length, verification and determinism: what is refused at the start, by name and with its limit."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from drafting_toys import DRAFT_RING, DraftingBackend, draft_hints
from engine_toys import BLOCK, TOY_HINTS, ToyBackend, ToyModel, ToySampler, toy_llm

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError, ConfigError, DeepInferError, NotSupported, UnsupportedFeature
from deepinfer_core.types import CacheLayer, CacheSpec, Capabilities

pytest.importorskip("torch", reason="the ops of drafts are plain torch")


class ModelWithDrafts(ToyModel):
    draft_block = 5


class SamplerWithDrafts(ToySampler):
    def draft(self, block: Any, inputs: Any, sampled: Any, num_draft: int) -> Any:
        raise NotImplementedError("no step runs here")


INVARIANT = Capabilities(name="toy", device_type="host", arch="none", features=frozenset({"batch_invariant"}))


def parts_of(*, invariant: bool = False, **changes: Any) -> dict[str, Any]:
    backend = DraftingBackend()
    if invariant:
        backend.capabilities = INVARIANT
    return {
        "backend": backend,
        "model": ModelWithDrafts(DRAFT_RING),
        "hints": attrs.evolve(draft_hints(0), backtrack=6),
        "sampler": SamplerWithDrafts(),
        "cache_specs": (
            CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
            CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
        ),
        **changes,
    }


def refusal(kind: type[DeepInferError], *, parts: dict[str, Any] | None = None, **settings: object) -> DeepInferError:
    with pytest.raises(kind) as caught:
        toy_llm(parts=parts, **settings).close()
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("draft_tokens", range(6))
def test_draft_tokens_up_to_the_block_reach_the_core(draft_tokens: int) -> None:
    with toy_llm(parts=parts_of(), draft_tokens=draft_tokens) as llm:
        assert llm.built.engine.core.config.num_draft == draft_tokens


@pytest.mark.parametrize("draft_tokens", [-1, 16, "x", True])
def test_draft_tokens_that_are_no_length_are_refused_with_the_range(draft_tokens: object) -> None:
    error = refusal(ConfigError, parts=parts_of(), draft_tokens=draft_tokens)
    assert f"draft_tokens must be an integer from 0 to 15, got {draft_tokens!r}" in error.what


def test_draft_tokens_beyond_the_block_are_refused_with_the_limit() -> None:
    error = refusal(ConfigError, parts=parts_of(), draft_tokens=6)
    assert error.what == "draft_tokens is 6, the limit of this model is 5"
    assert error.details["limit"] == 5


def test_draft_tokens_beyond_the_ring_buffers_are_refused_with_the_limit() -> None:
    hints = attrs.evolve(draft_hints(0), backtrack=3)
    error = refusal(ConfigError, parts=parts_of(hints=hints), draft_tokens=3)
    assert error.what == "draft_tokens is 3, the caches of this model allow 2"


def test_draft_tokens_without_a_drafter_are_refused() -> None:
    error = refusal(NotSupported, parts=parts_of(model=ToyModel(DRAFT_RING)), draft_tokens=1)
    assert error.what == "draft_tokens is 1, but this model offers no drafts"


def test_draft_tokens_with_a_sampler_that_draws_none_are_refused() -> None:
    error = refusal(NotSupported, parts=parts_of(sampler=ToySampler()), draft_tokens=1)
    assert error.what == "draft_tokens is 1, but sampler 'canonical' draws no drafts"


def test_sampler_reserves_for_the_sequences_that_really_run_at_once() -> None:
    reserved: list[int] = []

    class Keeper(SamplerWithDrafts):
        sequence_bytes = 100

        def reserve(self, max_num_seqs: int) -> None:
            reserved.append(max_num_seqs)

    with toy_llm(parts=parts_of(sampler=Keeper()), draft_tokens=2, max_num_seqs=64, kv_memory=8192) as llm:
        plan = llm.built.plan
    assert reserved == [plan.max_num_seqs]
    assert 1 < plan.max_num_seqs < 64
    assert plan.nbytes <= 8192
    with toy_llm(parts=parts_of(), draft_tokens=2, max_num_seqs=64, kv_memory=8192) as llm:
        assert llm.built.plan.max_num_seqs > plan.max_num_seqs


def test_drafts_that_do_not_fit_are_named() -> None:
    class Keeper(SamplerWithDrafts):
        sequence_bytes = 10**6

    error = refusal(CapacityError, parts=parts_of(sampler=Keeper()), draft_tokens=2, kv_memory=8192)
    assert "; drafts 1,000,000 B" in error.reason


@pytest.mark.parametrize(
    ("settings", "verification"),
    [
        ({}, "rejection"),
        ({"deterministic": "run"}, "rejection"),
        ({"deterministic": "batch"}, "coupled"),
        ({"deterministic": "batch", "verify": "rejection"}, "rejection"),
        ({"verify": "coupled"}, "coupled"),
    ],
)
def test_verification_auto_follows_the_promise(settings: dict[str, object], verification: str) -> None:
    assert EngineConfig.resolve(settings, environ={}).verification == verification


def test_settings_come_from_file_and_environment(tmp_path: Any) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('draft_tokens = 3\nverify = "coupled"\n', "utf-8")
    config = EngineConfig.resolve(
        file=path, environ={"DEEPINFER_DETERMINISTIC": "run", "DEEPINFER_DRAFT_SCHEDULE": "confidence"}
    )
    assert (config.draft_tokens, config.verify) == (3, "coupled")
    assert (config.deterministic, config.draft_schedule) == ("run", "confidence")


def test_deterministic_engine_without_a_seed_derives_seeds_from_0() -> None:
    assert EngineConfig.resolve({}, environ={}).base_seed is None
    assert EngineConfig.resolve({"deterministic": "run"}, environ={}).base_seed == 0
    assert EngineConfig.resolve({"deterministic": "run", "seed": 7}, environ={}).base_seed == 7


def test_deterministic_run_refuses_rejection_with_measured_chunks() -> None:
    settings = {"deterministic": "run", "draft_tokens": 2, "target_itl_ms": 50}
    error = refusal(ConfigError, parts=parts_of(invariant=True), **settings)
    assert error.what == "deterministic is 'run', which rules out target_itl_ms with rejection verification"
    assert error.details == {"field": "target_itl_ms"}


@pytest.mark.parametrize("promise", ["run", "batch"])
def test_deterministic_engine_refuses_rejection_with_measured_lengths(promise: str) -> None:
    settings = {"deterministic": promise, "verify": "rejection", "draft_schedule": "confidence", "draft_tokens": 2}
    error = refusal(ConfigError, parts=parts_of(invariant=True), **settings)
    assert error.what == f"deterministic is {promise!r}, which rules out confidence with rejection verification"
    assert error.remedy == "set --verify coupled, or --draft-schedule fixed"


@pytest.mark.parametrize("promise", ["run", "batch"])
def test_deterministic_engine_refuses_inexact_prefix_hits(promise: str) -> None:
    error = refusal(ConfigError, parts=parts_of(invariant=True), deterministic=promise, prefix_cache=True)
    assert error.what == f"deterministic is {promise!r}, which rules out a prefix cache"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"deterministic": "batch"}, "the same bits in every batch"),
        (
            {"deterministic": "run", "draft_tokens": 2, "draft_schedule": "confidence", "verify": "coupled"},
            "lengths by confidence follow measured times",
        ),
        ({"deterministic": "run", "target_itl_ms": 50}, "chunks follow measured times"),
    ],
)
def test_promise_that_needs_batch_invariance_is_refused_on_a_backend_without(
    settings: dict[str, object], reason: str
) -> None:
    error = refusal(UnsupportedFeature, parts=parts_of(), **settings)
    assert "backend 'toy' does not claim batch_invariant" in error.what
    assert reason in error.reason


def test_deterministic_engine_runs_where_nothing_contradicts_it() -> None:
    toy_llm(parts=parts_of(invariant=True), deterministic="batch", draft_tokens=2).close()
    toy_llm(parts={"backend": ToyBackend(), "hints": TOY_HINTS}, deterministic="run").close()
