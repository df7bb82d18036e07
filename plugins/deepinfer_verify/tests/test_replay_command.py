"""``deepinfer verify-replay`` as a command, and level 2 on the shipped checkpoint and on a model made wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from attrs import evolve

from deepinfer_core import cli
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import UnsupportedFeature
from deepinfer_verify.replay import bits, level1, level2, report
from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.level2 import run_level2
from deepinfer_verify.replay.prompts import Beginning, Sizes
from deepinfer_verify.replay.rule import Geometry

LEVEL2 = ["verify-replay", "--level", "2", "--backend", "cpu", "--new-tokens", "4"]


@pytest.fixture
def few(monkeypatch):
    """Level 1 with a handful of prompts."""
    suite = level1.Suite(
        "few",
        Geometry(window=8, keep=14, block=4, ring=11, ratios=(1, 2)),
        drafts=2,
        lengths=(5, 15, 29),
        chunks=(3, 64),
        shared=(17,),
    )
    for module in (level1, report):
        monkeypatch.setattr(module, "suites", lambda: iter([suite]))


def test_level_1_tells_what_it_compared(few, capsys):
    assert cli.main(["verify-replay"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, sizes, prompts, *compared, last = out.splitlines()
    assert first == "level 1: 72 prompts of made-up tokens through scheduler and packer, without weights"
    assert sizes == "  few sizes: window 8, keep 14, blocks of 4, 2 drafts"
    assert prompts == "    lengths: 3, from 5 to 29 tokens; chunks of 3, 64; shared beginnings of 17"
    assert all(line.endswith(" compared") for line in compared)
    assert last == "  no difference"


def test_level_2_of_an_emulation_is_marked():
    assert report.level2_record(level2.Level2(backend="it", emulated=True))["emulated"] is True
    assert "emulated" not in report.level2_record(level2.Level2(backend="it"))


def test_level_1_with_a_difference_ends_with_5_and_shows_where(few, capsys, monkeypatch):
    monkeypatch.setattr(level1, "hit_of", lambda *args: (0, 0))
    assert cli.main(["verify-replay", "--level", "1"]) == 5
    out = capsys.readouterr().out
    assert " DIFFERENT" in out.split("hits")[1].splitlines()[0]
    assert "few sizes, engine off, chunks of 3: off, 18 tokens, 17 of them cached: position " in out
    assert " more\n" in out
    assert cli.main(["verify-replay", "--json"]) == 5
    data = json.loads(capsys.readouterr().out)
    assert (data["level"], data["cases"]) == (1, 72)
    assert data["differences"] == sum(data["different"].values()) >= len(data["first"]) > 0


def test_usage_is_refused_before_anything_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(level1, "run_suite", lambda *args: pytest.fail("it ran"))
    for options, option in (
        (["--text", "x"], "--text"),
        (["--new-tokens", "3"], "--new-tokens"),
        (["--backend", "cpu"], "--backend"),
        (["--keep-tokens", "50"], "--keep-tokens"),
    ):
        assert cli.main(["verify-replay", *options]) == 2
        assert capsys.readouterr().err == (
            f"deepinfer: E_USAGE: {option} is for level 2\n  remedy: give --level 2 too, or leave it out\n"
        )
    assert cli.main(["verify-replay", "--level", "3"]) == 2
    assert "--level" in capsys.readouterr().err
    assert cli.main([*LEVEL2, "--text", str(tmp_path / "none.txt")]) == 2
    assert capsys.readouterr().err.startswith(f"deepinfer: E_INPUT: cannot read the text {tmp_path / 'none.txt'}\n")


@pytest.mark.timeout(300)
def test_level_2_finds_equal_bits_and_tells_what_they_are(capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_MAX_CHUNK", "5")
    assert cli.main([*LEVEL2, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "deepinfer: setting max_chunk is not used: this comparison has its own\n" in err
    assert err.count("backend: cpu") == 1  # of many engines
    data = json.loads(out)
    assert (data["level"], data["backend"], data["differences"]) == (2, "cpu", 0)
    # 5 lengths: compact and mask twice; compact and off twice for 2 of them; 15 requests in chunks, 10 in engines of
    # their own mode; 2 tails twice, and twice behind exact hits in each mode
    assert data["cases"] == 10 + 4 + 15 + 10 + 4 + 12
    assert data["left_out"] is None
    assert data["compared"]["log-probabilities"] == 4 * data["cases"]
    assert data["compared"]["confidences"] == data["compared"]["draft tokens"] > data["cases"] * 4
    assert data["compared"]["hits"] == 24
    assert [cost["tokens"] for cost in data["costs"]] == [45, 79, 201]
    assert all(cost["perplexity_off"] != cost["perplexity_compact"] for cost in data["costs"])


@pytest.mark.timeout(300)
def test_level_2_finds_a_decoder_half_that_stores_a_window_key_at_another_place(capsys, monkeypatch):
    """Wrong in the code of mode compact alone, for requests of every mode that run in it."""
    import torch

    from deepinfer_v41.query_rows import QueryRows

    right, sizes_of = QueryRows.kept_by.__func__, level2.sizes_of

    def wrong(cls, inputs):
        rows = right(cls, inputs)
        if rows is None or rows.index is None:
            return rows
        return evolve(rows, slot_swa=torch.where(rows.slot_swa >= 0, rows.slot_swa ^ 1, rows.slot_swa))

    monkeypatch.setattr(QueryRows, "kept_by", classmethod(wrong))
    monkeypatch.setattr(level2, "sizes_of", lambda *args: evolve(sizes_of(*args), lengths=(79,), exact_hits=None))
    assert cli.main([*LEVEL2, "--json"]) == 5
    data = json.loads(capsys.readouterr().out)
    assert data["different"]["log-probabilities"] > 0
    assert data["different"]["confidences"] > 0
    assert "mask, 79 tokens: in an engine mask and in an engine compact" in {item["case"] for item in data["first"]}


def test_level_2_names_token_and_distance_of_a_bit(monkeypatch):
    findings = Findings()
    a = level2.Trace((-1.0, -2.0), {7: ((3, 0.5), (4, 0.25))}, (2, 1), (1, 0), 0, 0)
    b = level2.Trace((-1.0, -1.9999998807907104), {7: ((3, 0.5), (4, 0.2500000298023224))}, (2, 1), (1, 0), 0, 0)
    bits.same(findings, "79 tokens: compact and mask", a, b)
    first, second = (finding.text for finding in findings.kept)
    assert first == (
        "79 tokens: compact and mask: forced token 1, log-probabilities: -0x1.fffffe0000000p+0 (-1.99999988, 1 ulp "
        "apart), expected -0x1.0000000000000p+1"
    )
    assert second == (
        "79 tokens: compact and mask: draft 1 behind position 7, confidences: 0x1.0000020000000p-2 (0.25000003, 1 ulp "
        "apart), expected 0x1.0000000000000p-2"
    )
    bits.same(findings, "", a, evolve(b, drafts={8: b.drafts[7]}, accepted=(0, 0)))
    assert findings.different["draft steps"] == findings.different["accepted drafts"] == 1


@pytest.mark.parametrize(
    ("max_model_len", "tokens", "what"),
    [
        (600, 10_000, "they need 607 positions, more than the model has"),
        (2048, 600, "they need a text of 610 tokens (--text)"),
        (2048, 10_000, ""),
    ],
)
def test_exact_hits_that_have_no_room_are_left_out_with_the_reason(max_model_len, tokens, what):
    geometry = Geometry(window=32, keep=44, block=128, ring=37, ratios=(1, 2), exact=(311, 125))
    hits = Beginning(geometry, shared=515, tails=(5, 88), new_tokens=4)
    sizes = Sizes(geometry, (16,), hits, hits, 4)
    engine = SimpleNamespace(llm=SimpleNamespace(built=SimpleNamespace(max_model_len=max_model_len)))
    result = level2.Level2()
    assert level2._exact_hits(engine, range(tokens), sizes, result) == (None if what else hits)
    assert result.left_out.endswith(what)
    assert level2._exact_hits(engine, range(tokens), evolve(sizes, exact_hits=None), level2.Level2()) is None


def test_text_that_is_too_short_says_how_much_is_needed():
    from deepinfer_core.errors import InvalidInputFile

    config = EngineConfig.resolve({"backend": "cpu", "draft_tokens": 2}, environ={})
    with pytest.raises(InvalidInputFile) as caught:
        run_level2(config, "import os", 4)
    assert caught.value.reason.startswith("prompts of this model's sizes need ")


def test_level_2_on_a_backend_that_promises_no_bits_across_batches_names_another(monkeypatch):
    def engine(config, **changes):
        raise UnsupportedFeature("not claimed", remedy="set --deterministic run", details={"field": "deterministic"})

    monkeypatch.setattr(level2, "_engine", engine)
    with pytest.raises(UnsupportedFeature) as refused:
        run_level2(EngineConfig(), "text", 4)
    assert refused.value.reason == "not claimed"
    assert "--deterministic" not in refused.value.remedy
    assert "--backend cpu" in refused.value.remedy
