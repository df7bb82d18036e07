"""States that are settled without an import (``spec/plugins.md`` 2, 4, 6, 8)."""

from __future__ import annotations

import errno
import json
import os
import random
from importlib import metadata

import pytest

from deepinfer_core.doctor.settings_checks import warning_findings
from deepinfer_core.plugins import discovery
from deepinfer_core.plugins.registry import Registry

TRAP = "import pathlib\npathlib.Path(__file__).with_name('imported').write_text('yes')\n"


def test_registry_of_a_good_plugin_is_found_and_not_imported(site):
    home = site.add("toy", TRAP)
    record = site.record("backend", "toy")
    assert (record.state, record.detail, record.folder) == ("found", "toy", home)
    assert record.short_location == "site-packages/acme_toy"
    assert not (home / "imported").exists()


def test_record_of_an_editable_installation_shows_its_whole_folder_and_asks_its_author(site):
    home = site.add("toy")
    record = site.record("backend", "toy")
    assert record.remedy_for("reinstall it") == "reinstall it"
    record.editable = True
    assert record.short_location == f"{home} (editable)"
    assert record.remedy_for("reinstall it") == f"correct it in {home}, or leave it out with --no-plugin toy"


@pytest.mark.parametrize("kind", ["backend", "grammar"])
def test_record_of_a_plugin_that_this_host_cannot_use_says_so_where_it_is_listed(site, kind):
    site.add("toy", TRAP, kind=kind, table='requires = { modules = ["no_such_library"] }')
    record = site.record(kind, "toy")
    assert (record.state, record.unmet) == ("found", "needs the Python package no_such_library")
    assert record.detail == "cannot be used here: needs the Python package no_such_library"
    [listed] = json.loads(site.run("plugins", "toy", "--json").stdout)["plugins"]
    assert (listed["unmet"], listed["detail"]) == (record.unmet, record.detail)
    told = site.run("doctor", f"{kind}:toy").stdout
    assert f"acme-toy 1.0 {record.detail}" in told


@pytest.mark.parametrize(
    ("api", "state"), [(">=1.0,<2", "found"), (">=0.4,<1", "incompatible"), (">=99", "incompatible")]
)
def test_registry_checks_the_declared_api(site, api, state):
    site.add("oldnpu", api=api, dist="oldnpu", version="0.3")
    assert site.record("backend", "oldnpu").state == state


def test_registry_of_an_old_api_says_both_ranges(site):
    site.add("oldnpu", api=">=0.4,<1", dist="oldnpu", version="0.3")
    record = site.record("backend", "oldnpu")
    assert record.detail == "needs API >=0.4,<1; core has 1.0"
    assert str(record.error) == (
        "E_API: plugin oldnpu (oldnpu 0.3) needs plugin API >=0.4,<1\n"
        "  reason: this core provides 1.0\n"
        "  remedy: pip install -U oldnpu deepinfer-core"
    )


def test_registry_of_two_distributions_with_one_name_names_both(site):
    site.add("toy", dist="other-toy", version="2.0")
    site.add("toy", dist="acme-toy")
    registry = site.registry()
    assert [record.state for record in registry] == ["conflict", "conflict"]
    assert str(registry.records[0].error) == (
        "E_PLUGIN_CONFLICT: backend 'toy' is provided by two distributions: acme-toy 1.0, other-toy 2.0\n"
        "  reason: the order of installation does not decide\n"
        '  remedy: set plugins.prefer."backend:toy" = "acme-toy" in the settings file, or pip uninstall one of them'
    )


def test_registry_with_a_preference_takes_it_and_shadows_the_other(site):
    site.add("toy", dist="other-toy", version="2.0")
    site.add("toy", dist="acme-toy")
    registry = site.registry(plugins__prefer={"backend:toy": "other-toy"})
    states = {record.distribution: record.state for record in registry}
    assert states == {"acme-toy": "shadowed", "other-toy": "found"}
    found = registry.find("backend", "toy")
    assert found is not None
    assert found.distribution == "other-toy"


def test_registry_with_a_preference_for_a_stranger_keeps_the_conflict(site):
    site.add("toy", dist="other-toy")
    site.add("toy", dist="acme-toy")
    record = site.record("backend", "toy", plugins__prefer={"backend:toy": "nobody"})
    assert record.state == "conflict"
    assert record.error.reason == (
        "the order of installation does not decide, and plugins.prefer names 'nobody', which does not provide it"
    )


def test_registry_counts_only_usable_plugins_as_rivals(site):
    site.add("toy", dist="old-toy", api=">=0.1,<1")
    site.add("toy", dist="new-toy")
    record = site.record("backend", "toy")
    assert (record.distribution, record.state) == ("new-toy", "found")


