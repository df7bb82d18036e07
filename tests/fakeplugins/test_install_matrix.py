"""Installing, upgrading and removing one plugin leaves alone every command that does not need it; really, with uv."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_venv import FakeVenv, build_wheels, missing_tools

ROOT = Path(__file__).parent
CPU = ("generate", "--backend", "cpu", "--max-tokens", "2", "--temperature", "0", "import os")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels by name: two backends, a good and a broken release of ``good_two``, and one that is half broken."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"distributions are installed with {missing}, which is not here")
    folder = tmp_path_factory.mktemp("releases")
    names = ["good_one", "good_two", "half_broken", "broken_import"]
    built = dict(zip(names, build_wheels([ROOT / name for name in names], folder / "wheels"), strict=True))
    for release, text in (("2.0", "raise OSError('libnew.so: cannot open')\n"), ("3.0", None)):
        source = folder / release / "good_two"
        shutil.copytree(ROOT / "good_two", source)
        project = source / "pyproject.toml"
        project.write_text(project.read_text().replace('version = "1.0"', f'version = "{release}"'))
        if text is not None:
            (source / "fake_good_two" / "plugin.py").write_text(text)
        [built[f"good_two {release}"]] = build_wheels([source], folder / "wheels")
    return built


@pytest.fixture
def venv(tmp_path: Path, wheels: dict[str, Path]) -> FakeVenv:
    return FakeVenv.create(tmp_path / "venv")


def states(venv: FakeVenv) -> dict[str, str]:
    """``good_two 2.0`` -> its state, of the fakes."""
    done = venv.run("plugins")
    if done.returncode or done.stderr:
        raise AssertionError(done.stderr)
    rows = [line.split() for line in done.stdout.splitlines() if " fake-" in line]
    return {f"{name} {version}": state for _, name, _, version, state, *_ in rows}


def refusal(venv: FakeVenv, backend: str) -> str:
    """The first line of the error for ``--backend``; nothing may be computed."""
    done = venv.run("generate", "--backend", backend, "x")
    if done.returncode != 3 or done.stdout:
        raise AssertionError(f"{done.returncode}: {done.stdout}{done.stderr}")
    return done.stderr.splitlines()[0]


def test_two_backends_side_by_side_work_by_flag(venv: FakeVenv, wheels: dict[str, Path]) -> None:
    venv.install(wheels["good_one"], wheels["good_two"])
    answers = {}
    for name in ("good_one", "good_two"):
        done = venv.run("generate", "--backend", name, *CPU[3:])
        assert (done.returncode, done.stderr) == (0, f"backend: {name} (chosen by --backend)\n")
        answers[name] = done.stdout
    assert answers["good_one"] == answers["good_two"] != ""


def test_good_duplicate_broken_good_are_listed_and_both_good_ones_load(venv: FakeVenv, wheels: dict[str, Path]) -> None:
    twins = build_wheels([ROOT / "twin_one", ROOT / "twin_two"], venv.folder.parent / "twins")
    venv.install(wheels["good_one"], *twins, wheels["broken_import"], wheels["good_two"])
    assert {"good_one 1.0": "found", "twin 1.0": "conflict", "good_two 1.0": "found"}.items() <= states(venv).items()
    done = venv.run("doctor", "--json", "fake-good-one")
    assert (done.returncode, done.stderr) == (0, "")
    done = venv.run("doctor", "--json", "fake-good-two")
    assert (done.returncode, done.stderr) == (0, "")


def test_upgrade_to_a_broken_release_and_on_touches_nobody_else(venv: FakeVenv, wheels: dict[str, Path]) -> None:
    venv.install(wheels["good_one"], wheels["good_two"])
    assert states(venv) == {"good_one 1.0": "found", "good_two 1.0": "found"}
    venv.install(wheels["good_two 2.0"])
    assert states(venv) == {"good_one 1.0": "found", "good_two 2.0": "found"}
    assert refusal(venv, "good_two") == (
        "deepinfer: E_PLUGIN: backend good_two (fake-good-two 2.0) failed in import: OSError: libnew.so: cannot open"
    )
    assert venv.run("doctor", "good_one").returncode == 0
    venv.install(wheels["good_two 3.0"])
    assert states(venv) == {"good_one 1.0": "found", "good_two 3.0": "found"}
    assert venv.run("doctor", "good_two").returncode == 0


def test_removal_takes_the_name_away_and_nothing_else(venv: FakeVenv, wheels: dict[str, Path]) -> None:
    venv.install(wheels["good_one"], wheels["good_two"], wheels["half_broken"])
    venv.uninstall("fake-good-two")
    assert states(venv) == {"good_one 1.0": "found", "half_backend 1.0": "found", "half_sampler 1.0": "found"}
    assert refusal(venv, "good_two") == (
        "deepinfer: E_BACKEND_MISSING: no backend named 'good_two'; did you mean 'good_one'?"
    )
    assert venv.run("doctor", "half_sampler").returncode == 0
    venv.uninstall("fake-good-one", "fake-half-broken")
    assert states(venv) == {}
    after = venv.run(*CPU)
    assert (after.returncode, after.stderr) == (0, "backend: cpu (chosen by --backend)\n")
