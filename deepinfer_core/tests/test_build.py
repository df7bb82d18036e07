"""From settings and hints to an engine: bounds are explained before they are met, sizes are passed on."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from engine_toys import BLOCK, Faulty, ToyBackend, ToyParts, byte_tokenizer, small_pool, toy_llm

from deepinfer_contracts import ContractMismatch
from deepinfer_core.assembly.build import build_engine
from deepinfer_core.assembly.native_core import load_native, make_core
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError, ConfigError, ContractError, DeepInferError, EngineError
from deepinfer_core.llm import LLM


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_model_len": 257}, ConfigError, "max_model_len 257 is beyond the model's 256"),
        ({"max_model_len": 1}, ConfigError, "max_model_len 1 leaves no room for an answer"),
        ({"max_num_batched_tokens": 7}, ConfigError, "max_num_batched_tokens 7 is below 16"),
        (
            {"max_num_batched_tokens": 100, "chunked_prefill": False},
            ConfigError,
            "max_num_batched_tokens 100 is below 256",
        ),
        ({"max_chunk": 8, "chunked_prefill": False}, ConfigError, "max_chunk is 8, and chunked_prefill is off"),
        (
            {"max_chunk": 101, "max_num_batched_tokens": 100, "max_num_seqs": 2},
            ConfigError,
            "max_chunk is 101, and a step holds 100 tokens",
        ),
        ({"kv_memory": 100}, CapacityError, "the caches of one sequence need 192B, kv_memory is 100B"),
    ],
)
def test_setting_that_contradicts_the_model_is_explained(
    settings: dict[str, object], error: type[DeepInferError], message: str
) -> None:
    with pytest.raises(error) as caught:
        toy_llm(**settings)
    assert caught.value.what == message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        ({"max_num_batched_tokens": 7}, "lower --max-num-seqs"),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 2, "block_size": 8}, "lower --block-size"),
        ({"max_num_batched_tokens": 7, "block_size": 8}, "lower --block-size and lower --max-num-seqs"),
        ({"max_num_batched_tokens": 100, "chunked_prefill": False}, "leave --no-chunked-prefill out"),
    ],
)
def test_remedy_of_a_small_step_names_what_is_too_large_for_it(settings: dict[str, object], instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toy_llm(**settings)
    assert (
        caught.value.remedy == f"set --max-num-batched-tokens to {caught.value.details['least']} or more, or {instead}"
    )


def test_sizes_reach_the_core() -> None:
    with toy_llm(max_chunk=12, max_model_len=100, **small_pool(30, 3)) as llm:
        config = llm.built.engine.core.config
        assert (config.num_blocks, config.num_swa_slots, config.num_state_slots) == (31, 4, 0)
        assert (config.block_size, config.max_chunk, config.max_model_len, config.max_num_seqs) == (BLOCK, 12, 100, 3)
        assert config.inputs == "InputMetadataV41"


def test_block_size_of_the_settings_wins_over_the_hint() -> None:
    config = EngineConfig.resolve({"block_size": 8, "max_num_seqs": 2}, environ={})
    built = build_engine(ToyParts(config), byte_tokenizer())
    assert built.plan.block_size == built.engine.core.config.block_size == 8
    built.engine.close()


def test_parts_are_closed_when_the_engine_cannot_be_made() -> None:
    closed: list[str] = []

    class Parts(ToyParts):
        def close(self) -> None:
            closed.append("yes")

    config = EngineConfig.resolve({"kv_memory": 100}, environ={})
    with pytest.raises(CapacityError):
        LLM.from_assembly(Parts(config), byte_tokenizer())
    assert closed == ["yes"]


@pytest.mark.parametrize("method", ["unit_bytes", "alloc_caches"])
def test_backend_that_fails_before_the_first_step_is_named(method: str) -> None:
    def fault(name: str, call: int, go: object) -> None:
        raise RuntimeError("boom")

    with pytest.raises(EngineError) as caught:
        toy_llm(parts={"backend": Faulty(ToyBackend(), fault, method)})
    assert caught.value.what == f"backend.{method} of toy (acme-backend 0.1) failed"
    assert caught.value.reason.startswith("RuntimeError: boom (raised at ")


def test_setting_that_the_core_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError) as caught:
        make_core(num_blocks=0, max_num_batched_tokens=256, max_model_len=16, vocab_size=10)
    assert caught.value.details["field"] == "num_blocks"


def test_tables_that_memory_does_not_hold_are_an_error_of_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepinfer_native

    def core(config: object) -> None:
        raise deepinfer_native.errors.CapacityError("core: no memory for pools of 4097 blocks and 256 requests")

    monkeypatch.setattr(deepinfer_native, "Core", core)
    with pytest.raises(CapacityError, match="not enough memory for the tables of the scheduler") as caught:
        make_core(num_blocks=8, max_num_batched_tokens=256, max_model_len=16, vocab_size=10)
    assert caught.value.reason == "core: no memory for pools of 4097 blocks and 256 requests"
    assert "--max-num-seqs" in caught.value.remedy


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Importing ``deepinfer_native`` raises the exception in the list."""
    raised: list[Exception] = []

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, self) if name == "deepinfer_native" else None  # type: ignore[arg-type]

        def create_module(self, spec: ModuleSpec) -> ModuleType | None:
            return None

        def exec_module(self, module: Any) -> None:
            raise raised[0]

    for name in [name for name in sys.modules if name.split(".")[0] == "deepinfer_native"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    return raised


def test_library_of_other_contracts_is_a_contract_error(without_native: list[Exception]) -> None:
    without_native.append(ContractMismatch("EventBatch differs", reason="why", remedy="rebuild"))
    with pytest.raises(ContractError) as caught:
        load_native()
    assert (caught.value.what, caught.value.reason, caught.value.remedy) == ("EventBatch differs", "why", "rebuild")


def test_missing_library_says_how_to_get_it(without_native: list[Exception]) -> None:
    without_native.append(ImportError("no _native"))
    with pytest.raises(EngineError) as caught:
        load_native()
    assert caught.value.reason == "no _native"
    assert "deepinfer-native" in caught.value.remedy


@pytest.mark.parametrize(
    "start", ["import deepinfer_core.llm", "import deepinfer_core.assembly.native_core as n; n.load_native()"]
)
def test_missing_contracts_are_the_error_that_listing_the_plugins_gives(start: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['deepinfer_contracts'] = None\n"
        "from deepinfer_core.errors import ContractError\n"
        f"try:\n    {start}\n"
        "except ContractError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "E_CONTRACT: deepinfer-contracts is not installed\n"
        "  reason: the records of a step come from it\n"
        "  remedy: pip install deepinfer-contracts\n"
    )