@pytest.mark.parametrize("name", ["cuda", "cpu", "ascend", "deepseek_v41", "auto", "none", "all"])
def test_registry_refuses_a_reserved_name_to_a_third_party(site, name):
    site.add(name, dist="squatter")
    record = site.record("backend", name)
    assert (record.state, record.code) == ("invalid", "E_MANIFEST")


def test_registry_says_who_owns_a_reserved_name(site):
    site.add("cuda", dist="squatter")
    record = site.record("backend", "cuda")
    assert str(record.error) == (
        "E_MANIFEST: backend cuda (squatter 1.0) has an invalid description: the name 'cuda' is reserved for "
        "deepinfer-cuda\n"
        "  reason: no other distribution gets it unless a setting says so, so that none can slip in under that name\n"
        '  remedy: set plugins.prefer."backend:cuda" = "squatter" if you want this plugin in its place'
    )


def test_registry_gives_a_reserved_name_to_a_preferred_third_party(site):
    site.add("cuda", dist="squatter")
    site.add("cuda", dist="deepinfer-cuda")
    plain = {r.distribution: r.state for r in site.registry()}
    assert plain == {"squatter": "invalid", "deepinfer-cuda": "found"}
    preferred = {r.distribution: r.state for r in site.registry(plugins__prefer={"backend:cuda": "squatter"})}
    assert preferred == {"squatter": "found", "deepinfer-cuda": "shadowed"}


@pytest.mark.parametrize("word", ["toy", "backend:toy", "acme-toy"])
def test_registry_disables_by_name_key_or_distribution(site, word):
    site.add("toy")
    record = site.record("backend", "toy", plugins__disable=(word,))
    assert (record.state, record.detail) == ("disabled", "named in plugins.disable (--no-plugin)")


def test_registry_with_an_empty_allow_list_keeps_first_party_plugins_only(site):
    site.add("toy")
    site.add("cpu", dist="deepinfer-cpu")
    states = {record.name: record.state for record in site.registry(plugins__allow=())}
    assert states == {"toy": "disabled", "cpu": "found"}
    assert site.record("backend", "toy", plugins__allow=("toy",)).state == "found"


def test_registry_does_not_depend_on_the_order_of_installation(site):
    for name in ("zeta", "alpha", "mid"):
        site.add(name)
    entries = site.entries()
    expected = [record.key for record in Registry.build(site.config(), entries)]
    for seed in range(5):
        random.Random(seed).shuffle(entries)
        assert [record.key for record in Registry.build(site.config(), entries)] == expected


def test_registry_without_a_manifest_entry_is_invalid(site):
    site.add("toy", manifest_entry=False)
    record = site.record("backend", "toy")
    assert (record.state, record.detail) == ("invalid", "no entry point in group deepinfer.manifest")


def test_registry_without_the_manifest_file_is_invalid(site):
    home = site.add("toy", manifest="")
    record = site.record("backend", "toy")
    assert (record.state, record.detail) == ("invalid", f"deepinfer.toml is missing in {home}")


def test_registry_with_a_table_that_has_no_entry_point_is_invalid(site):
    site.add("toy", manifest='schema = 1\napi = ">=1.0,<2"\n[[backend]]\nname = "toy"\n[[backend]]\nname = "ghost"\n')
    record = site.record("backend", "toy")
    assert record.detail == "deepinfer.toml: backend 'ghost' has no entry point in group deepinfer.backends"


def test_registry_with_an_entry_point_that_has_no_table_is_invalid(site):
    site.add("toy", manifest='schema = 1\napi = ">=1.0,<2"\n')
    assert site.record("backend", "toy").detail == "deepinfer.toml: entry point 'toy' has no table [[backend]]"


def test_registry_of_a_contract_that_differs_is_incompatible(site):
    chain = '[contracts.SchedulerOutputs]\nfields = 3\nchain = "0123456789abcdef"\n'
    site.add("toy", manifest=f'schema = 1\napi = ">=1.0,<2"\n{chain}[[backend]]\nname = "toy"\n')
    record = site.record("backend", "toy")
    assert (record.state, record.code, record.phase) == ("incompatible", "E_CONTRACT", "contract")


def test_registry_of_a_contract_prefix_that_agrees_is_found(site):
    from deepinfer_contracts import CONTRACTS

    chain = CONTRACTS["SchedulerOutputs"].chain[5]
    contract = f'[contracts.SchedulerOutputs]\nfields = 5\nchain = "{chain:016x}"\n'
    site.add("toy", manifest=f'schema = 1\napi = ">=1.0,<2"\n{contract}[[backend]]\nname = "toy"\n')
    assert site.record("backend", "toy").state == "found"


