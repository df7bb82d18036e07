"""A hook has a user among the first-party plugins and a test of the conformance kit, or it is no hook."""

import importlib.util
import sys
from pathlib import Path

import pytest

from deepinfer_core import hookspecs

SCRIPT = Path(__file__).parents[2] / "docs" / "generators" / "hook_users.py"
spec = importlib.util.spec_from_file_location("docs_hook_users", SCRIPT)
hook_users = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = hook_users
spec.loader.exec_module(hook_users)

USERS, TESTS = hook_users.first_party_users(), hook_users.conformance_tests()
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("deepinfer_"))


def test_every_hook_has_a_first_party_user_and_a_conformance_test():
    assert len(HOOKS) >= 11
    assert hook_users.faults(HOOKS, USERS, TESTS) == []


def test_hooks_are_judged_where_the_kit_looks_for_the_plugins_that_have_them():
    """A run of the kit has the tests of one kind and those in ``common``: a marker elsewhere would say nothing."""
    kinds = {name.split("_", 1)[1].rpartition("_")[0]: name for name in HOOKS if name.endswith("_create")}
    for kind, hook in kinds.items():
        assert {path.partition("/")[0] for path in TESTS[hook]} == {kind}
    for hook in ("deepinfer_cli_commands", "deepinfer_doctor_checks"):
        assert {path.partition("/")[0] for path in TESTS[hook]} == {"common"}


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_without_its_user_or_its_test_is_a_fault(hook):
    users = {name: who for name, who in USERS.items() if name != hook}
    tests = {name: files for name, files in TESTS.items() if name != hook}
    assert hook_users.faults(HOOKS, users, tests) == [
        f"{hook} has no first-party user",
        f"{hook} has no conformance test with the marker hook('{hook}')",
    ]


def test_name_that_is_no_hook_is_a_fault_wherever_it_stands(tmp_path):
    module = tmp_path / "acme_toy" / "src" / "acme_toy" / "plugin.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import deepinfer_core\nfrom deepinfer_core import hookimpl\n\n"
        "@hookimpl(tryfirst=True)\ndef deepinfer_one(): pass\n\n@deepinfer_core.hookimpl\ndef deepinfer_two(): pass\n\n"
        "def deepinfer_no_hook(): pass\n"
    )
    test = tmp_path / "kit" / "backend" / "test_a.py"
    test.parent.mkdir(parents=True)
    test.write_text(
        "import pytest\npytestmark = [pytest.mark.level('core'), pytest.mark.hook('deepinfer_one', 'deepinfer_two')]\n"
        "@pytest.mark.hook('deepinfer_three')\ndef test_it(): pass\n"
    )
    users, tests = hook_users.first_party_users(tmp_path), hook_users.conformance_tests(tmp_path / "kit")
    assert users == {"deepinfer_one": ["acme-toy"], "deepinfer_two": ["acme-toy"]}
    assert hook_users.faults(["deepinfer_one"], users, tests) == [
        "acme-toy implements deepinfer_two, which is no hook",
        "backend/test_a.py judges deepinfer_three, which is no hook",
        "backend/test_a.py judges deepinfer_two, which is no hook",
    ]
