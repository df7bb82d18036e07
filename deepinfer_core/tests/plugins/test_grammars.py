"""Grammar engines as a kind of plugin: manifest, ownership, choice, and what comes back from the hook."""

from __future__ import annotations

import json

import pytest

from deepinfer_core.errors import DeepInferError, HookReturnError, NotSupported, PluginConflict
from deepinfer_core.interfaces import Grammar, GrammarEngine, Matcher
from deepinfer_core.plugins.grammars import choose_grammar_engine
from deepinfer_core.plugins.hooks import Hooks

TINY = """
from deepinfer_core import hookimpl
from tiny_grammar import TinyEngine

@hookimpl
def deepinfer_grammar_create(name, tokenizer, vocab_size):
    engine = TinyEngine(tokenizer, vocab_size)
    engine.made_by = __name__
    return engine
"""


def test_grammar_engine_that_alone_is_installed_is_chosen_and_made(site, tokenizer):
    site.add("tiny", TINY, kind="grammar")
    manager = site.manager()
    owner = choose_grammar_engine(manager)
    engine = Hooks(manager).grammar_create(owner, tokenizer, 400)
    assert (owner.name, owner.state, engine.vocab_size) == ("tiny", "loaded", 400)
    assert isinstance(engine, GrammarEngine)
    grammar = engine.compile({"schema_type": "regex", "schema": "ab"})
    assert isinstance(grammar, Grammar)
    assert isinstance(grammar.matcher(), Matcher)


def test_grammar_engine_is_not_imported_to_be_listed(site):
    home = site.add("tiny", "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n", kind="grammar")
    done = site.run("plugins", "--json")
    listed = [row for row in json.loads(done.stdout)["plugins"] if row["kind"] == "grammar"]
    assert [row["name"] for row in listed if row["distribution"] == "acme-tiny"] == ["tiny"]
    assert not (home / "imported").exists()


def test_no_grammar_engine_names_what_to_install(site):
    with pytest.raises(NotSupported) as caught:
        choose_grammar_engine(site.manager())
    assert str(caught.value) == (
        "E_UNSUPPORTED: structured output needs a grammar engine, and none can be used here\n"
        "  reason: no plugin provides one\n"
        "  remedy: in a clone: pip install --no-deps -r requirements-xgrammar.txt; "
        "elsewhere: pip install 'deepinfer-samplers[xgrammar]' (with triton, 1 GB)"
    )


def test_grammar_engine_whose_package_is_missing_is_left_out_of_auto(site):
    site.add("tiny", TINY, kind="grammar", table='requires = { modules = ["no_such_library"] }')
    with pytest.raises(NotSupported) as caught:
        choose_grammar_engine(site.manager())
    assert caught.value.reason == "tiny (acme-tiny 1.0): needs the Python package no_such_library"


def test_disabled_grammar_engine_is_named_in_the_refusal(site):
    site.add("tiny", TINY, kind="grammar")
    with pytest.raises(NotSupported) as caught:
        choose_grammar_engine(site.manager(plugins__disable=("tiny",)))
    assert caught.value.reason == "tiny (acme-tiny 1.0): named in plugins.disable (--no-plugin)"


def test_two_grammar_engines_are_not_chosen_between(site):
    site.add("tiny", TINY, kind="grammar")
    site.add("other", TINY, kind="grammar")
    with pytest.raises(PluginConflict) as caught:
        choose_grammar_engine(site.manager())
    assert str(caught.value) == (
        "E_PLUGIN_CONFLICT: 2 grammar engines are installed: other (acme-other 1.0), tiny (acme-tiny 1.0)\n"
        "  reason: none of them is preferred, and the order of installation does not decide\n"
        "  remedy: choose one with --grammar-engine other"
    )


def test_first_party_grammar_engine_goes_before_others(site):
    site.add("aaa", TINY, kind="grammar")
    site.add("xgrammar", TINY, kind="grammar", dist="deepinfer-samplers")
    assert choose_grammar_engine(site.manager()).name == "xgrammar"


def test_named_grammar_engine_is_taken_whatever_else_is_installed(site):
    site.add("aaa", TINY, kind="grammar")
    site.add("xgrammar", TINY, kind="grammar", dist="deepinfer-samplers")
    assert choose_grammar_engine(site.manager(grammar_engine="aaa")).name == "aaa"


def test_named_grammar_engine_that_is_missing_lists_the_installed_ones(site):
    site.add("tiny", TINY, kind="grammar")
    with pytest.raises(DeepInferError) as caught:
        choose_grammar_engine(site.manager(grammar_engine="tony"))
    assert str(caught.value) == (
        "E_PLUGIN_MISSING: no grammar named 'tony'; did you mean 'tiny'?\n"
        "  reason: installed grammars: tiny\n"
        "  remedy: choose one of these, or pip install the plugin that provides 'tony'"
    )


def test_grammar_plugin_without_its_hook_is_refused(site):
    site.add("tiny", "from deepinfer_core import hookimpl\n", kind="grammar")
    with pytest.raises(DeepInferError, match="does not implement deepinfer_grammar_create"):
        choose_grammar_engine(site.manager())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}", "deepinfer_grammar_create of tiny returned dict, expected a GrammarEngine (it lacks compile)"),
        ("return None", "deepinfer_grammar_create of tiny returned None, expected a GrammarEngine"),
    ],
)
def test_grammar_create_with_a_wrong_result_is_refused(site, tokenizer, body, message):
    source = f"from deepinfer_core import hookimpl\n@hookimpl\ndef deepinfer_grammar_create(name):\n    {body}\n"
    site.add("tiny", source, kind="grammar")
    manager = site.manager()
    with pytest.raises(HookReturnError) as caught:
        Hooks(manager).grammar_create(choose_grammar_engine(manager), tokenizer, 300)
    assert caught.value.what == message


def test_grammar_create_is_asked_of_the_owner_only(site, tokenizer):
    for name in ("aa", "bb"):
        site.add(name, TINY, kind="grammar")
    manager = site.manager()
    for name in ("aa", "bb", "aa"):
        engine = Hooks(manager).grammar_create(manager.require("grammar", name), tokenizer, 300)
        assert engine.made_by == f"acme_{name}.plugin"