def test_registry_of_a_distribution_without_metadata_uses_the_name_of_its_folder(site):
    site.add("toy")
    (site.folder / "acme_toy-1.0.dist-info" / "METADATA").unlink()
    record = site.record("backend", "toy")
    assert (record.distribution, record.version, record.state) == ("acme_toy", "1.0", "found")


@pytest.mark.parametrize("value", [":x", "not a module!", "acme_toy.plugin:a:b", "..x"])
def test_registry_of_a_malformed_entry_value_is_no_traceback(site, value):
    site.add("toy")
    entries = site.folder / "acme_toy-1.0.dist-info" / "entry_points.txt"
    entries.write_text(
        f"[deepinfer.backends]\ntoy = {value}\n[deepinfer.manifest]\nacme-toy = acme_toy:deepinfer.toml\n"
    )
    manager = site.manager()
    assert not manager.load(manager.registry.find("backend", "toy"))


def test_registry_with_a_damaged_neighbour_still_finds_the_others(site):
    site.add("toy")
    damaged = site.folder / "damaged-1.0.dist-info"
    damaged.mkdir()
    (damaged / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (damaged / "entry_points.txt").write_text("[deepinfer.backends]\nno equals sign\n")
    done = site.run("plugins")
    assert done.returncode == 0
    assert "acme-toy 1.0" in done.stdout
    assert done.stderr.startswith(
        "deepinfer: W_METADATA: the plugins of damaged 1.0, if it has any, are left out: "
        f"entry_points.txt in {damaged} cannot be read: "
    )
    assert done.stderr.endswith("; pip install --force-reinstall damaged, or make the file readable\n")


@pytest.mark.parametrize("closed", ["file", "folder", "no file"])
def test_entry_points_that_must_not_be_read_are_told_where_the_scan_takes_them_for_absent(site, monkeypatch, closed):
    site.add("toy")
    home = site.folder / "acme_toy-1.0.dist-info"
    entries = home / "entry_points.txt"
    if closed == "no file":
        entries.unlink()
        entries.mkdir()
    real_stat, real_access = os.stat, os.access  # root may read everything

    def stat(path, *rest, **options):
        if closed == "folder" and path == entries:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_stat(path, *rest, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: path != entries and real_access(path, mode))
    monkeypatch.setattr(metadata, "distributions", lambda: [metadata.PathDistribution(home)])
    monkeypatch.setattr(discovery, "scanned_entry_points", lambda: ())  # it went through
    discovery.unread_distributions.cache_clear()
    try:
        [warning] = discovery.unread_distributions()
    finally:
        discovery.unread_distributions.cache_clear()  # what it keeps is of this folder
    reason = "it is no file" if closed == "no file" else "Permission denied"
    assert warning == (
        f"W_METADATA: the plugins of acme-toy 1.0, if it has any, are left out: entry_points.txt in {home} cannot be "
        f"read: {reason}; pip install --force-reinstall acme-toy, or make the file readable"
    )
    [finding] = warning_findings([warning])
    assert (finding.area, finding.code) == ("core", "W_METADATA")
    assert finding.remedy == "pip install --force-reinstall acme-toy, or make the file readable"


def test_registry_of_a_record_of_installation_that_is_no_text_is_no_traceback(site):
    site.add("toy")
    (site.folder / "acme_toy-1.0.dist-info" / "direct_url.json").write_bytes(b"\xff\xfe")
    assert not site.record("backend", "toy").editable


def test_plugin_without_a_name_is_told_by_its_distribution(site):
    site.add("toy")
    entries = site.folder / "acme_toy-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[deepinfer.backends]\n =\n[deepinfer.manifest]\nacme-toy = acme_toy:deepinfer.toml\n")
    assert site.record("backend", "").state == "invalid"
    assert "(run: deepinfer doctor acme-toy)" in site.run("plugins").stdout


def test_entry_point_that_names_no_module_is_told_as_that(site):
    site.add("toy", manifest_entry=False)
    (site.folder / "acme_toy-1.0.dist-info" / "entry_points.txt").write_text("[deepinfer.backends]\ntoy =\n")
    assert site.record("backend", "toy").detail == "its entry point is '', which names no module"


