"""``deepinfer plugins check``: source trees, wheels and installed distributions, good and bad."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from deepinfer_core import cli
from deepinfer_core.plugins.check.packing import matches

HATCHLING = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
SETUPTOOLS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
PROJECT = """
[project]
name = "acme-toy"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["deepinfer-core>=0.1,<0.2", "deepinfer-cpu>=0.1,<0.2"]
[project.entry-points."deepinfer.manifest"]
acme-toy = "acme_toy:deepinfer.toml"
[project.entry-points."deepinfer.backends"]
toy = "acme_toy.plugin"
"""
MANIFEST = 'schema = 1\napi = ">=1.0,<2"\n[[backend]]\nname = "toy"\nsummary = "A toy"\n'
PLUGIN = (
    "from deepinfer_core import hookimpl\n"
    "raise SystemExit('imported')\n"
    "@hookimpl\n"
    "def deepinfer_backend_create(name, config): return None\n"
)


class Tree:
    """A source tree with one plugin, and the files that a test changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pyproject.toml", HATCHLING + PROJECT)
        self.write("src/acme_toy/__init__.py", "")
        self.write("src/acme_toy/plugin.py", PLUGIN)
        self.write("src/acme_toy/deepinfer.toml", MANIFEST)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def change(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        if old not in text:
            raise LookupError(f"{old!r} is not in {path}")
        self.write(path, text.replace(old, new, 1))

    def check(self, capsys, status: int, path: Path | None = None) -> list[str]:
        """Run the command; the notes that are not ok, as ``status check: detail``."""
        assert cli.main(["plugins", "check", str(path or self.folder), "--json"]) == status
        notes = json.loads(capsys.readouterr().out)["notes"]
        return [f"{note['status']} {note['check']}: {note['detail']}" for note in notes if note["status"] != "ok"]

    def wheel(self, *, without: str = "") -> Path:
        """A wheel as a build would make it, but for files that end with ``without``."""
        path = self.folder / "acme_toy-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted((self.folder / "src").rglob("*")):
                if file.is_file() and not (without and file.name.endswith(without)):
                    archive.write(file, file.relative_to(self.folder / "src").as_posix())
            info = "acme_toy-0.1.0.dist-info/"
            archive.writestr(
                info + "METADATA",
                "Metadata-Version: 2.1\nName: acme-toy\nVersion: 0.1.0\nRequires-Python: >=3.11\n"
                "Requires-Dist: deepinfer-core<0.2,>=0.1\nRequires-Dist: deepinfer-cpu<0.2,>=0.1\n",
            )
            archive.writestr(
                info + "entry_points.txt",
                "[deepinfer.manifest]\nacme-toy = acme_toy:deepinfer.toml\n"
                "[deepinfer.backends]\ntoy = acme_toy.plugin\n",
            )
        return path


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "toy")


