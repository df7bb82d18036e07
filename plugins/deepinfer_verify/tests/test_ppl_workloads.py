"""What is computed: shipped workloads, own ones, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CommandUsageError, InvalidInputFile
from deepinfer_verify.engine_settings import settings_for
from deepinfer_verify.ppl.workloads import find_workload, read_workload, shipped

GOOD = {
    "text": '"text.txt"',
    "samples": "2",
    "prompt_tokens": "3",
    "new_tokens": "2",
    "draft_tokens": "0",
    "arithmetic": '"exact"',
}


def written(folder: Path, **changes: str | None) -> Path:
    (folder / "text.txt").write_text("abc")
    table = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    path = folder / "mine.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in table.items()))
    return path


def test_shipped_workloads_read_and_the_long_one_fills_the_small_checkpoint():
    found = {name: find_workload(name) for name in shipped()}
    assert list(found) == ["long", "released", "short"]
    assert found["long"].length == 2048
    assert all(workload.draft_tokens == 4 for workload in found.values())
    assert found["long"].settings["numeric_mode"] == "exact"
    assert found["released"].settings == {
        "deterministic": "run",
        "verify": "coupled",
        "draft_tokens": 4,
        "numeric_mode": "released",
        "cache_formats": True,
        "seed": 0,
    }


def test_samples_are_consecutive_pieces_behind_the_first_token(tmp_path):
    workload = find_workload(str(written(tmp_path)))
    samples = workload.cut(range(10, 18), (0,))
    assert [(s.id, s.prompt, s.forced) for s in samples] == [
        ("mine-0", (0, 10, 11), (12, 13)),
        ("mine-1", (0, 14, 15), (16, 17)),
    ]
    assert len({sample.sha256 for sample in samples}) == 2
    cut_elsewhere = find_workload(str(written(tmp_path, prompt_tokens="2", new_tokens="3"))).cut(range(10, 18), (0,))
    assert cut_elsewhere[0].sha256 != samples[0].sha256


def test_text_that_is_too_short_says_how_many_tokens_are_needed(tmp_path):
    workload = read_workload(written(tmp_path))
    with pytest.raises(InvalidInputFile) as caught:
        workload.cut(range(7), (0,))
    assert str(caught.value) == (
        "E_INPUT: the text of workload mine has 7 tokens\n"
        "  reason: 2 x 5 positions need 8\n"
        "  remedy: give a longer text, fewer samples, or shorter ones"
    )


def test_unknown_workload_names_the_nearest_and_all():
    with pytest.raises(CommandUsageError) as caught:
        find_workload("shrot")
    assert str(caught.value) == (
        "E_USAGE: no workload named 'shrot'; did you mean 'short'?\n"
        "  reason: workloads: long, released, short\n"
        "  remedy: name one of these, or give the path of a .toml file of your own"
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"samples": None}, "has no samples"),
        ({"sample": "1"}, "has an unknown key 'sample'"),
        ({"samples": "0"}, "samples = 0 in the workload"),
        ({"samples": "true"}, "samples = True in the workload"),
        ({"prompt_tokens": "1.5"}, "prompt_tokens = 1.5 in the workload"),
        ({"new_tokens": "1"}, "new_tokens = 1 in the workload"),
        ({"draft_tokens": "-1"}, "draft_tokens = -1 in the workload"),
        ({"draft_tokens": "16"}, "draft_tokens = 16 in the workload"),
        ({"arithmetic": '"fast"'}, "arithmetic = 'fast' in the workload"),
        ({"arithmetic": "[]"}, "arithmetic = [] in the workload"),
        ({"text": "3"}, "text = 3 in the workload"),
        ({"text": '"none.txt"'}, "cannot read"),
        ({"text": "="}, "is not TOML"),
        ({"text": "[" * 10_000}, "is not TOML"),
    ],
)
def test_file_that_is_no_workload_is_refused_with_its_key(tmp_path, changes, what):
    with pytest.raises(InvalidInputFile) as caught:
        read_workload(written(tmp_path, **changes))
    assert what in caught.value.what
    assert caught.value.reason
    assert caught.value.remedy


def test_absent_workload_and_text_of_another_encoding_are_refused(tmp_path):
    with pytest.raises(InvalidInputFile, match="cannot read the workload"):
        find_workload(str(tmp_path / "none.toml"))
    path = written(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"\xff")
    with pytest.raises(InvalidInputFile, match="is not UTF-8"):
        read_workload(path)


def test_wrong_value_is_told_with_its_line_where_there_is_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("# of mine\nsamples = 1\n'prompt_tokens' = 2\nnew_tokens = 2\n  draft_tokens = 16\n")
    path.write_text(path.read_text() + 'arithmetic = "exact"\ntext = "none.txt"\n')
    with pytest.raises(InvalidInputFile) as caught:
        read_workload(path)
    assert str(caught.value) == (
        f"E_INPUT: draft_tokens = 16 in the workload {path}, line 5\n"
        "  reason: an integer from 0 to 15\n"
        "  remedy: correct the file; the page on decode perplexity has one"
    )
    path.write_text(path.read_text().replace("16", "5").replace("'prompt_tokens' = 2", "prompt_tokens = 0"))
    with pytest.raises(InvalidInputFile, match=f"prompt_tokens = 0 in the workload {path}, line 3"):
        read_workload(path)


def test_settings_of_a_workload_say_that_they_are_its_own(tmp_path):
    workload = read_workload(written(tmp_path, draft_tokens="9"))
    config, _ = settings_for(EngineConfig.resolve({"num_threads": 2}), workload.settings, origins=workload.origins)
    path = tmp_path / "mine.toml"
    assert config.origin("draft_tokens").startswith(f"file {path}, line ")
    assert config.origin("num_threads") == "flag"
