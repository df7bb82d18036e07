"""The page about the scheduler says what is so: its example prints what stands below it, and all it names is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import deepinfer_contracts
import deepinfer_core.config
import deepinfer_native

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "scheduler.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", PAGE, re.M | re.S)
RULES = [line for line in PAGE.splitlines() if line.startswith("| ") and "::" in line]
TESTS = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))


def owners(name):
    """Every object of that name that the page may mean."""
    modules = deepinfer_contracts, deepinfer_native, deepinfer_core.config
    return [getattr(m, name) for m in modules if hasattr(m, name)]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_prints_what_the_page_shows(number):
    program, shown = EXAMPLES[number]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_page_has_examples_and_rules():
    assert len(EXAMPLES) >= 1
    assert len(RULES) >= 15


def test_every_rule_names_what_carries_it_and_a_test():
    for line in RULES:
        rule, carried, failing = (part.strip() for part in line.strip("|").split("|"))
        assert rule
        assert "`" in carried, rule
        assert "::" in failing, rule


@pytest.mark.parametrize(("file", "name"), TESTS, ids=lambda value: value)
def test_named_test_exists(file, name):
    found = [p for p in ROOT.glob(f"**/tests/**/{file}") if ".nox" not in p.parts]
    assert any(re.search(rf"^def {name}\(", p.read_text(encoding="utf-8"), re.M) for p in found), f"{file}::{name}"


@pytest.mark.parametrize("mention", sorted(set(re.findall(r"`([A-Z]\w+\.[A-Za-z]\w*)`", PAGE))))
def test_named_field_or_member_exists(mention):
    owner, member = mention.split(".")
    if owner == "Engine":
        from deepinfer_core.engine import Engine

        assert hasattr(Engine, member)
        return
    assert owners(owner), f"nothing is called {owner}"
    assert any(hasattr(o, member) or member in getattr(o, "FIELDS", ()) for o in owners(owner)), mention


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / "explanation" / target).exists(), target
