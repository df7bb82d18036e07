"""The hook, the manifest, and behaviour under ``python -O``."""

import hashlib
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from samplers_step import sample, sampler_inputs

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, InvalidParameter, NotSupported, PluginMissing, ShapeContractError
from deepinfer_core.interfaces import Sampler
from deepinfer_samplers import plugin

SCRIPT = """
import sys; sys.path.insert(0, {tests!r})
from test_plugin import digest
print(digest(), sys.flags.optimize)
"""

ALONE = {"config": None, "backend": None}


def digest():
    """A fingerprint of tokens, logprobs and a refusal."""
    torch.manual_seed(1)
    given = {
        "temperature": [0.0, 1.0, 0.5, 1.0],
        "top_p": [1, 0.9, 1, 1],
        "top_k": [-1, -1, 5, -1],
        "seed": [1, 2, 3, 4],
    }
    out = sample(torch.randn(4, 500), **given)
    text = "no refusal"
    try:
        sample(torch.zeros(1, 4), forced=[9])
    except ShapeContractError as error:
        text = str(error)
    return hashlib.sha256(out.sampled_ids.tobytes() + out.sampled_logprob.tobytes() + text.encode()).hexdigest()


def test_hook_canonical_returns_a_sampler():
    sampler = plugin.deepinfer_sampler_create(name="canonical", params={}, vocab_size=16, **ALONE)
    assert isinstance(sampler, Sampler)
    assert sampler.sample(torch.zeros(2, 16), sampler_inputs(2)).row_status.tolist() == [0, 0]
    assert isinstance(plugin.deepinfer_sampler_create(name="canonical", params=None, vocab_size=16, **ALONE), Sampler)


def test_hook_unknown_parameter_is_refused_by_name():
    with pytest.raises(InvalidParameter) as caught:
        plugin.deepinfer_sampler_create(name="canonical", params={"tpo_p": 1, "a": 2}, vocab_size=16, **ALONE)
    assert str(caught.value) == (
        "E_PARAM: sampler 'canonical' takes no parameters, got 'a', 'tpo_p'\n"
        "  reason: temperature, top_p, top_k, min_p and seed belong to each request (SamplingParams)\n"
        "  remedy: remove 'a', 'tpo_p' from the sampler's settings"
    )


@pytest.mark.parametrize("vocab_size", [0, -1, True, 1.5, None])
def test_hook_vocabulary_that_is_no_positive_integer_is_refused(vocab_size):
    with pytest.raises(InvalidParameter, match="vocab_size must be an integer of at least 1"):
        plugin.deepinfer_sampler_create(name="canonical", params={}, vocab_size=vocab_size, **ALONE)


def test_hook_vocabulary_too_wide_for_exact_mass_is_refused():
    with pytest.raises(NotSupported, match="up to 262144 ids, got 262145"):
        plugin.deepinfer_sampler_create(name="canonical", params={}, vocab_size=262145, **ALONE)


def made(**settings):
    config = EngineConfig.resolve(settings, environ={})
    backend = SimpleNamespace(ops={}, device="cpu")
    return plugin.deepinfer_sampler_create("canonical", {}, 16, config, backend)


def test_hook_settings_of_the_engine_reach_the_sampler():
    logits = torch.arange(16.0).repeat(40, 1)
    sampler = made(decode_token_blacklist=[15, 13], sampler_force_topk=2)
    out = sampler.sample(logits, sampler_inputs(40, temperature=5.0, seed=list(range(40))))
    assert set(out.sampled_ids.tolist()) == {14, 12}


def test_hook_blacklist_beyond_the_vocabulary_is_refused():
    with pytest.raises(ConfigError) as caught:
        made(decode_token_blacklist=[3, 16])
    assert caught.value.what == "decode_token_blacklist names token 16, and the vocabulary has ids 0 to 15"
    assert caught.value.reason == "set by --decode-token-blacklist"


def test_hook_other_name_is_refused():
    with pytest.raises(PluginMissing, match="no sampler named 'minp'"):
        plugin.deepinfer_sampler_create(name="minp", params={}, vocab_size=16, **ALONE)


def test_hook_matches_the_hookspecs():
    pluggy = pytest.importorskip("pluggy")
    from deepinfer_core import hookspecs

    manager = pluggy.PluginManager("deepinfer")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()


def test_manifest_names_the_sampler_and_its_api():
    manifest = tomllib.loads(files("deepinfer_samplers").joinpath("deepinfer.toml").read_text("utf-8"))
    assert manifest["schema"] == 1
    assert manifest["api"] == ">=1.0,<2"
    assert [table["name"] for table in manifest["sampler"]] == [plugin.NAME]


def test_plugin_module_imports_without_torch():
    code = "import sys, deepinfer_samplers.plugin; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_sample_under_python_o_is_identical():
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [digest(), "1"]


def test_doctor_checks_name_the_library_or_say_how_to_get_it(monkeypatch):
    from deepinfer_core.errors import VendorImportError
    from deepinfer_samplers import grammar_plugin
    from deepinfer_samplers.grammars import library

    def absent():
        raise VendorImportError("no xgrammar", reason="gone", remedy="install it")

    monkeypatch.setattr(library, "load", absent)
    [check] = grammar_plugin.deepinfer_doctor_checks()
    assert (check.name, check.status, check.detail) == ("library", "problem", "no xgrammar")
    assert (check.reason, check.remedy) == ("gone", "install it")
