"""Code of plugins gets torch without its extensions, unless the user set the variable; then the variable is gone."""

import os
import sys

import pytest

from deepinfer_core.plugins.torch_extensions import VARIABLE, left_out, users_environment


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_variable_is_set_inside_and_gone_outside():
    with left_out():
        with left_out():
            assert os.environ[VARIABLE] == "0"
        assert os.environ[VARIABLE] == "0"
        assert VARIABLE not in users_environment()
    assert VARIABLE not in os.environ


def test_it_is_gone_after_an_error_and_after_torch_was_imported(monkeypatch):
    def import_and_fail():
        with left_out():
            monkeypatch.setitem(sys.modules, "torch", sys)
            with left_out():
                raise KeyError

    with pytest.raises(KeyError):
        import_and_fail()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_variable_of_the_user_stays(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with left_out():
        assert os.environ[VARIABLE] == users_environment()[VARIABLE] == value
    assert os.environ[VARIABLE] == value


def test_nothing_is_set_once_torch_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    with left_out():
        assert VARIABLE not in os.environ
