"""What ``deepinfer doctor --model`` says of fake models and backends."""

from __future__ import annotations

import pytest

from deepinfer_core.doctor.model_plan import examine


def examined(site, **settings):
    manager = site.manager(**settings)
    return {finding.check: finding for finding in examine(manager.config, manager)}


@pytest.fixture
def tiny(site, sources):
    def add(requirements: str = "Requirements()", backend: str = "") -> None:
        site.add("cpu", sources["backend"] + backend, dist="deepinfer-cpu")
        site.add("tiny", sources["model"](requirements=requirements), kind="model", table='architectures = ["TinyLM"]')

    return add


def test_model_that_fits_is_examined_up_to_the_tokenizer_and_not_loaded(site, tiny, checkpoint_of):
    tiny()
    found = examined(site, model=str(checkpoint_of("TinyLM")))
    statuses = {check: finding.status for check, finding in found.items()}
    assert statuses == {
        "card": "ok",
        "plugin": "ok",
        "backend": "ok",
        "plan": "ok",
        "requirements": "ok",
        "caches": "ok",
        "checkpoint": "note",
        "tokenizer": "problem",
        "rest": "note",
    }
    assert found["card"].detail.startswith("TinyLM in ")
    assert found["plugin"].detail == "tiny (acme-tiny 1.0), score 0"
    assert found["backend"].detail == "cpu (auto: no accelerator present)"
    assert found["checkpoint"].detail == "tiny cannot check a checkpoint without loading it"
    assert found["tokenizer"].code == "E_TOKENIZER"
    assert found["rest"].detail == "not examined, because of the problem above: memory"


def test_backend_that_lacks_ops_and_formats_is_told_op_by_op(site, tiny, checkpoint_of):
    tiny("Requirements(ops=frozenset({'norm.rms', 'moe.gate'}), formats=frozenset({'v41', 'f32'}))")
    found = examined(site, model=str(checkpoint_of("TinyLM")), backend="cpu")
    assert found["plan"].status == "problem"
    assert found["plan"].data == {"ops": {"moe.gate": None, "norm.rms": None}}
    assert found["plan"].detail == "2 ops; missing: moe.gate, norm.rms"
    assert found["requirements"].code == "E_OP"
    assert found["requirements"].reason == "it lacks op moe.gate, op norm.rms, format f32"
    assert found["rest"].data["left_out"] == ["caches", "checkpoint", "tokenizer", "memory"]


def test_model_that_nobody_runs_and_a_backend_that_is_not_there_end_the_examination(site, tiny, checkpoint_of):
    tiny()
    other = examined(site, model=str(checkpoint_of("OtherLM")))
    assert (other["plugin"].status, other["plugin"].code) == ("problem", "E_MODEL")
    assert "backend" not in other
    named = examined(site, model=str(checkpoint_of("TinyLM")), backend="npu")
    assert named["backend"].code == "E_BACKEND_MISSING"
    assert named["plugin"].status == "ok"


def test_model_plugin_that_raises_while_it_checks_is_one_problem(site, sources, checkpoint_of):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    source = sources["model"]().replace(
        "    def load(", "    def check_checkpoint(self, path): raise KeyError('head')\n    def load("
    )
    site.add("tiny", source, kind="model", table='architectures = ["TinyLM"]')
    found = examined(site, model=str(checkpoint_of("TinyLM")))
    assert (found["checkpoint"].status, found["checkpoint"].code) == ("problem", "E_PLUGIN")
    assert found["checkpoint"].detail == "KeyError: 'head'"
    assert found["checkpoint"].reason == "raised at acme_tiny/plugin.py:8"
    assert found["tokenizer"].status == "problem"  # looked at all the same
