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


def test_an_emulation_names_what_plain_ops_compute(monkeypatch):
    """Without lowered kernels some required ops; with them none."""
    from emulated_backend import emulated

    from deepinfer_ascend.jit import serving
    from deepinfer_contracts import OPS

    monkeypatch.setattr("deepinfer_ascend.backend.require_tools", lambda: None)  # nothing is executed
    for lowered, is_left in (("0", True), ("1", False)):
        monkeypatch.setenv(serving.VARIABLE, lowered)
        made = emulated()
        left = {op for op, who in made.plan.items() if who == "deepinfer-cpu"}
        assert made.capabilities.notes.endswith(f"plain ops of cpu compute {', '.join(sorted(left))}")
        assert ("norm.rms" in left) is any(OPS[op].required for op in left) is is_left
        made.close()
