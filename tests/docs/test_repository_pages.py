"""What the pages at the root say of the repository is so: sessions, links, names of fragments."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
TABLE = re.findall(r"^\| `(\w+)` \| (.+?) \| (yes|no) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
TYPES = {
    kind["directory"] for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
}


def sessions():
    """The names of all sessions of the noxfile."""
    for node in NOXFILE.body:
        decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
        if any(decorator.partition("(")[0] == "nox.session" for decorator in decorators):
            yield node.name


def gate():
    """The names of the sessions of the gate, without their Pythons and parameters."""
    for node in NOXFILE.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GATE":
            return {re.split(r"[-(]", name)[0] for name in ast.literal_eval(node.value)}
    raise AssertionError("noxfile.py has no GATE")


def anchors(page):
    """The anchors of a page's headings, as the repository's browser makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_session_has_a_row_and_every_row_a_session():
    assert sorted(name for name, _, _ in TABLE) == sorted(sessions())


def test_rows_say_what_is_in_the_gate():
    assert {name for name, _, is_in in TABLE if is_in == "yes"} == gate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_fragments_have_names_that_the_changelog_takes():
    for fragment in (ROOT / "changes").glob("*.md"):
        topic, kind = fragment.name.removesuffix(".md").split(".")
        assert re.fullmatch(r"[a-z0-9-]+", topic), fragment.name
        assert kind in TYPES, fragment.name
        assert fragment.read_text("utf-8").strip(), fragment.name


def test_reference_has_every_command_of_our_plugins():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    declared = []
    for manifest in sorted(ROOT.glob("plugins/*/src/*/deepinfer.toml")):
        for tables in tomllib.loads(manifest.read_text("utf-8")).values():
            if isinstance(tables, list):
                declared += [command["name"] for table in tables for command in table.get("commands", ())]
    assert declared
    assert [name for name in declared if f"\n## deepinfer {name}\n" not in page] == []
