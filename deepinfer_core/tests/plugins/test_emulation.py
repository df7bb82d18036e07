"""``--emulate``: a named backend whose manifest says that its code runs on the processor."""

from types import SimpleNamespace

import pytest

from deepinfer_core.errors import ConfigError, PluginError, UnsupportedFeature, UnsupportedFormat
from deepinfer_core.plugins.emulation import check_emulation
from deepinfer_core.plugins.selection import select_backend
from deepinfer_core.types import Capabilities, Requirements


@pytest.fixture
def toys(site, sources):
    site.add("cpu", sources["backend"], dist="deepinfer-cpu")
    site.add("toya", sources["backend"], table='emulates = true\narch = ["toy1"]\nclaims_on = { toy1 = ["kv:v41"] }\n')
    site.add("toyb", sources["backend"])
    return site


def choose(site, requirements=Requirements(), **settings):  # noqa: B008  # frozen
    def prober(records):
        pytest.fail("an emulated backend has no device to ask for")

    return select_backend(site.manager(emulate=True, **settings), requirements, prober=prober)


def test_the_backend_is_not_probed_and_the_line_says_that_it_is_emulated(toys):
    found = choose(toys, backend="toya")
    assert found.record.state == "loaded"
    assert found.line == (
        "backend: toya (chosen by --backend; EMULATED on the processor: this says nothing of the speed of a device)"
    )


def test_claims_are_those_of_the_first_architecture(toys):
    choose(toys, Requirements(formats=frozenset({"v41"})), backend="toya")
    with pytest.raises(UnsupportedFormat, match="toya"):
        choose(toys, Requirements(formats=frozenset({"v41_fp4"})), backend="toya")


def test_auto_is_refused_with_the_backends_that_can(toys):
    with pytest.raises(ConfigError) as caught:
        choose(toys)
    assert caught.value.what == "emulate goes with a backend that is named"
    assert caught.value.remedy == "name one that has: --backend toya"


@pytest.mark.parametrize("name", ["cpu", "toyb"])
def test_a_backend_without_an_emulation_is_refused(toys, name):
    with pytest.raises(UnsupportedFeature, match="has no emulation") as caught:
        choose(toys, backend=name)
    assert caught.value.remedy == "give --no-emulate, or name one that has: --backend toya"


def test_where_none_can_the_remedy_names_none(site, sources):
    site.add("toyb", sources["backend"])
    with pytest.raises(UnsupportedFeature) as caught:
        choose(site, backend="toyb")
    assert caught.value.remedy == "give --no-emulate"


def test_a_manifest_says_true_or_false(site, sources):
    site.add("toya", sources["backend"], table='emulates = "yes"\n')
    record = site.record("backend", "toya")
    assert record.state == "invalid"
    assert "emulates must be true or false, got 'yes'" in str(record.error)


@pytest.mark.parametrize(("said", "asked"), [(True, False), (False, True)])
def test_a_backend_that_says_something_else_of_itself_is_refused(said, asked):
    backend = SimpleNamespace(capabilities=Capabilities("toya", "cpu", "toy1", emulated=said))
    record = SimpleNamespace(title="backend toya (acme-toya 1.0)", distribution="acme-toya", name="toya")
    check_emulation(record, backend, SimpleNamespace(emulate=said))
    with pytest.raises(PluginError, match=f"was {'' if asked else 'not '}asked to emulate"):
        check_emulation(record, backend, SimpleNamespace(emulate=asked))
