"""Row samplers and logits filters that requests name: found, made once, refused before work starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deepinfer_core.assembly.assemble import Assembly
from deepinfer_core.errors import DeepInferError, HookReturnError, NotSupported, PluginError, PluginMissing
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.requests.request_parts import MAX_MADE, NamedPart, PartsMaker

ROW_SAMPLER = """
from deepinfer_core import hookimpl
class Best:
    def __init__(self, params):
        if params.get("bad"):
            raise ValueError("bad must not be set")
        self.params = params
    def sample(self, logits, draws):
        return [int(row.argmax()) for row in logits]
@hookimpl
def deepinfer_sampler_create(name, params):
    return Best(params)
"""
WHOLE_STEP = ROW_SAMPLER.replace("logits, draws", "logits, inputs")
FILTER = """
from deepinfer_core import hookimpl
class Halve:
    def apply(self, logits, positions):
        return logits / 2
@hookimpl
def deepinfer_logits_filter_create(name, params, vocab_size):
    halve = Halve(); halve.made_with = (name, dict(params), vocab_size); return halve
"""


def assembly_of(site) -> Assembly:
    manager = site.manager()
    stub = SimpleNamespace()
    return Assembly(manager.config, manager, stub, stub, stub, stub, stub, (), stub)


def test_logits_filter_is_found_by_its_group_and_made_with_its_parameters(site):
    site.add("halve", FILTER, kind="logits_filter")
    made = assembly_of(site).make_logits_filter("halve", {"by": 2}, 300)
    assert made.made_with == ("halve", {"by": 2}, 300)


def test_unknown_logits_filter_is_refused_with_the_installed_names(site):
    site.add("halve", FILTER, kind="logits_filter")
    with pytest.raises(PluginMissing) as caught:
        assembly_of(site).make_logits_filter("halv", {}, 300)
    assert caught.value.what == "no logits_filter named 'halv'; did you mean 'halve'?"


def test_logits_filter_without_its_hook_is_refused(site):
    site.add("halve", "x = 1\n", kind="logits_filter")
    with pytest.raises(PluginError, match="deepinfer_logits_filter_create"):
        assembly_of(site).make_logits_filter("halve", {}, 300)


def test_logits_filter_that_is_none_is_refused(site):
    site.add("halve", FILTER.replace("def apply", "def change"), kind="logits_filter")
    with pytest.raises(HookReturnError) as caught:
        assembly_of(site).make_logits_filter("halve", {}, 300)
    assert "returned Halve, expected a LogitsFilter (it lacks apply)" in caught.value.what


def test_row_sampler_of_a_request_is_made_by_the_sampler_hook(site):
    site.add("best", ROW_SAMPLER, kind="sampler")
    assembly = assembly_of(site)
    assert assembly.make_row_sampler("best", {"k": 1}, 300).params == {"k": 1}
    assert assembly.owners == {}  # the engine's own sampler is another one


def test_row_sampler_that_refuses_its_parameters_is_an_error_with_its_text(site):
    site.add("best", ROW_SAMPLER, kind="sampler")
    with pytest.raises(PluginError, match=r"sampler best \(acme-best 1.0\) failed in create: ValueError: bad must not"):
        assembly_of(site).make_row_sampler("best", {"bad": 1}, 300)


def test_row_sampler_and_sampler_of_steps_are_not_taken_for_each_other(site):
    site.add("best", ROW_SAMPLER, kind="sampler")
    site.add("whole", WHOLE_STEP, kind="sampler")
    assembly = assembly_of(site)
    with pytest.raises(NotSupported) as caught:
        assembly.make_row_sampler("whole", {}, 300)
    assert caught.value.what == (
        "sampler 'whole' samples whole steps, and a request can only name one that samples its rows"
    )
    manager = assembly.manager
    with pytest.raises(NotSupported) as caught:
        Hooks(manager).sampler_create(manager.require("sampler", "best"), "best", {}, 300)
    assert caught.value.what == "sampler 'best' samples the rows of requests that name it, and no whole steps"


# --- making parts ------------------------------------------------------------------------------------------------


def maker(made):
    def make(name, params):
        made.append((name, dict(params)))
        return SimpleNamespace(name=name)

    return PartsMaker(make, make)


def test_parts_are_made_once_for_a_name_and_its_parameters():
    made: list[object] = []
    parts = maker(made)
    first = parts.parts(NamedPart("a", {"x": 1, "y": 2}), [NamedPart("a"), NamedPart("b")])
    again = parts.parts(NamedPart("a", {"y": 2, "x": 1}), [NamedPart("b")])
    assert made == [("a", {}), ("b", {}), ("a", {"x": 1, "y": 2})]
    assert first is not None
    assert again is not None
    assert first.sampler == again.sampler
    assert first.filters[1] == again.filters[0]
    assert first is not again  # faults are each request's own


def test_parts_of_a_request_that_names_nothing_are_none():
    assert maker([]).parts(None, ()) is None


def test_parts_that_are_kept_are_bounded_and_the_last_used_ones():
    made: list[object] = []
    parts = maker(made)
    parts.parts(NamedPart("first"), ())
    for i in range(MAX_MADE - 1):
        parts.parts(NamedPart("other", {"i": i}), ())
    parts.parts(NamedPart("first"), ())
    parts.parts(NamedPart("one more"), ())
    parts.parts(NamedPart("first"), ())
    assert made.count(("first", {})) == 1
    parts.parts(NamedPart("other", {"i": 0}), ())
    assert made.count(("other", {"i": 0})) == 2


def test_parts_error_of_a_maker_passes_and_nothing_is_kept():
    def refuse(name, params):
        raise PluginMissing(f"no {name}")

    parts = PartsMaker(refuse, refuse)
    for _ in range(2):
        with pytest.raises(DeepInferError, match="no a"):
            parts.parts(NamedPart("a"), ())
