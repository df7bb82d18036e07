"""The capability record: the same as the manifest claims, and what is said of this device elsewhere."""

import attrs

from deepinfer_ascend.arches import SUPPORTED
from deepinfer_ascend.capabilities import KERNEL_HEADS, capabilities
from deepinfer_contracts import FEATURES
from deepinfer_core.plugins.manifest import read_manifest

TABLE = read_manifest("deepinfer_ascend:deepinfer.toml").tables["backend", "ascend"]


def test_claims_are_what_the_record_says():
    record = capabilities()
    claims = TABLE.claims_for(record.arch)
    assert claims == {f"feature:{name}" for name in record.features} | {
        f"kv:{name}" for name in record.kv_formats | record.index_formats
    }
    assert TABLE.arch == SUPPORTED == (record.arch,)


def test_record_is_that_of_an_ascend_950():
    record = capabilities(memory_bytes=1 << 37)
    assert record.sf_word == "i16x2"
    assert (record.graph, record.timing_events) == (True, False)
    assert record.limits == {"kernel_heads": KERNEL_HEADS} == {"kernel_heads": 64}
    assert record.max_topk == 4096
    assert ("e4m3", "e2m1", "ue8m0") in record.gemm_formats  # what the released checkpoint asks of experts
    assert record.features <= set(FEATURES)
    assert "not executed" in record.notes
    assert attrs.asdict(record)
