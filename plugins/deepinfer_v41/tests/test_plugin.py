"""The hooks of the model plugin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import frozen
from v41_models import SHIPPED, card, cpu_backend, make_driver, manifest, shipped
from v41_tiny import tiny_driver, tiny_path

from deepinfer_contracts import InputMetadataV41
from deepinfer_core.errors import ConfigError, EngineError, ModelConfigError, ModelError, NotSupported
from deepinfer_core.types import ModelCard
from deepinfer_v41 import plugin
from deepinfer_v41.model import V41Model


@frozen
class Settings:
    numeric_mode: str = "released"
    cache_formats: bool = True
    max_model_len: int | None = None
    block_size: int | None = None
    draft_tokens: int = 0
    confidence_temperature: tuple[float, ...] = (1.0,)
    max_backtracking_tokens: int = 0


def test_other_architectures_are_not_matched():
    other = ModelCard(SHIPPED, "DeepseekV3ForCausalLM", "deepseek_v3", {})
    assert plugin.deepinfer_model_match(card=other) is None


def test_wrong_configuration_is_an_error_not_a_miss():
    good = card(SHIPPED)
    text = {**good.config["text_config"], "hidden_size": -1}
    with pytest.raises(ModelConfigError, match="hidden_size"):
        plugin.deepinfer_model_match(
            card=ModelCard(SHIPPED, good.architecture, "", {**good.config, "text_config": text})
        )


def test_required_ops_are_offered_by_the_default_backend():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    assert match.requirements.ops <= set(cpu_backend().ops)
    offered = cpu_backend().capabilities
    assert match.requirements.formats <= offered.kv_formats | offered.index_formats


def test_required_ops_are_those_that_the_model_takes():
    """An op that is missing is then named at start-up, and not found missing in the middle of a step."""
    taken: set[str] = set()

    class Watched:
        def __init__(self, group: str) -> None:
            self.group = group

        def __getattr__(self, op: str) -> Any:
            taken.add(f"{self.group}.{op}")
            return getattr(getattr(cpu_backend(), self.group), op)

    class Watching:
        def __getattr__(self, name: str) -> Any:
            groups = {op.split(".")[0] for op in cpu_backend().ops}
            return Watched(name) if name in groups else getattr(cpu_backend(), name)

    driver = make_driver(SHIPPED, "released", backend=Watching(), draft_tokens=2)
    driver.all_logits(list(range(3, 50)), split=45)
    driver.draft([5])
    assert taken == plugin.OPS


def test_hints_describe_the_shipped_checkpoint():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    hints = plugin.deepinfer_scheduler_hints(match=match, backend=cpu_backend(), config=Settings())
    assert (hints.window, hints.backtrack, hints.swa_ring) == (32, 5, 37)
    assert hints.ratios_sparse == (1, 2)
    assert hints.state_slots
    assert (hints.ngram, hints.ngram_pad, hints.max_model_len, hints.vocab_size) == (4, 2, 2048, 1536)
    assert hints.inputs == "InputMetadataV41"
    want = np.array(manifest()["engram"]["token_map"], dtype=np.int32)
    want[1527] = -1
    assert np.array_equal(hints.ngram_table, want)


def test_hooks_leave_other_models_alone():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    from attrs import evolve

    other = evolve(match, name="something_else")
    assert plugin.deepinfer_cache_specs(match=other, config=Settings()) is None
    assert plugin.deepinfer_model_create(match=other, config=Settings(), backend=cpu_backend()) is None
    assert plugin.deepinfer_scheduler_hints(match=other, backend=cpu_backend(), config=Settings()) is None


@pytest.mark.parametrize("formats", [True, False])
def test_cache_specs_follow_the_settings(formats):
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    settings = Settings(numeric_mode="exact", cache_formats=formats, block_size=64)
    specs = {s.name: s for s in plugin.deepinfer_cache_specs(match=match, config=settings)}
    assert [lay.entries for lay in specs["main"].layers] == [32, 64]
    assert specs["swa"].layers[0].format == ("v41" if formats else "f32")
    assert len(specs["swa"].layers) == 8
    assert "draft" not in specs


def test_drafting_adds_rings_and_a_block_of_keys_for_each_sequence():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    specs = {s.name: s for s in plugin.deepinfer_cache_specs(match=match, config=Settings(draft_tokens=3))}
    assert len(specs["swa"].layers) == 10
    assert specs["draft"].pool == "swa"
    assert [(lay.layer, lay.entries) for lay in specs["draft"].layers] == [(8, 4)]


@pytest.mark.parametrize(("least", "ring", "state"), [(0, 37, 6), (5, 37, 6), (6, 38, 7), (12, 44, 13)])
def test_buffers_take_back_as_much_as_the_setting_says(least, ring, state):
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    settings = Settings(draft_tokens=4, max_backtracking_tokens=least)
    specs = {s.name: s for s in plugin.deepinfer_cache_specs(match=match, config=settings)}
    hints = plugin.deepinfer_scheduler_hints(match=match, backend=cpu_backend(), config=settings)
    assert {lay.entries for lay in specs["swa"].layers} == {ring}
    assert {lay.entries for lay in specs["state"].layers} == {state}
    assert (hints.swa_ring, hints.backtrack) == (ring, max(least, 5))


@pytest.mark.parametrize(("draft_tokens", "given"), [(4, (1.0, 2.0)), (1, (1.0, 2.0)), (2, (1.0, 2.0, 3.0))])
def test_temperatures_that_do_not_fit_the_drafts_are_refused(draft_tokens, given):
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    settings = Settings(draft_tokens=draft_tokens, confidence_temperature=given)
    with pytest.raises(ConfigError, match=f"{len(given)} values for {draft_tokens} drafts"):
        plugin.deepinfer_model_create(match=match, config=settings, backend=cpu_backend())


def test_block_size_must_hold_whole_groups_and_candidate_blocks():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    with pytest.raises(ConfigError, match="block_size 20"):
        plugin.deepinfer_cache_specs(match=match, config=Settings(block_size=20))


def test_created_model_runs_after_loading_only():
    match = plugin.deepinfer_model_match(card=card(SHIPPED))
    model = plugin.deepinfer_model_create(match=match, config=Settings(), backend=cpu_backend())
    assert isinstance(model, V41Model)
    assert model.vocab_size == 1536
    with pytest.raises(ModelError, match="no weights"):
        model.forward(InputMetadataV41(is_prompt=1), None)
    model.load(SHIPPED)
    with pytest.raises(ModelError, match="without its draft head"):
        model.draft(None, InputMetadataV41(is_prompt=1), torch.tensor([5]), None, None)


def test_image_placeholder_in_a_prompt_is_refused():
    model = shipped("released").model
    model.check_prompt([0, 5, 6])
    with pytest.raises(NotSupported, match="1527 at position 2"):
        model.check_prompt([0, 5, 1527])


def test_decode_without_block_tables_says_what_is_missing():
    with pytest.raises(EngineError, match="block tables"):
        shipped("released").model.forward(InputMetadataV41(is_prompt=0), None)


def test_ids_beyond_the_tokenizer_are_never_chosen(tmp_path):
    """A head may be padded beyond the tokenizer: the rows that no token has get -inf."""
    model = shipped("released").model
    hidden = torch.randn(2, 256).to(torch.bfloat16)
    assert torch.isfinite(model.logits(hidden)).all()
    tables, model._tables = (
        model._tables,
        type(model._tables)(
            **{
                **{
                    f: getattr(model._tables, f)
                    for f in ("compressed_size", "pad_id", "primes", "offsets", "multipliers")
                },
                "token_map": model._tables.token_map[:1530],
            }
        ),
    )
    try:
        logits = model.logits(hidden)
    finally:
        model._tables = tables
    assert torch.isfinite(logits[:, :1530]).all()
    assert (logits[:, 1530:] == float("-inf")).all()


@pytest.mark.parametrize("block_size", [16, 64])
def test_block_size_does_not_change_the_logits(block_size):
    ids = manifest()["prompts"][8]["ids"]
    other = make_driver(SHIPPED, "plain", block_size=block_size, blocks=64)
    torch.testing.assert_close(other.all_logits(ids, split=50), shipped("plain").all_logits(ids), atol=1e-5, rtol=0)


def test_unquantised_checkpoint_runs_like_its_oracle():
    from dense_reference import DenseReference

    path = tiny_path(quantization_config="null")
    ids = list(range(3, 60))
    want = DenseReference(path, caches=False).run(ids).logits
    torch.testing.assert_close(tiny_driver(path).all_logits(ids, split=40), want, atol=1e-4, rtol=0)