def test_check_of_a_good_source_tree_prints_what_it_looked_at(tree, capsys):
    assert cli.main(["plugins", "check", str(tree.folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    digest = out[3].rpartition(" ")[2]
    assert out == [
        f"acme-toy 0.1.0 (source tree {tree.folder})",
        "  ok       dependencies   deepinfer-core<0.2,>=0.1",
        "  ok       entry points   backend toy",
        f"  ok       manifest       acme_toy/deepinfer.toml, SHA-256 {digest}",
        "  ok       packing        hatchling takes all files of acme_toy, src/acme_toy/deepinfer.toml with them",
        "  ok       api            >=1.0,<2 takes 1.0",
        "  ok       code           acme_toy.plugin: deepinfer_backend_create",
        (
            "  ok       import budget  acme_toy.plugin imports no heavy library; the 150 ms are measured by "
            "the conformance kit"
        ),
        "0 problems, 0 warnings. Nothing was imported.",
    ]


def test_check_tells_every_problem_at_once_with_its_remedy(tree, capsys):
    tree.change("pyproject.toml", '"deepinfer-core>=0.1,<0.2", ', "")
    tree.change("pyproject.toml", "\ntoy = ", "\ncuda = ")
    tree.change("src/acme_toy/deepinfer.toml", 'summary = "A toy"', 'sumary = "x"\nclaims = ["feature:grahps"]')
    tree.change("src/acme_toy/plugin.py", "(name, config)", "(nam)")
    assert cli.main(["plugins", "check", str(tree.folder)]) == 1
    out = capsys.readouterr().out
    assert [line.strip() for line in out.splitlines() if "PROBLEM" in line or "remedy" in line] == [
        "PROBLEM  dependencies   deepinfer-core is no dependency, so pip cannot see that a release of it does not fit",
        'remedy: add "deepinfer-core>=0.1,<0.2" to dependencies',
        "PROBLEM  entry points   backend 'cuda': the name 'cuda' is reserved for deepinfer-cuda",
        "remedy: choose another name, or install deepinfer-cuda",
        "PROBLEM  manifest       deepinfer.toml: backend 'toy': unknown key 'sumary'; did you mean 'summary'?",
        "remedy: the reference page of deepinfer.toml has every key",
        (
            "PROBLEM  manifest       deepinfer.toml: backend 'toy': unknown claim 'feature:grahps'; did you mean "
            "'feature:graphs'?"
        ),
        "remedy: the reference page of deepinfer.toml has every key",
        "PROBLEM  tables         backend 'toy' has no entry point in group deepinfer.backends",
        "remedy: add the entry point, or remove the table",
        "PROBLEM  tables         entry point 'cuda' has no table [[backend]]",
        'remedy: add [[backend]] with name = "cuda"',
        'remedy: add summary = "..."',
        (
            "PROBLEM  code           acme_toy/plugin.py:4: deepinfer_backend_create has no argument 'nam'; did you "
            "mean 'name'?"
        ),
    ]
    assert out.endswith("7 problems, 1 warning. Nothing was imported.\n")


OPS_IMPORT_TORCH = "problem import budget: acme_toy/ops.py:2 imports torch when the plugin is loaded"
PYPROJECT, TOML, CODE = "pyproject.toml", "src/acme_toy/deepinfer.toml", "src/acme_toy/plugin.py"


@pytest.mark.parametrize(
    ("file", "old", "new", "note"),
    [
        (PYPROJECT, 'version = "0.1.0"\n', "", "problem project: the distribution has no version"),
        (
            PYPROJECT,
            "[project.entry-points",
            '[project.scripts]\ndeepinfer = "acme_toy:main"\n[project.entry-points',
            "problem project: it publishes the command deepinfer, which is that of deepinfer-core",
        ),
        (
            PYPROJECT,
            'requires-python = ">=3.11"\n',
            "",
            "warning project: requires-python is missing, and deepinfer-core needs 3.11",
        ),
        (
            PYPROJECT,
            "deepinfer-core>=0.1,<0.2",
            "deepinfer-core>=0.1",
            (
                "warning dependencies: deepinfer-core>=0.1 has no upper bound, and the plugin API may change with a "
                "release"
            ),
        ),
        (
            PYPROJECT,
            ', "deepinfer-cpu>=0.1,<0.2"',
            "",
            (
                "warning dependencies: a backend gets the ops that it leaves out from deepinfer-cpu, which is no "
                "dependency"
            ),
        ),
        (
            PYPROJECT,
            '"deepinfer.backends"',
            '"deepinfer.backend"',
            "problem entry points: group 'deepinfer.backend' is read by nobody; did you mean 'deepinfer.backends'?",
        ),
        (
            PYPROJECT,
            "\ntoy = ",
            "\nToy = ",
            (
                "problem entry points: backend 'Toy': the name 'Toy' is not of the form [a-z][a-z0-9_]*, at most 32 "
                "characters"
            ),
        ),
        (
            PYPROJECT,
            '[project.entry-points."deepinfer.manifest"]\nacme-toy = "acme_toy:deepinfer.toml"\n',
            "",
            "problem manifest: no entry point in group deepinfer.manifest, where there must be one",
        ),
        (
            PYPROJECT,
            "acme_toy:deepinfer.toml",
            "acme_toy.data:deepinfer.toml",
            "problem manifest: the manifest is in 'acme_toy.data'; it must be in a top-level package",
        ),
        (
            PYPROJECT,
            'acme-toy = "acme_toy:deepinfer.toml"',
            'other = "acme_toy:deepinfer.toml"',
            "warning manifest: its entry point is called 'other', and the distribution 'acme-toy'",
        ),
        (
            PYPROJECT,
            "acme_toy:deepinfer.toml",
            "acme_toy:plugin.toml",
            "problem manifest: there is no acme_toy/plugin.toml in the source tree",
        ),
        (PYPROJECT, "acme_toy.plugin", "acme_toy.plugins", "problem code: there is no module acme_toy.plugins"),
        (
            TOML,
            '"A toy"',
            '"A toy"\ncommands = [{ name = "doctor", summary = "x" }]',
            ("problem tables: command 'doctor' of toy is one of the core's, and runs under its long name only"),
        ),
        (
            TOML,
            '"A toy"',
            '"A toy"\ncommands = [{ name = "bench", summary = "x" }]',
            ("problem code: acme_toy.plugin has no deepinfer_cli_commands, and its manifest declares commands"),
        ),
        (TOML, ">=1.0,<2", ">=0.4,<1", "problem api: >=0.4,<1 does not take 1.0, the plugin API of this core"),
        (TOML, ">=1.0,<2", "one", "problem api: 'one' is no version range"),
        (
            TOML,
            ">=1.0,<2",
            ">=1.0",
            "warning api: >=1.0 has no upper bound, so a core that removed a hook would still load it",
        ),
        (
            TOML,
            "[[backend]]",
            '[contracts.SchedulerOutput]\nfields = 3\nchain = "9f31c05be2a4d7f0"\n[[backend]]',
            (
                "problem contracts: SchedulerOutput: there is no record of that name here (there are EventBatch, "
                "InputMetadata, InputMetadataV41, SamplerInputs, SamplerOutput, SchedulerOutputs)"
            ),
        ),
        (
            CODE,
            "deepinfer_backend_create",
            "deepinfer_backend_creates",
            (
                "problem code: acme_toy/plugin.py:4: unknown hook 'deepinfer_backend_creates'; did you mean "
                "'deepinfer_backend_create'?"
            ),
        ),
        (
            CODE,
            "@hookimpl\n",
            "",
            "problem code: acme_toy.plugin has no deepinfer_backend_create, which a backend plugin needs",
        ),
        (CODE, "@hookimpl", "def", "problem code: acme_toy/plugin.py:3 is no Python: invalid syntax"),
        (
            CODE,
            "raise SystemExit('imported')",
            f"x = {'-' * 200_000}1",
            "problem code: acme_toy/plugin.py is no Python: it is nested too deeply",
        ),
        (
            CODE,
            "raise SystemExit('imported')",
            "try:\n    import torch.nn\nfinally:\n    pass",
            "problem import budget: acme_toy/plugin.py:3 imports torch when the plugin is loaded",
        ),
        (CODE, "raise SystemExit('imported')", "from . import ops", OPS_IMPORT_TORCH),
        (CODE, "raise SystemExit('imported')", "import acme_toy.ops", OPS_IMPORT_TORCH),
    ],
)
def test_check_of_a_bad_source_tree_finds_it(tree, capsys, file, old, new, note):
    tree.write("src/acme_toy/ops.py", "import math\nfrom torch import nn\n")
    tree.change(file, old, new)
    assert note in tree.check(capsys, 1 if note.startswith("problem") else 0)


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "def f():\n    import torch\n",
        "from acme_toy import hooks\n",
    ],
)
def test_check_takes_no_import_of_a_function_or_a_type_checker_for_one_of_the_module(tree, capsys, source):
    tree.write("src/acme_toy/hooks.py", "")
    tree.change("src/acme_toy/plugin.py", "raise SystemExit('imported')\n", source)
    assert tree.check(capsys, 0) == []


def test_check_knows_hooks_that_a_module_takes_from_another(tree, capsys):
    tree.write("src/acme_toy/plugin.py", "from acme_toy.hooks import deepinfer_backend_create\n")
    tree.write("src/acme_toy/hooks.py", PLUGIN)
    assert tree.check(capsys, 0) == []


@pytest.mark.parametrize(
    ("settings", "ignore", "note"),
    [
        (HATCHLING + '[tool.hatch.build.targets.wheel]\npackages = ["src/acme_toy"]\n', "", ""),
        (
            HATCHLING + '[tool.hatch.build.targets.wheel]\npackages = ["src/other"]\n',
            "",
            "packages of hatchling are src/other, and acme_toy is not one",
        ),
        (
            HATCHLING + '[tool.hatch.build.targets.wheel]\ninclude = ["src/**/*.py"]\n',
            "",
            "include of hatchling leaves src/acme_toy/deepinfer.toml out: src/**/*.py",
        ),
        (
            HATCHLING + '[tool.hatch.build]\nexclude = ["*.toml"]\n',
            "",
            "exclude of hatchling leaves src/acme_toy/deepinfer.toml out: *.toml",
        ),
        (HATCHLING, "*.toml\n", ".gitignore has '*.toml', so hatchling leaves src/acme_toy/deepinfer.toml out"),
        (HATCHLING, "*.toml\n!deepinfer.toml\n", ""),
        (SETUPTOOLS, "", "setuptools leaves out files that are no Python, and with them src/acme_toy/deepinfer.toml"),
        ("", "", "setuptools leaves out files that are no Python, and with them src/acme_toy/deepinfer.toml"),
        (SETUPTOOLS + '[tool.setuptools.package-data]\nacme_toy = ["*.toml"]\n', "", ""),
        (SETUPTOOLS + '[tool.setuptools.package-data]\n"*" = ["deepinfer.toml"]\n', "", ""),
    ],
)
def test_check_says_whether_the_build_takes_the_manifest_along(tree, capsys, settings, ignore, note):
    tree.write("pyproject.toml", settings + PROJECT)
    if ignore:
        tree.write(".gitignore", ignore)
    assert tree.check(capsys, 1 if note else 0) == ([f"problem packing: {note}"] if note else [])


@pytest.mark.parametrize(
    "line",
    ["include src/acme_toy/*.toml", "graft src/acme_toy", "recursive-include src *.toml", "global-include *.toml"],
)
def test_check_reads_manifest_in_for_setuptools(tree, capsys, line):
    tree.write("pyproject.toml", SETUPTOOLS + PROJECT)
    tree.write("MANIFEST.in", line + "\n")
    assert tree.check(capsys, 0) == []


def test_check_of_an_unknown_build_backend_says_what_it_cannot_tell(tree, capsys):
    tree.write("pyproject.toml", '[build-system]\nbuild-backend = "mesonpy"\n' + PROJECT)
    assert tree.check(capsys, 0) == [
        "warning packing: mesonpy is not known here, so it cannot be told whether it takes src/acme_toy/deepinfer.toml"
    ]


@pytest.mark.parametrize("pattern", ["*.toml", "src/", "acme_toy", "/src/acme_toy/deepinfer.toml", "src/**/*.toml"])
def test_pattern_of_gitignore_takes_the_file(pattern):
    assert matches(pattern, "src/acme_toy/deepinfer.toml")


@pytest.mark.parametrize("pattern", ["*.py", "deepinfer.toml/", "/deepinfer.toml", "toml", "acme_toy/*.toml"])
def test_pattern_of_gitignore_leaves_the_file(pattern):
    assert not matches(pattern, "src/acme_toy/deepinfer.toml")


def test_check_of_a_wheel_looks_inside(tree, capsys):
    assert tree.check(capsys, 0, tree.wheel()) == []
    assert tree.check(capsys, 1, tree.wheel(without=".toml")) == [
        "problem manifest: there is no acme_toy/deepinfer.toml in the wheel"
    ]
    assert tree.check(capsys, 1, tree.wheel(without="plugin.py")) == [
        "problem code: there is no module acme_toy.plugin"
    ]


def test_check_of_an_installed_distribution_reads_its_folder(site, tree, capsys):
    site.add("toy", PLUGIN)
    notes = tree.check(capsys, 1, site.folder / "acme_toy-1.0.dist-info")
    assert notes == [
        "warning project: requires-python is missing, and deepinfer-core needs 3.11",
        "problem dependencies: deepinfer-core is no dependency, so pip cannot see that a release of it does not fit",
        "warning dependencies: a backend gets the ops that it leaves out from deepinfer-cpu, which is no dependency",
    ]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "there is no pyproject.toml in it"),
        (lambda path: path.write_text("x"), "it is a file of another kind"),
    ],
)
def test_check_of_something_else_is_a_usage_error(tmp_path, capsys, make, reason):
    path = tmp_path / "thing"
    make(path)
    assert cli.main(["plugins", "check", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"deepinfer: E_INPUT: {path} is no plugin\n"
        f"  reason: {reason}\n"
        "  remedy: give a folder with pyproject.toml, a wheel (.whl), or the .dist-info folder of an installed one\n"
    )


def test_check_of_a_path_that_cannot_be_looked_at_is_a_usage_error(capsys):
    assert cli.main(["plugins", "check", "a" * 300]) == 2  # as below a folder that may not be entered
    assert "is no plugin\n  reason: no such file or folder\n" in capsys.readouterr().err


def test_check_of_a_file_that_is_no_zip_is_a_usage_error(tmp_path, capsys):
    path = tmp_path / "toy-1.0-py3-none-any.whl"
    path.write_text("no zip")
    assert cli.main(["plugins", "check", str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  reason: BadZipFile: File is not a zip file"


@pytest.mark.parametrize(
    "name",
    [
        "deepinfer_ascend",
        "deepinfer_cpu",
        "deepinfer_cuda",
        "deepinfer_bench",
        "deepinfer_samplers",
        "deepinfer_v41",
        "deepinfer_verify",
    ],
)
def test_first_party_plugins_pass_the_check(capsys, name):
    folder = Path(__file__).parents[3] / "plugins" / name
    assert Tree.check(None, capsys, 0, folder) == []
