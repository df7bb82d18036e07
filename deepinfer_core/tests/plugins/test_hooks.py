"""What comes back from a hook is checked where it comes back (``spec/plugins.md`` 7)."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

from deepinfer_core.errors import BackendUnavailable, DeepInferError, HookReturnError, PluginConflict
from deepinfer_core.plugins.hooks import Hooks, combine_hints
from deepinfer_core.plugins.manifest import PluginTable
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.types import ModelCard, SchedulerHints


def backend_of(site, body: str):
    site.add("toy", "from deepinfer_core import hookimpl\n@hookimpl\ndef deepinfer_backend_create(name):\n" + body)
    manager = site.manager()
    return Hooks(manager).backend_create(manager.require("backend", "toy"), None, manager.config)


def test_backend_create_that_returns_a_dict_is_refused(site):
    with pytest.raises(HookReturnError) as caught:
        backend_of(site, "    return {'name': name}\n")
    assert str(caught.value) == (
        "E_HOOK_RETURN: deepinfer_backend_create of toy returned dict, expected a Backend (it lacks alloc_caches, "
        "bind_inputs, capabilities, close, device, name, ops, plan, to_host, unit_bytes)\n"
        "  reason: backend toy (acme-toy 1.0) does not follow plugin API 1.0\n"
        "  remedy: ask the authors of acme-toy, or install another release of it"
    )


def test_backend_create_that_returns_none_is_refused(site):
    with pytest.raises(HookReturnError, match="deepinfer_backend_create of toy returned None, expected a Backend"):
        backend_of(site, "    return None\n")


def test_backend_create_that_raises_is_the_plugins_failure(site):
    with pytest.raises(DeepInferError) as caught:
        backend_of(site, "    raise OSError('libtoy.so: no such file')\n")
    assert str(caught.value) == (
        "E_PLUGIN: backend toy (acme-toy 1.0) failed in create: OSError: libtoy.so: no such file\n"
        "  reason: raised at acme_toy/plugin.py:4\n"
        "  remedy: reinstall or update acme-toy, or leave it out with --no-plugin toy"
    )


def test_backend_create_with_a_typed_refusal_passes_it_unchanged(site):
    body = "    from deepinfer_core import errors\n    raise errors.BackendUnavailable('no toy', remedy='buy')\n"
    with pytest.raises(BackendUnavailable) as caught:
        backend_of(site, body)
    assert str(caught.value) == "E_BACKEND_UNAVAILABLE: no toy\n  remedy: buy"


def test_cache_specs_that_are_a_dict_are_refused(site, sources, tmp_path):
    source = sources["model"]().replace("return [CacheSpec", "return {} or {1: 2}\n    return [CacheSpec")
    site.add("tiny", source, kind="model", table='architectures = ["TinyLM"]')
    manager = site.manager()
    owner = manager.require("model", "tiny")
    match = Hooks(manager).model_match(owner, ModelCard(tmp_path, "TinyLM", "tiny", {}))
    with pytest.raises(HookReturnError) as caught:
        Hooks(manager).cache_specs(owner, match, manager.config)
    assert caught.value.what == "deepinfer_cache_specs of tiny returned dict, expected a sequence of CacheSpec"


def test_sampler_create_is_asked_of_the_owner_only(site):
    source = (
        "from deepinfer_core import hookimpl\nclass S:\n    def sample(self, logits, inputs): return None\n"
        "@hookimpl\ndef deepinfer_sampler_create(name, params):\n    s = S(); s.made_by = {0!r}; return s\n"
    )
    for name in ("aa", "bb"):
        site.add(name, source.format(name), kind="sampler")
    manager = site.manager()
    for name in ("aa", "bb", "aa"):
        assert Hooks(manager).sampler_create(manager.require("sampler", name), name, {}, 8).made_by == name


def owner(name: str) -> PluginRecord:
    entry = metadata.EntryPoint(name, f"{name}.plugin", "deepinfer.models")
    return PluginRecord("model", name, f"acme-{name}", "1.0", entry, None, False, PluginTable("model", name))


def test_hints_of_two_plugins_are_combined_field_by_field():
    table = np.arange(4, dtype=np.int32)
    model = SchedulerHints(
        window=8, backtrack=3, max_model_len=100, inputs="InputMetadataV41", ngram_table=table, ratios_sparse=(4,)
    )
    backend = SchedulerHints(backtrack=2, max_model_len=64, stream_ordered_reuse=True)
    hints = combine_hints([(owner("m"), model), (owner("b"), backend)])
    assert (hints.window, hints.backtrack, hints.max_model_len, hints.stream_ordered_reuse) == (8, 3, 64, True)
    assert (hints.inputs, hints.ratios_sparse) == ("InputMetadataV41", (4,))
    assert hints.ngram_table is table
    assert combine_hints([]) == SchedulerHints()


def test_hints_that_contradict_name_both_plugins():
    with pytest.raises(PluginConflict) as caught:
        combine_hints([(owner("m"), SchedulerHints(window=8)), (owner("b"), SchedulerHints(window=16))])
    assert str(caught.value) == (
        "E_PLUGIN_CONFLICT: model m (acme-m 1.0) and model b (acme-b 1.0) ask the scheduler for different values of "
        "window\n  reason: m asks for 8, b for 16\n  remedy: use another backend, or another model plugin"
    )
