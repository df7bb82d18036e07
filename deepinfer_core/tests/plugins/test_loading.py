"""A plugin that fails is reported as that plugin's failure, and the others go on (``spec/plugins.md`` 4)."""

from __future__ import annotations

import pytest

from deepinfer_contracts import CONTRACTS
from deepinfer_core.errors import ContractError, DeepInferError, PluginError
from deepinfer_core.plugins.hooks import Hooks


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("raise OSError('libacme.so: cannot open')", "OSError: libacme.so: cannot open"),
        ("raise RuntimeError('driver\\n  too old')", "RuntimeError: driver too old"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("raise AssertionError", "AssertionError"),
        ("raise BaseException('panicked')", "BaseException: panicked"),
        ("def broken(:", "SyntaxError: invalid syntax (plugin.py, line 1)"),
    ],
    ids=["import", "os", "runtime", "exit", "assertion", "panic", "syntax"],
)  # fmt: skip
def test_load_of_a_plugin_that_raises_keeps_its_own_message(site, statement, text):
    site.add("toy", statement + "\n")
    again = "reinstall or update acme-toy"
    if statement.startswith("import"):
        again = "pip install --force-reinstall acme-toy, which brings what it depends on"
    with pytest.raises(PluginError) as caught:
        site.manager().require("backend", "toy")
    assert str(caught.value) == (
        f"E_PLUGIN: backend toy (acme-toy 1.0) failed in import: {text}\n"
        "  reason: raised at acme_toy/plugin.py:1\n"
        f"  remedy: {again}, or leave it out with --no-plugin toy"
    )


def test_load_of_a_failed_plugin_is_not_tried_again(site):
    counter = "import pathlib\nwith pathlib.Path(__file__).with_name('n').open('a') as f: f.write('x')\n"
    home = site.add("toy", counter + "raise RuntimeError('no')\n")
    manager = site.manager()
    record = manager.registry.find("backend", "toy")
    assert [manager.load(record), manager.load(record)] == [False, False]
    assert (home / "n").read_text() == "x"
    assert (record.state, record.phase, record.detail) == ("failed", "import", "RuntimeError: no")