def test_registry_of_installed_distributions_lists_the_first_party_plugins(site):
    registry = Registry.build(site.config())
    assert {"backend:cpu", "model:deepseek_v41", "sampler:canonical"} <= {record.key for record in registry}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"plugins__disable": ("toi",)},
            "plugins.disable (--no-plugin) names 'toi', which is no installed plugin; did you mean 'toy'?",
        ),
        ({"plugins__disable": ("zzzz",)}, "plugins.disable (--no-plugin) names 'zzzz', which is no installed plugin"),
        (
            {"plugins__allow": ("acme-toi",)},
            (
                "plugins.allow (DEEPINFER_PLUGINS) names 'acme-toi', which is no installed plugin; "
                "did you mean 'acme-toy'?"
            ),
        ),
        (
            {"plugins__prefer": {"backend:toi": "acme-toy"}},
            (
                "plugins.prefer (--prefer) backend:toi=acme-toy: 'backend:toi' is no installed plugin; "
                "did you mean 'backend:toy'?"
            ),
        ),
        (
            {"plugins__prefer": {"backend:toy": "nope"}},
            "plugins.prefer (--prefer) backend:toy=nope: 'nope' does not provide backend:toy; installed: acme-toy",
        ),
    ],
)
def test_setting_that_names_no_installed_plugin_is_told_with_the_nearest_name(site, capsys, settings, line):
    site.add("toy")
    site.registry(**settings)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"deepinfer: W_PLUGIN: {line}\n")


def test_settings_that_name_installed_plugins_are_not_remarked_on(site, capsys):
    site.add("toy")
    site.registry(plugins__disable=("toy", "backend:toy", "acme-toy"), plugins__prefer={"backend:toy": "acme-toy"},
                  plugins__allow=("acme-toy",))  # fmt: skip
    assert capsys.readouterr().err == ""


def test_registry_names_the_first_field_of_a_record_that_differs(site):
    """A plugin built for a record with two fields in the other order, as its manifest has every prefix hash."""
    from deepinfer_core.records import CONTRACTS

    ours = [f"{value:016x}" for value in CONTRACTS["SchedulerOutputs"].chain[1:6]]
    theirs = [*ours[:3], "0123456789abcdef", "fedcba9876543210"]
    for chains, state in ((ours, "found"), (theirs, "incompatible")):
        text = f'schema = 1\napi = ">=1.0,<2"\n[contracts.SchedulerOutputs]\nfields = 5\nchain = "{chains[-1]}"\n'
        text += f'chains = {chains}\n[[backend]]\nname = "toy"\n'.replace("'", '"')
        site.add("toy", manifest=text, dist=f"acme-{state}")
        [record] = [record for record in site.registry() if record.distribution == f"acme-{state}"]
        assert record.state == state, record.reason
    name, form = CONTRACTS["SchedulerOutputs"].fields[3]
    where = f"at field 3, {name}, which is {form} here"
    assert record.error.what == f"SchedulerOutputs of acme-incompatible 1.0 differs: {where}"
    assert record.error.details["field"] == name


@pytest.mark.parametrize("change", ["shorter", "another end", "no hash"])
def test_registry_refuses_prefix_hashes_that_do_not_fit(site, change):
    chains = {"shorter": ["0" * 16], "another end": ["0" * 16, "1" * 16], "no hash": ["zz", "2" * 16]}[change]
    text = f'schema = 1\napi = ">=1.0,<2"\n[contracts.Limits]\nfields = 2\nchain = "{"2" * 16}"\n'
    site.add("toy", manifest=text + f'chains = {chains}\n[[backend]]\nname = "toy"\n'.replace("'", '"'))
    assert site.record("backend", "toy").detail == (
        "deepinfer.toml: contracts.Limits: chains must be 2 times 16 hexadecimal digits, the last ones 2222222222222222"
    )


def test_registry_of_a_package_that_a_folder_hides_says_which_and_where_the_installed_one_is(
    site, tmp_path, monkeypatch
):
    site.add("toy")
    hiding = tmp_path / "sources" / "acme_toy"
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(hiding.parent)
    record = site.record("backend", "toy")
    assert record.state == "invalid"
    assert str(record.error) == (
        f"E_MANIFEST: backend toy (acme-toy 1.0) has an invalid description: deepinfer.toml is missing in {hiding}\n"
        f"  reason: {hiding} hides the installed acme-toy in {site.folder}\n"
        "  remedy: take that folder off the import path (PYTHONPATH, or the working directory)"
    )


def test_registry_of_an_editable_plugin_with_a_newer_manifest_says_to_install_it_again(site, tmp_path):
    home = site.add("toy")
    url = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    (site.folder / "acme_toy-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    with (home / "deepinfer.toml").open("a") as manifest:
        manifest.write('[[sampler]]\nname = "new"\nsummary = "came later"\n')
    assert str(site.record("backend", "toy").error) == (
        "E_MANIFEST: backend toy (acme-toy 1.0) has an invalid description: deepinfer.toml: sampler 'new' has no "
        "entry point in group deepinfer.samplers\n"
        "  reason: entry points are those of the day it was installed in place; its files are those of today\n"
        f"  remedy: install it again: pip install -e {tmp_path}"
    )
