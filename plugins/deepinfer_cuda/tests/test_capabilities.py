"""The capability records: one for each architecture, the same as the manifest claims, and nothing unknown in them."""

import attrs
import pytest

from deepinfer_contracts import FEATURES
from deepinfer_core.plugins.manifest import read_manifest
from deepinfer_cuda.arches import COMPILED_AS, SUPPORTED, arch_of, compiler_arch
from deepinfer_cuda.capabilities import MEASURED, capabilities

TABLE = read_manifest("deepinfer_cuda:deepinfer.toml").tables["backend", "cuda"]


@pytest.mark.parametrize("arch", SUPPORTED)
def test_claims_are_what_the_record_says(arch):
    record = capabilities(arch)
    claims = TABLE.claims_for(arch)
    assert {f"feature:{name}" for name in record.features} == {
        claim for claim in claims if claim.startswith("feature:")
    }
    assert {f"kv:{name}" for name in record.kv_formats | record.index_formats} == {
        claim for claim in claims if claim.startswith("kv:")
    }


@pytest.mark.parametrize("arch", SUPPORTED)
def test_record_is_consistent(arch):
    record = capabilities(arch, memory_bytes=1 << 37)
    assert record.arch == arch
    assert record.features <= set(FEATURES)
    assert record.graph == ("graphs" in record.features)
    assert record.determinism["batch_invariant"] == ("batch_invariant" in record.features)
    assert record.memory_bytes == 1 << 37
    assert ("e4m3", "e2m1", "ue8m0") in record.gemm_formats  # what the released checkpoint asks of experts
    assert attrs.asdict(record)


def test_only_what_was_run_is_free_of_the_words_not_executed():
    executed = {arch for arch in SUPPORTED if "not executed" not in capabilities(arch).notes}
    assert executed == set(MEASURED) == {"sm_90"}


def test_architectures_are_those_of_the_manifest():
    assert TABLE.arch == SUPPORTED == tuple(COMPILED_AS)


def test_names_of_architectures():
    assert arch_of((10, 0)) == "sm_100"
    assert compiler_arch("sm_90") == compiler_arch("sm_90a") == "sm_90a"