def test_load_lets_a_keyboard_interrupt_pass(site):
    site.add("toy", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        site.manager().require("backend", "toy")


def test_load_with_an_unknown_hook_names_it_and_the_nearest(site, sources):
    site.add("toy", sources["backend"] + "\n@hookimpl\ndef deepinfer_backend_crate(name):\n    return None\n")
    with pytest.raises(PluginError) as caught:
        site.manager().require("backend", "toy")
    assert str(caught.value) == (
        "E_PLUGIN: backend toy (acme-toy 1.0): unknown hook 'deepinfer_backend_crate'; "
        "did you mean 'deepinfer_backend_create'?\n"
        "  reason: its hooks do not fit plugin API 1.0\n"
        "  remedy: install a release of acme-toy that supports this API, or leave it out with --no-plugin toy"
    )


def test_load_with_a_wrong_argument_name_names_it_and_the_nearest(site, sources):
    site.add("toy", sources["backend"].replace("(name, device, config)", "(name, devise)"))
    with pytest.raises(PluginError) as caught:
        site.manager().require("backend", "toy")
    assert caught.value.what == (
        "backend toy (acme-toy 1.0): deepinfer_backend_create has no argument 'devise'; did you mean 'device'?"
    )


def test_load_without_the_hook_of_its_kind_is_refused(site):
    site.add("toy", "from deepinfer_core import hookimpl\n")
    with pytest.raises(PluginError) as caught:
        site.manager().require("backend", "toy")
    assert caught.value.what == "backend toy (acme-toy 1.0) does not implement deepinfer_backend_create"


def test_good_duplicate_broken_good_leaves_both_good_ones_usable(site, sources):
    site.add("aa", sources["backend"])
    site.add("dup", dist="dup-one")
    site.add("dup", dist="dup-two")
    site.add("mm", "raise OSError('broken')\n")
    site.add("zz", sources["backend"])
    manager = site.manager()
    loaded = {record.name: manager.load(record) for record in manager.registry if record.kind == "backend"}
    assert loaded == {"aa": True, "dup": False, "mm": False, "zz": True}
    hooks = Hooks(manager)
    for name in ("aa", "zz"):
        assert hooks.backend_create(manager.require("backend", name), None, manager.config).name == name


def test_strict_mode_raises_at_once(site):
    site.add("toy", "raise RuntimeError('no')\n")
    manager = site.manager(strict_plugins=True)
    with pytest.raises(PluginError, match="RuntimeError: no"):
        manager.load(manager.registry.find("backend", "toy"))


def test_require_of_a_missing_backend_lists_the_installed_ones(site):
    site.add("ascent_one")
    site.add("broken", manifest="")
    with pytest.raises(DeepInferError) as caught:
        site.manager().require("backend", "ascent_on")
    assert str(caught.value) == (
        "E_BACKEND_MISSING: no backend named 'ascent_on'; did you mean 'ascent_one'?\n"
        "  reason: installed backends: ascent_one, broken\n"
        "  remedy: deepinfer --backend ascent_one ..., or pip install the plugin that provides 'ascent_on'"
    )


def test_require_of_a_missing_sampler_lists_the_installed_ones(site):
    with pytest.raises(DeepInferError) as caught:
        site.manager().require("sampler", "min_p")
    assert str(caught.value) == (
        "E_PLUGIN_MISSING: no sampler named 'min_p'\n"
        "  reason: installed samplers: none\n"
        "  remedy: choose one of these, or pip install the plugin that provides 'min_p'"
    )


def test_require_of_a_disabled_plugin_says_by_what(site):
    site.add("toy")
    with pytest.raises(DeepInferError) as caught:
        site.manager(plugins__disable=("toy",)).require("backend", "toy")
    assert str(caught.value) == (
        "E_PLUGIN: backend toy (acme-toy 1.0) is disabled\n"
        "  reason: it is named in plugins.disable (--no-plugin)\n"
        "  remedy: change that setting to use it"
    )


@pytest.mark.parametrize(
    ("raised", "remedy"),
    [
        ("ModuleNotFoundError('no', name='safe_tensors.torch')", "pip install safe-tensors"),
        (
            "ModuleNotFoundError('no', name='stranger')",
            (
                "pip install --force-reinstall acme-toy, which brings what it depends on, or leave it out with "
                "--no-plugin toy"
            ),
        ),
        (
            "ImportError('cannot import name', name='safe_tensors')",
            (
                "pip install --force-reinstall safe-tensors, or pip install --force-reinstall acme-toy, which brings "
                "what it depends on"
            ),
        ),
        (
            "ModuleNotFoundError('no', name='acme_toy.part')",
            "reinstall or update acme-toy, or leave it out with --no-plugin toy",
        ),
        (
            "ImportError('libacme.so: cannot open')",
            "reinstall or update acme-toy, or leave it out with --no-plugin toy",
        ),
    ],
)
def test_import_error_says_what_to_install(site, raised, remedy):
    site.add("toy", f"raise {raised}\n")
    with (site.folder / "acme_toy-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: Safe-Tensors>=0.4; python_version >= '3'\n")
    manager = site.manager()
    record = manager.registry.find("backend", "toy")
    assert not manager.load(record)
    assert record.remedy.lower() == remedy


def test_load_of_a_library_built_for_another_record_names_the_field(site):
    """What ``deepinfer_contracts.verify`` raises in a plugin's import is E_CONTRACT, not a failure of any kind."""
    source = (
        "import attrs\nfrom deepinfer_contracts import CONTRACTS, compatible\n"
        "ours = CONTRACTS['SchedulerOutputs']\n"
        "fields = (*ours.fields[:2], ours.fields[3], ours.fields[2], *ours.fields[4:])\n"
        "chain = (*ours.chain[:3], *(1 for _ in ours.chain[3:]))\n"
        "compatible(ours, attrs.evolve(ours, fields=fields, chain=chain), plugin_name='libtoy')\n"
    )
    site.add("toy", source)
    manager = site.manager()
    with pytest.raises(ContractError) as caught:
        manager.require("backend", "toy")
    assert caught.value.what.startswith("backend toy (acme-toy 1.0): SchedulerOutputs differs at field 2, ")
    assert caught.value.details["field"] == CONTRACTS["SchedulerOutputs"].fields[2][0]
    assert caught.value.remedy.startswith("rebuild libtoy against contract ")
