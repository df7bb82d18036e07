"""``deepinfer new-plugin``: names, what is refused, what is written, and what a failure leaves behind: nothing."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from deepinfer_core import cli
from deepinfer_core.errors import InvalidParameter
from deepinfer_core.new_plugin import naming
from deepinfer_core.new_plugin.facts import Facts, api_range, read_facts, release_range
from deepinfer_core.new_plugin.naming import KINDS, Names, check_name
from deepinfer_core.new_plugin.rendering import render
from deepinfer_core.plugins.manifest import parse_manifest

pytest.importorskip("jinja2")  # the extra [new-plugin]

FACTS = Facts(api=">=1.0,<2", core=">=0.1,<0.2", required_ops=("gemm.dense", "norm.rms"))
LONGEST = "abcdefghijklmnopqrstuvwxyz_12345"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_plugin_prints_the_files_and_what_to_run_next(here, capsys):
    assert cli.main(["new-plugin", "sampler", "acme_one"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        "sampler acme_one in deepinfer-acme-one:\n"
        "  .gitignore\n"
        "  README.md\n"
        "  pyproject.toml\n"
        "  src/deepinfer_acme_one/__init__.py\n"
        "  src/deepinfer_acme_one/deepinfer.toml\n"
        "  src/deepinfer_acme_one/min_p.py\n"
        "  src/deepinfer_acme_one/plugin.py\n"
        "  src/deepinfer_acme_one/py.typed\n"
        "  tests/test_conformance.py\n"
        "  tests/test_min_p.py\n"
        "next:\n"
        "  cd deepinfer-acme-one\n"
        "  pip install -e '.[test]'\n"
        "  deepinfer plugins check .\n"
        "  deepinfer plugins acme_one\n"
        '  echo \'{"prompt": "import os", "sampler": "acme_one"}\' | deepinfer generate --format jsonl -\n'
        "  pytest\n"
    )
    assert captured.err == ""
    written = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    listed = captured.out.partition(":\n")[2].partition("next:")[0].split()
    assert written == {f"deepinfer-acme-one/{name}" for name in listed}
    assert [path.name for path in here.iterdir()] == ["deepinfer-acme-one"]


def test_new_plugin_as_json_in_another_folder_says_the_same(here, capsys):
    (here / "my plugins").mkdir()
    assert cli.main(["new-plugin", "--json", "logits-filter", "acme", "--dir", "my plugins"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["distribution"], data["package"]) == (
        "logits_filter",
        "deepinfer-acme",
        "deepinfer_acme",
    )
    assert data["folder"] == "my plugins/deepinfer-acme"
    assert data["next"][0] == "cd 'my plugins/deepinfer-acme'"
    assert all((here / data["folder"] / name).is_file() for name in data["files"])


def test_new_plugin_gives_its_files_the_usual_permissions(here):
    assert cli.main(["new-plugin", "sampler", "acme"]) == 0
    umask = os.umask(0o022)
    os.umask(umask)
    assert (here / "deepinfer-acme").stat().st_mode & 0o777 == 0o777 & ~umask
    assert (here / "deepinfer-acme" / "README.md").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Acme", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("1st", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("a-b", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("a/../b", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("acmé", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        (LONGEST + "6", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("acme_", "a distribution cannot be named after it: put single underscores between words"),
        ("ac__me", "a distribution cannot be named after it: put single underscores between words"),
        ("class", "it is a keyword of Python"),
        ("auto", "it is reserved"),
        ("cuda", "it is reserved"),
        ("my class", "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters"),
        ("core", "its distribution would be deepinfer-core, which is DeepInfer's own"),
        ("v41", "its distribution would be deepinfer-v41, which is DeepInfer's own"),
    ],
)
def test_check_name_refuses_it_and_says_why(name, reason):
    near = {"Acme": "acme", "a-b": "a_b", "a/../b": "a_b", "acme_": "acme", "ac__me": "ac_me", "my class": "my_class"}
    with pytest.raises(InvalidParameter) as caught:
        check_name("sampler", name)
    assert str(caught.value) == (
        f"E_PARAM: a new plugin cannot be named {name!r}\n"
        f"  reason: {reason}\n"
        f"  remedy: choose another name, such as {near.get(name, 'acme_one')}"
    )


def test_new_plugin_without_a_kind_names_the_kinds_on_one_line(capsys):
    kinds = "backend, model, sampler, logits-filter, grammar, scorer, extension"
    assert cli.main(["new-plugin"]) == 2
    assert capsys.readouterr().err == (
        "deepinfer: E_USAGE: missing argument '{backend|model|sampler|logits-filter|grammar|scorer|extension}'. "
        f"Choose from: {kinds}\n"
        "  reason: raised while reading: deepinfer new-plugin\n"
        "  remedy: run: deepinfer new-plugin --help\n"
    )


def test_check_name_refuses_the_name_of_a_command_for_an_extension():
    with pytest.raises(InvalidParameter) as caught:
        check_name("extension", "new_plugin", {"new-plugin"})
    assert caught.value.reason == "deepinfer has a command new-plugin"
    assert check_name("sampler", "new_plugin", {"new-plugin"}).name == "new_plugin"


def test_check_name_refuses_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "deepinfer_taken_one-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepinfer-taken-one\nVersion: 2.0\n")
    with pytest.raises(InvalidParameter) as caught:
        check_name("sampler", "taken_one")
    assert caught.value.reason == "deepinfer-taken-one 2.0 is installed here"
    (tmp_path / "deepinfer_lies_about").mkdir()
    with pytest.raises(InvalidParameter) as caught:
        check_name("sampler", "lies_about")
    assert caught.value.reason == f"the package deepinfer_lies_about is here already: {tmp_path}/deepinfer_lies_about"


def test_check_name_refuses_a_name_that_an_installed_plugin_has(tmp_path, monkeypatch):
    from deepinfer_core.plugins import discovery

    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deepinfer.samplers]\ntaken = acme.plugin\n")
    entries = tuple(entry for dist in metadata.distributions(path=[str(tmp_path)]) for entry in dist.entry_points)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: entries)
    with pytest.raises(InvalidParameter) as caught:
        check_name("sampler", "taken")
    assert caught.value.reason == "acme 1.0 has a sampler of that name"
    assert check_name("backend", "taken").distribution == "deepinfer-taken"


def test_new_plugin_of_an_unknown_kind_lists_the_kinds(here, capsys):
    assert cli.main(["new-plugin", "samplers", "acme"]) == 2
    assert "'backend', 'model', 'sampler', 'logits-filter', 'grammar', 'scorer', 'extension'" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("there", ["folder", "file", "broken link"])
def test_new_plugin_overwrites_nothing(here, capsys, there):
    target = here / "deepinfer-acme"
    if there == "folder":
        target.mkdir()
    elif there == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    assert cli.main(["new-plugin", "sampler", "acme"]) == 2
    assert capsys.readouterr().err == (
        "deepinfer: E_PARAM: deepinfer-acme is there already\n"
        "  reason: nothing is overwritten\n"
        "  remedy: choose another name, or another place with --dir\n"
    )
    assert os.listdir(here) == ["deepinfer-acme"]
    assert not target.is_dir() or os.listdir(target) == []


def test_new_plugin_into_a_folder_that_is_not_there_makes_none(here, capsys):
    assert cli.main(["new-plugin", "sampler", "acme", "--dir", "not/there"]) == 2
    assert capsys.readouterr().err == (
        "deepinfer: E_PARAM: --dir not/there does not exist\n"
        "  reason: deepinfer-acme would be made in it\n"
        "  remedy: give a folder, or make it first: mkdir -p not/there\n"
    )
    (here / "file").write_text("")
    assert cli.main(["new-plugin", "sampler", "acme", "--dir", "file"]) == 2
    assert "--dir file is no folder" in capsys.readouterr().err
    assert cli.main(["new-plugin", "sampler", "acme", "--dir", "a" * 300]) == 2
    assert "does not exist\n" in capsys.readouterr().err
    assert os.listdir(here) == ["file"]


@pytest.mark.parametrize("stopped_by", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_new_plugin_that_is_stopped_leaves_nothing_behind(here, capsys, monkeypatch, stopped_by):
    write_bytes, count = Path.write_bytes, []

    def fail_at_the_third(self, data):
        count.append(self)
        if len(count) == 3:
            raise stopped_by
        return write_bytes(self, data)

    monkeypatch.setattr(Path, "write_bytes", fail_at_the_third)
    status = cli.main(["new-plugin", "sampler", "acme"])
    err = capsys.readouterr().err
    assert os.listdir(here) == []
    if isinstance(stopped_by, OSError):
        assert status == 74
        assert err == (
            "deepinfer: E_OUTPUT: cannot write deepinfer-acme\n"
            "  reason: No space left on device\n"
            "  remedy: choose another place with --dir\n"
        )
    else:
        assert (status, err) == (130, "deepinfer: interrupted\n")


def test_new_plugin_without_jinja2_names_the_extra(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["new-plugin", "sampler", "acme"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("deepinfer: E_LIBRARY: new-plugin needs the package jinja2\n")
    assert err.endswith("  remedy: pip install 'deepinfer-core[new-plugin]'\n")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["a", LONGEST])
@pytest.mark.parametrize("kind", KINDS.values())
def test_render_gives_each_kind_valid_metadata(kind, name):
    names = Names(kind, name)
    files = {str(path): content for path, content in render(names, FACTS).items()}
    project = tomllib.loads(files["pyproject.toml"].decode())["project"]
    assert project["name"] == names.distribution
    assert "license" not in project
    assert project["entry-points"][f"deepinfer.{kind}s"] == {name: f"{names.package}.plugin"}
    assert project["entry-points"]["deepinfer.manifest"] == {names.distribution: f"{names.package}:deepinfer.toml"}
    assert "deepinfer-core>=0.1,<0.2" in project["dependencies"]
    path = f"src/{names.package}/deepinfer.toml"
    manifest = parse_manifest(files[path], Path(path))
    assert manifest.api == ">=1.0,<2"
    assert list(manifest.tables) == [(kind, name)]
    for path, content in files.items():
        assert path.isprintable()
        if path.endswith(".py"):
            compile(content, path, "exec")
    assert not [path for path, content in files.items() if b"{{" in content or b"{%" in content]


def test_render_lists_the_ops_that_a_new_backend_delegates():
    files = render(Names("backend", "acme"), FACTS)
    source = next(content for path, content in files.items() if path.name == "backend.py").decode()
    assert 'DELEGATED = (\n    "gemm.dense",\n)\n' in source


def test_a_new_backend_claims_what_cpu_claims():
    files = render(Names("backend", "acme"), FACTS)
    text = next(content for path, content in files.items() if path.name == "deepinfer.toml")
    claims = parse_manifest(text, Path("deepinfer.toml")).tables["backend", "acme"].claims
    record = naming.Registry.build(naming.EngineConfig()).find("backend", "cpu")
    if record is None:
        pytest.skip("deepinfer-cpu is not installed")
    assert claims == record.table.claims


def test_ranges_reach_up_to_the_next_version_that_may_break():
    assert (api_range(0, 3), api_range(1, 0), api_range(2, 7)) == (">=0.3,<0.4", ">=1.0,<2", ">=2.7,<3")
    assert (release_range("0.1.0"), release_range("1.4.2rc1")) == (">=0.1,<0.2", ">=1.4,<2")


def test_facts_name_required_ops_for_a_backend_only():
    assert "gemm.dense" in read_facts("backend").required_ops
    assert read_facts("sampler").required_ops == ()
