"""The six steps of choosing a backend (``spec/plugins.md`` 9); probes are given, but for one real child."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.probe import ProbeOutcome
from deepinfer_core.plugins.requirements import missing_capabilities
from deepinfer_core.plugins.selection import select_backend
from deepinfer_core.types import Capabilities, ProbeReport, Requirements

FREE = Requirements()


def prober(answers):
    """A prober that gives ``answers[name]``: a report, or keywords of a failed outcome."""

    def run(records):
        outcomes = []
        for record in records:
            answer = answers[record.name]
            if isinstance(answer, ProbeReport):
                outcomes.append(ProbeOutcome(record, report=answer))
            else:
                outcomes.append(ProbeOutcome(record, **answer))
        return outcomes

    return run


def report(score=0, *, present=True, usable=True, devices=("toy1",), arch="", reasons=(), remedy=""):
    return ProbeReport(
        present=present, usable=usable, devices=devices, arch=arch, score=score, reasons=reasons, remedy=remedy
    )


ABSENT = report(present=False, usable=False, devices=(), reasons=("no toy device node",))


@pytest.fixture
def toys(site, sources):
    """Backends cpu (of its own distribution) and two accelerators, of equal rank."""
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("toyb", sources["backend"])
    site.add("toya", sources["backend"])
    return site


def choose(site, answers, requirements=FREE, **settings):
    return select_backend(site.manager(**settings), requirements, prober=prober(answers))


def test_auto_with_only_cpu_starts_no_child(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    selection = select_backend(site.manager(), FREE, prober=prober({}))
    assert selection.line == "backend: cpu (auto: no accelerator present)"
    assert selection.record.state == "loaded"


def test_auto_without_a_device_takes_cpu(toys):
    selection = choose(toys, {"toya": ABSENT, "toyb": ABSENT})
    assert selection.line == "backend: cpu (auto: no accelerator present)"
    assert selection.refused == (("toya", "no toy device node"), ("toyb", "no toy device node"))


def test_auto_takes_the_same_of_two_equals_whatever_the_order(toys):
    answers = {"toya": report(), "toyb": report()}
    entries = toys.entries()
    for seed in range(6):
        random.Random(seed).shuffle(entries)
        manager = PluginManager.from_config(EngineConfig.resolve({}, environ={}), entries)
        selection = select_backend(manager, FREE, prober=prober(answers))
        assert selection.line == "backend: toya (auto: 2 usable of 2; highest of score 0, then name)"


def test_auto_prefers_the_higher_score(toys):
    selection = choose(toys, {"toya": report(1), "toyb": report(2)})
    assert selection.line == "backend: toyb (auto: 2 usable of 2; highest of score 2, then name)"


def test_auto_prefers_met_features_over_score(site, sources):
    site.add("plain", sources["backend"])
    site.add("rich", sources["backend"], table='claims = ["feature:graphs"]')
    wanted = Requirements(features_preferred=frozenset({"graphs", "pdl"}))
    selection = choose(site, {"plain": report(9), "rich": report(1)}, wanted)
    assert selection.line == "backend: rich (auto: 2 usable of 2; met 1 preferred feature)"


BY_ARCH = 'arch = ["toy1", "toy2"]\nclaims_on = { toy2 = ["feature:graphs", "kv:v41_fp4"] }'


def test_auto_counts_what_is_claimed_on_the_architecture_that_is_here(site, sources):
    site.add("plain", sources["backend"])
    site.add("rich", sources["backend"], table=BY_ARCH)
    wanted = Requirements(features_preferred=frozenset({"graphs"}))
    older = choose(site, {"plain": report(9), "rich": report(1, devices=("Toy",), arch="toy1")}, wanted)
    assert older.line == "backend: plain (auto: 2 usable of 2; met 0 preferred features)"
    newer = choose(site, {"plain": report(9), "rich": report(1, devices=("Toy",), arch="toy2")}, wanted)
    assert newer.line == "backend: rich (auto: 2 usable of 2; met 1 preferred feature)"


@pytest.mark.parametrize("backend", ["auto", "rich"])
def test_requirements_are_compared_with_the_claims_of_the_architecture_that_is_here(site, sources, backend):
    site.add("rich", sources["backend"] + sources["probe"](), table=BY_ARCH)
    wanted = Requirements(formats=frozenset({"v41_fp4"}), features_required=frozenset({"graphs"}))
    chosen = choose(site, {"rich": report(devices=("Toy",), arch="toy2")}, wanted, backend=backend)
    assert chosen.record.name == "rich"
    with pytest.raises(DeepInferError, match="its manifest does not claim kv:v41_fp4, feature:graphs"):
        choose(site, {"rich": report(devices=("Toy",), arch="toy1")}, wanted, backend=backend)


def test_auto_with_a_present_but_unusable_accelerator_never_falls_to_cpu(toys):
    broken = report(usable=False, reasons=("driver 1.2 is too old",), remedy="update the driver to 1.3")
    with pytest.raises(DeepInferError) as caught:
        choose(toys, {"toya": broken, "toyb": ABSENT})
    assert str(caught.value) == (
        "E_BACKEND_UNAVAILABLE: an accelerator is present, and no backend can use it for this model\n"
        "  reason: toya: driver 1.2 is too old\n"
        "          toyb: no toy device node\n"
        "  remedy: update the driver to 1.3; or run on the processor with --backend cpu"
    )
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    "how",
    [
        "probe crashed: signal 11",
        "probe gave no answer within 5 s",
        "probe failed: RuntimeError: x (raised at acme_toya/plugin.py:9)",
        "probe returned None, expected a ProbeReport",
    ],
)
def test_auto_with_a_failed_probe_refuses_and_does_not_claim_a_device(toys, how):
    with pytest.raises(DeepInferError) as caught:
        choose(toys, {"toya": {"failure": how, "crashed": True}, "toyb": ABSENT})
    assert str(caught.value) == (
        "E_BACKEND_UNAVAILABLE: the probe of toya failed, so it is not known whether an accelerator is present\n"
        f"  reason: toya: {how}\n"
        "          toyb: no toy device node\n"
        "  remedy: run on the processor with --backend cpu; or leave toya out with --no-plugin toya"
    )
    assert choose(toys, {"toyb": ABSENT}, plugins__disable=("toya",)).record.name == "cpu"


def test_auto_with_two_failed_probes_names_both(toys):
    failed = {"failure": "probe crashed: signal 6", "crashed": True}
    with pytest.raises(DeepInferError, match="the probes of toya and toyb failed") as caught:
        choose(toys, {"toya": failed, "toyb": failed})
    assert caught.value.remedy.endswith("with --no-plugin toya --no-plugin toyb")


def test_auto_with_a_failed_probe_beside_a_device_that_was_found_says_present(toys):
    broken = report(usable=False, reasons=("no driver",))
    with pytest.raises(DeepInferError, match="an accelerator is present, and") as caught:
        choose(toys, {"toya": {"failure": "probe crashed: signal 11", "crashed": True}, "toyb": broken})
    assert caught.value.remedy == "run on the processor with --backend cpu"


def test_refusal_without_the_cpu_plugin_says_to_install_it(site, sources):
    site.add("toy", sources["backend"])
    with pytest.raises(DeepInferError) as caught:
        choose(site, {"toy": report(usable=False)})
    assert caught.value.remedy == "pip install deepinfer-cpu, and run on the processor with --backend cpu"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (report(devices=("cpu",)), "auto: no accelerator present"),
        (report(devices=("cpu",), usable=False), "auto: no accelerator present"),
        ({"failure": "probe crashed: signal 11", "crashed": True}, "auto: no accelerator present; 1 unusable: host"),
    ],
)
def test_auto_never_takes_a_backend_of_the_processor_for_an_accelerator(site, sources, answer, line):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("host", sources["backend"], table='arch = ["cpu"]')
    needs = Requirements(formats=frozenset({"v41"}))
    selection = choose(site, {"host": answer}, needs)
    assert selection.line == f"backend: cpu ({line})"
    assert [name for name, _ in selection.refused] == ["host"]


def test_auto_leaves_a_usable_backend_of_the_processor_to_those_who_name_it(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("host", sources["backend"], table='arch = ["cpu"]')
    selection = choose(site, {"host": report(devices=("cpu",))})
    assert selection.line == "backend: cpu (auto: no accelerator present)"
    assert selection.refused == (
        ("host", "runs on the processor, where auto takes cpu; choose it with --backend host"),
    )
    assert choose(site, {"host": report(devices=("cpu",))}, backend="host").record.name == "host"


def test_auto_with_a_plugin_that_cannot_be_imported_goes_on_and_names_it(toys):
    failed = {"failure": "plugin failed in import: ImportError: x", "plugin_failed": True}
    selection = choose(toys, {"toya": failed, "toyb": ABSENT})
    assert selection.line == "backend: cpu (auto: no accelerator present; 1 unusable: toya)"
    selection = choose(toys, {"toya": failed, "toyb": report()})
    assert selection.record.name == "toyb"


def test_auto_names_unusable_installed_backends_on_its_way_to_cpu(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("oldnpu", api=">=0.4,<1")
    assert choose(site, {}).line == "backend: cpu (auto: no accelerator present; 1 unusable: oldnpu)"


def test_auto_drops_an_architecture_without_kernels(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("toy", sources["backend"], table='arch = ["toy2", "toy3"]')
    with pytest.raises(DeepInferError, match="toy: found toy1; kernels exist for toy2, toy3"):
        choose(site, {"toy": report()})
    assert choose(site, {"toy": report(devices=("toy1", "toy3"))}).record.name == "toy"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('requires = { os = ["plan9"] }', "needs plan9, this is linux"),
        ('requires = { any_path = ["/dev/no-such-toy*"] }', "no /dev/no-such-toy* here"),
        ('requires = { modules = ["no_such_module_here"] }', "needs the Python package no_such_module_here"),
    ],
)
def test_auto_drops_what_the_manifest_requires_without_probing(site, sources, table, reason):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("toy", "raise RuntimeError('must not be imported')\n", table=table)
    selection = choose(site, {})
    assert selection.refused == (("toy", reason),)
    assert selection.record.name == "cpu"


def test_auto_drops_a_backend_that_lacks_what_the_model_needs(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("toy", sources["backend"], table='claims = ["kv:v41"]')
    needs = Requirements(formats=frozenset({"v41", "v41_fp4"}), features_required=frozenset({"graphs"}))
    with pytest.raises(DeepInferError, match="toy: its manifest does not claim kv:v41_fp4, feature:graphs"):
        choose(site, {"toy": report()}, needs)


def test_explicit_name_that_lacks_a_claim_is_told_how_to_write_it(site, sources):
    site.add("toy", sources["backend"], table='claims = ["kv:v41"]')
    with pytest.raises(DeepInferError) as caught:
        choose(site, {}, Requirements(formats=frozenset({"v41", "index_fp4"})), backend="toy")
    assert str(caught.value) == (
        "E_FORMAT: backend 'toy' cannot run this model as configured\n"
        "  reason: its manifest does not claim kv:index_fp4, which the model needs\n"
        "  remedy: choose --backend cpu; or, if toy has these, add them to its claims in deepinfer.toml of acme-toy"
    )


def test_explicit_name_skips_static_requirements(site, sources):
    site.add("toy", sources["backend"] + sources["probe"](), table='requires = { os = ["plan9"] }')
    selection = choose(site, {"toy": report()}, backend="toy")
    assert selection.line == "backend: toy (chosen by --backend)"


def test_explicit_name_that_is_unusable_fails_and_is_not_replaced(toys, sources, site):
    site.add("gone", sources["backend"] + sources["probe"]())
    with pytest.raises(DeepInferError) as caught:
        choose(site, {"gone": ABSENT, "toya": report()}, backend="gone")
    assert str(caught.value) == (
        "E_BACKEND_UNAVAILABLE: backend gone (acme-gone 1.0) was requested but cannot be used here\n"
        "  reason: no toy device node\n"
        "  remedy: use a machine with a device of backend gone, or choose --backend cpu"
    )


def test_explicit_name_loads_only_that_plugin(toys):
    manager = toys.manager(backend="toyb")
    select_backend(manager, FREE, prober=prober({}))
    assert {record.name: record.state for record in manager.registry} == {
        "cpu": "found",
        "toya": "found",
        "toyb": "loaded",
    }


def test_explicit_name_with_a_wrong_architecture_is_refused(site, sources):
    site.add("toy", sources["backend"] + sources["probe"](), table='arch = ["toy9"]')
    with pytest.raises(DeepInferError) as caught:
        choose(site, {"toy": report()}, backend="toy")
    assert (caught.value.code, caught.value.reason) == ("E_ARCH", "found toy1; kernels exist for toy9")


def test_line_names_the_source_of_an_explicit_choice(toys):
    config = EngineConfig.resolve({}, environ={"DEEPINFER_BACKEND": "cpu"})
    selection = select_backend(PluginManager.from_config(config, toys.entries()), FREE)
    assert selection.line == "backend: cpu (chosen by DEEPINFER_BACKEND)"


def test_auto_with_real_children_takes_the_usable_backend(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("good", sources["backend"] + sources["probe"](score=1))
    site.add("none", sources["backend"] + sources["probe"](), dist="squatter")  # reserved: not a candidate
    assert select_backend(site.manager(), FREE).line == "backend: good (auto: 1 usable of 1)"


def test_auto_without_cpu_and_without_a_device_says_what_to_install(site, sources):
    site.add("toy", sources["backend"])
    with pytest.raises(DeepInferError) as caught:
        choose(site, {"toy": ABSENT})
    assert str(caught.value) == (
        "E_BACKEND_MISSING: no backend can be used here, and the cpu backend is not installed\n"
        "  reason: toy: no toy device node\n"
        "  remedy: pip install deepinfer-cpu"
    )


def test_explicit_first_party_name_that_is_missing_names_its_distribution(toys):
    with pytest.raises(DeepInferError) as caught:
        choose(toys, {}, backend="cuda")
    assert caught.value.remedy == "deepinfer --backend cpu ..., or pip install deepinfer-cuda"


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        ({"topk": 512, "heads": 64, "unknown": 9}, []),
        ({"topk": 513}, ["topk of 513 (at most 512)"]),
        ({"heads": 32}, ["heads of 32 (offered: 64, 128)"]),
        ({"rows": 9}, ["rows of 9 (at most 8)"]),
    ],
)
def test_limits_of_the_created_backend_are_compared(limits, missing):
    can = Capabilities("toy", "toy", "toy1", max_topk=512, heads=(64, 128), limits={"rows": 8})
    backend = SimpleNamespace(capabilities=can, ops={})
    assert missing_capabilities(backend, Requirements(limits=limits)).listed() == missing
