"""From settings to the parts of an engine, over fake plugins and, once, over the installed ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deepinfer_core.assembly.assemble import assemble, default_checkpoint, log_plan
from deepinfer_core.errors import DeepInferError, NotSupported


@pytest.fixture
def tiny(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("tiny", sources["model"](), kind="model", table='architectures = ["TinyLM"]')
    return site


def build(site, announce=None, structured=False, **settings):
    manager = site.manager(**settings)
    return assemble(manager.config, announce=announce, manager=manager, structured=structured)


def test_assemble_creates_and_loads_everything(tiny, checkpoint_of):
    lines: list[str] = []
    folder = checkpoint_of("TinyLM")
    parts = build(tiny, lines.append, model=str(folder))
    assert lines == ["backend: cpu (auto: no accelerator present)"]
    assert parts.model.loaded == folder
    assert (parts.card.architecture, parts.match.name, parts.backend.name) == ("TinyLM", "tiny", "cpu")
    assert (parts.hints.window, parts.hints.max_model_len) == (8, 64)
    assert [spec.name for spec in parts.cache_specs] == ["main"]
    parts.close()
    parts.close()
    assert parts.backend.closed == 1


def test_assemble_prints_the_backend_line_on_stderr(tiny, checkpoint_of, capsys):
    manager = tiny.manager(model=str(checkpoint_of("TinyLM")))
    assemble(manager.config, manager=manager).close()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "backend: cpu (auto: no accelerator present)\n")


def test_log_says_who_serves_each_op(caplog):
    ops = dict.fromkeys(("norm.rms", "gemm.dense", "moe.gate", "cache.store"))
    plan = {"norm.rms": "acme", "gemm.dense": "deepinfer-gemm", "moe.gate": "acme"}
    with caplog.at_level("INFO", logger="deepinfer.backend"):
        log_plan(SimpleNamespace(name="toy", ops=ops, plan=plan))
    assert [record.getMessage() for record in caplog.records] == [
        "backend toy: 2 ops by acme: moe.gate, norm.rms",
        "backend toy: 1 op by deepinfer-gemm: gemm.dense",
        "backend toy: 1 op by toy: cache.store",
    ]


def test_assemble_logs_the_plan(tiny, checkpoint_of, monkeypatch):
    logged = []
    monkeypatch.setattr("deepinfer_core.assembly.assemble.log_plan", lambda backend: logged.append(backend.name))
    build(tiny, model=str(checkpoint_of("TinyLM"))).close()
    assert logged == ["cpu"]


def test_assemble_without_a_model_takes_the_checkpoint_of_a_plugin(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    home = site.add("tiny", sources["model"](), kind="model", table='architectures = ["TinyLM"]\ncheckpoint = "ckpt"')
    (home / "ckpt").mkdir()
    (home / "ckpt" / "config.json").write_text('{"architectures": ["TinyLM"]}')
    assert build(site).card.path == home / "ckpt"


def test_assemble_without_a_model_takes_the_first_party_checkpoint_whatever_else_is_installed(site, sources):
    table = 'architectures = ["TinyLM"]\ncheckpoint = "ckpt"'
    site.add("aardvark", sources["model"](), kind="model", table=table)
    ours = site.add("deepseek_v41", sources["model"](), kind="model", dist="deepinfer-v41", table=table)
    assert default_checkpoint(site.manager()) == ours / "ckpt"
    assert default_checkpoint(site.manager(model_plugin="aardvark")).parent.name == "acme_aardvark"


def test_assemble_without_a_model_and_without_a_checkpoint_says_what_to_do(tiny):
    with pytest.raises(DeepInferError) as caught:
        build(tiny)
    assert str(caught.value) == (
        "E_MODEL_MISSING: no model was given\n"
        "  reason: no installed model plugin ships a checkpoint\n"
        "  remedy: give --model DIR, or pip install deepinfer-v41, which ships a small one"
    )


def test_assemble_without_a_model_says_what_keeps_the_shipped_one_away(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("tiny", sources["model"](), kind="model", table='architectures = ["TinyLM"]\ncheckpoint = "ckpt"')
    with pytest.raises(DeepInferError) as caught:
        build(site, plugins__disable=("model:tiny",))
    assert str(caught.value) == (
        "E_MODEL_MISSING: no model was given\n"
        "  reason: model tiny (acme-tiny 1.0) is disabled: named in plugins.disable (--no-plugin)\n"
        "  remedy: change that setting to use it; or give --model DIR"
    )


def test_assemble_of_an_architecture_that_only_a_disabled_plugin_runs_names_it(tiny, checkpoint_of):
    with pytest.raises(DeepInferError) as caught:
        build(tiny, model=str(checkpoint_of("TinyLM")), plugins__disable=("tiny",))
    assert str(caught.value) == (
        "E_MODEL: no usable plugin runs the architecture TinyLM\n"
        "  reason: model tiny (acme-tiny 1.0) does, and is disabled: named in plugins.disable (--no-plugin)\n"
        "  remedy: change that setting to use it"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("tinny", "no model named 'tinny'; did you mean 'tiny'"), ("tiny", "model plugin 'tiny' ships no checkpoint")],
)
def test_assemble_without_a_model_and_with_a_model_plugin_says_what_is_missing(tiny, name, text):
    with pytest.raises(DeepInferError) as caught:
        build(tiny, model_plugin=name)
    assert text in str(caught.value)
    assert "deepinfer-v41" not in str(caught.value)


def test_assemble_of_an_unknown_architecture_lists_the_known_ones(tiny, checkpoint_of):
    with pytest.raises(DeepInferError) as caught:
        build(tiny, model=str(checkpoint_of("OtherLM")))
    assert str(caught.value) == (
        "E_MODEL: no installed plugin runs the architecture OtherLM\n"
        "  reason: installed plugins run: TinyLM\n"
        "  remedy: pip install the plugin that provides it, or give another --model"
    )
    assert caught.value.exit_status == 4


def test_assemble_with_equal_scores_asks_for_a_choice(tiny, sources, checkpoint_of):
    tiny.add("twin", sources["model"](), kind="model", table='architectures = ["TinyLM"]')
    folder = str(checkpoint_of("TinyLM"))
    with pytest.raises(DeepInferError) as caught:
        build(tiny, model=folder)
    assert str(caught.value) == (
        "E_MODEL_AMBIGUOUS: TinyLM is matched by 2 plugins with score 0: model tiny (acme-tiny 1.0), model twin "
        "(acme-twin 1.0)\n"
        "  reason: neither is better by its own account\n"
        "  remedy: choose one with --model-plugin tiny"
    )
    assert build(tiny, model=folder, model_plugin="twin").manager.registry.find("model", "twin").state == "loaded"


def test_assemble_takes_the_higher_score(tiny, sources, checkpoint_of):
    tiny.add("best", sources["model"](score=5), kind="model", table='architectures = ["TinyLM"]')
    parts = build(tiny, model=str(checkpoint_of("TinyLM")))
    assert parts.match.score == 5


def test_assemble_goes_on_when_another_matching_plugin_is_broken(tiny, checkpoint_of):
    tiny.add("bad", "raise OSError('broken')\n", kind="model", table='architectures = ["TinyLM"]')
    parts = build(tiny, model=str(checkpoint_of("TinyLM")))
    assert parts.match.name == "tiny"


def test_assemble_with_only_a_broken_plugin_gives_its_failure(site, sources, checkpoint_of):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("bad", "raise OSError('broken')\n", kind="model", table='architectures = ["TinyLM"]')
    with pytest.raises(DeepInferError, match="OSError: broken"):
        build(site, model=str(checkpoint_of("TinyLM")))


def test_assemble_does_not_load_plugins_of_other_architectures(tiny, checkpoint_of):
    tiny.add("other", "raise RuntimeError('must not be imported')\n", kind="model", table='architectures = ["Other"]')
    parts = build(tiny, model=str(checkpoint_of("TinyLM")))
    assert parts.manager.registry.find("model", "other").state == "found"


def test_assemble_checks_the_created_backend_and_lists_all_it_lacks(site, sources, checkpoint_of):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    needs = "Requirements(ops=frozenset({'norm.rms'}), formats=frozenset({'v41', 'v41_fp4'}), limits={'topk': 9})"
    site.add("tiny", sources["model"](requirements=needs), kind="model", table='architectures = ["TinyLM"]')
    with pytest.raises(DeepInferError) as caught:
        build(site, model=str(checkpoint_of("TinyLM")))
    assert str(caught.value) == (
        "E_OP: backend 'cpu' (toy1) cannot run this model as configured\n"
        "  reason: it lacks op norm.rms, format v41_fp4\n"
        "  remedy: install a kernel pack or backend that offers these, or choose --backend cpu"
    )
    assert caught.value.exit_status == 3


def test_assemble_closes_the_backend_when_the_model_fails_to_load(site, sources, checkpoint_of):
    site.add("cpu", sources["backend"] + "\nmade = []\n_init = Toy.__init__\n", dist="deepinfer-cpu")
    source = sources["model"]().replace("self.loaded = path", "raise MemoryError('too large')")
    site.add("tiny", source, kind="model", table='architectures = ["TinyLM"]')
    manager = site.manager(model=str(checkpoint_of("TinyLM")))
    closed: list[str] = []
    manager.require("backend", "cpu")
    import deepinfer_cpu_fake.plugin as fake

    fake.Toy.close = lambda self: closed.append(self.name)
    with pytest.raises(DeepInferError, match=r"model tiny .* failed in load: MemoryError: too large"):
        assemble(manager.config, announce=None, manager=manager)
    assert closed == ["cpu"]


def test_assemble_with_a_missing_backend_says_so_before_the_model(tiny):
    with pytest.raises(DeepInferError) as caught:
        build(tiny, backend="nope", model="/no/such/model")
    assert str(caught.value) == (
        "E_BACKEND_MISSING: no backend named 'nope'\n"
        "  reason: installed backends: cpu\n"
        "  remedy: deepinfer --backend cpu ..., or pip install the plugin that provides 'nope'"
    )


@pytest.mark.parametrize(
    ("setting", "kind"), [("sampler", "sampler"), ("grammar_engine", "grammar"), ("model_plugin", "model")]
)
def test_assemble_with_a_missing_plugin_that_a_setting_names_says_so_before_the_model(tiny, setting, kind):
    with pytest.raises(DeepInferError) as caught:
        build(tiny, model="/no/such/model", **{setting: "nope"})
    assert str(caught.value).startswith(f"E_PLUGIN_MISSING: no {kind} named 'nope'\n  reason: installed {kind}s: ")


def test_assemble_for_structured_output_without_an_engine_says_so_before_the_model(tiny):
    with pytest.raises(NotSupported, match="structured output needs a grammar engine, and none can be used here"):
        build(tiny, model="/no/such/model", structured=True)


def test_make_sampler_loads_its_plugin_on_first_use(tiny, checkpoint_of):
    source = (
        "from deepinfer_core import hookimpl\nclass S:\n    def sample(self, logits, inputs): return None\n"
        "@hookimpl\ndef deepinfer_sampler_create(name, params, vocab_size, config, backend):\n"
        "    s = S(); s.args = (name, params, vocab_size); s.seen = (config, backend); return s\n"
    )
    tiny.add("greedy", source, kind="sampler")
    parts = build(tiny, model=str(checkpoint_of("TinyLM")), sampler="greedy")
    record = parts.manager.registry.find("sampler", "greedy")
    assert record.state == "found"
    made = parts.make_sampler(None, {"a": 1}, 16)
    assert made.args == ("greedy", {"a": 1}, 16)
    assert made.seen == (parts.config, parts.backend)
    assert record.state == "loaded"
    assert parts.owners == {
        "backend": "cpu (deepinfer-cpu 1.0)",
        "model": "tiny (acme-tiny 1.0)",
        "sampler": "greedy (acme-greedy 1.0)",
    }


def test_assemble_loads_the_extensions_that_are_enabled_and_no_other(tiny, checkpoint_of):
    source = (
        "from deepinfer_core import hookimpl\nfrom deepinfer_core.types import SchedulerHints\n"
        "@hookimpl\ndef deepinfer_scheduler_hints(match): return SchedulerHints(max_model_len=32)\n"
    )
    tiny.add("short", source, kind="extension")
    tiny.add("other", "raise RuntimeError('must not be imported')\n", kind="extension")
    folder = str(checkpoint_of("TinyLM"))
    assert build(tiny, model=folder).hints.max_model_len == 64
    assert build(tiny, model=folder, plugins__enable=("short",)).hints.max_model_len == 32
    with pytest.raises(DeepInferError, match="no extension named 'shor'; did you mean 'short'"):
        build(tiny, model=folder, plugins__enable=("shor",))


@pytest.mark.parametrize(("asked", "remedy"), [(65, "set --max-model-len to 64 or less"), (1, "to 2 or more")])
def test_assemble_refuses_a_length_before_the_model_is_created(site, sources, checkpoint_of, asked, remedy):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    source = sources["model"]().replace("return TinyLM()", "raise MemoryError('tables')")
    site.add("tiny", source, kind="model", table='architectures = ["TinyLM"]')
    with pytest.raises(DeepInferError) as caught:
        build(site, model=str(checkpoint_of("TinyLM")), max_model_len=asked)
    assert caught.value.code == "E_CONFIG"
    assert caught.value.what.startswith(f"max_model_len {asked} ")
    assert remedy in caught.value.remedy


def test_assemble_over_the_installed_plugins_runs_on_cpu(capsys):
    pytest.importorskip("torch", reason="the cpu plugin runs on torch")
    from deepinfer_core.config import EngineConfig

    parts = assemble(EngineConfig.resolve({"plugins.allow": ()}, environ={}))
    assert capsys.readouterr().err == "backend: cpu (auto: no accelerator present)\n"
    assert (parts.card.architecture, parts.backend.name) == ("DeepseekV41ForCausalLM", "cpu")
    assert {spec.name for spec in parts.cache_specs} == {"main", "index", "swa", "state"}
    assert set(parts.match.requirements.ops) <= set(parts.backend.ops)
    parts.close()
