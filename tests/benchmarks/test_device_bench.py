"""The device benchmarks without a device: the cut-down model is valid, floors are those of the specification, and the
programs run whole on backend cpu at small sizes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_topk_blocks": 20,
    "candidate_block_size": 4,
    "engram_head_dim": 32,
    "engram_n_heads": 2,
    "engram_compressed_vocab_size": 512,
    "engram_vocab_size": 200,
    "dspark_block_size": 4,
    "dspark_noise_token_id": 500,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "max_position_embeddings": 65536,
}


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("device_bench", "kernel_bench")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("layers", [6, 9, 12, 16, 40])
def test_a_cut_down_model_is_valid_and_has_every_kind_of_layer(layers: int) -> None:
    from deepinfer_v41.config import V41Config
    from deepinfer_v41.cut_down import cut_down

    config = V41Config.from_dict(cut_down(layers))
    plans = config.layers[:layers]
    assert {plan.kind.value for plan in plans} == {"swa", "full", "reuse", "reindex"}
    assert config.ratios == (1, 2)
    assert sum(plan.is_candidate_source for plan in plans) == 1
    assert sum(plan.candidate_source is not None for plan in plans) >= 1
    assert sum(plan.engram is not None for plan in plans) == 1


def test_too_few_layers_are_refused() -> None:
    from deepinfer_v41.cut_down import cut_down

    with pytest.raises(ValueError, match="at least 6"):
        cut_down(5)


def test_as_many_layers_are_taken_as_the_memory_holds() -> None:
    from device_bench.decode import most_layers

    counts = [most_layers(384, gigabytes * 10**9) for gigabytes in (10, 100, 115, 130, 1000)]
    assert counts[0] == 6
    assert counts == sorted(counts)
    assert 11 <= counts[1] < counts[3] <= 17
    assert counts[4] == 40


def test_floors_agree_with_the_worked_numbers_of_the_specification() -> None:
    """64 sequences of 6 rows at 32K (``spec/kernels.md`` 2.10), in GFLOP and MB; rows of wo_a are bf16."""
    from deepinfer_v41.config import V41Config
    from deepinfer_v41.cut_down import cut_down
    from deepinfer_v41.floors import Work, floors

    config = V41Config.from_dict(cut_down(12))
    by_op = {part.op: part for part in floors(config, config.layers[7], Work(384, 32768))}
    for op, gflop, mb in (("q_a + kv", 7.0, 12.6), ("wo_a", 26, 65), ("experts", 163, 7223), ("gate", 1.5, 7.9)):
        assert by_op[op].flop / 1e9 == pytest.approx(gflop, rel=0.05), op
        assert by_op[op].num_bytes / 1e6 == pytest.approx(mb, rel=0.08), op
    assert by_op["attention"].flop / 1e9 == pytest.approx(32, rel=0.05)


def test_pairs_of_a_prefill_are_those_counted_one_by_one() -> None:
    from deepinfer_v41.floors import Work

    for rows, limit, ratio in ((10, 4, 1), (200, 128, 1), (300, 64, 2)):
        counted = sum(min((p + 1) // ratio, limit) for p in range(rows))
        assert Work(rows, rows, prefill=True).pairs(limit, ratio) == pytest.approx(counted, rel=0.15)
    assert Work(5, 300).pairs(64, 2) == 5 * 64
    for rows, kept, limit, ratio in ((200, 140, 128, 1), (300, 50, 64, 2)):
        counted = sum(min((p + 1) // ratio, limit) for p in range(rows - kept, rows))
        assert Work(rows, rows, prefill=True).last(kept).pairs(limit, ratio) == pytest.approx(counted, rel=0.02)


def test_bounded_replay_leaves_the_decoder_half_the_kept_rows_and_all_entries() -> None:
    from deepinfer_v41.config import V41Config
    from deepinfer_v41.cut_down import cut_down
    from deepinfer_v41.floors import Work, step_floors

    config = V41Config.from_dict(cut_down(12))
    work = Work(4096, 4096, prefill=True)

    def flop(kept: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in step_floors(config, work, kept):
            found[part.op] = found.get(part.op, 0) + part.flop
        return found

    whole, half = flop(0), flop(140)
    assert whole == flop(4096) == flop(5000)
    assert (config.num_hidden_layers, config.n_encoder_layers) == (12, 7)
    assert half["gate"] == pytest.approx(whole["gate"] * (7 + 5 * 140 / 4096) / 12)
    assert (half["compressor"], half["index key"]) == (whole["compressor"], whole["index key"])
    assert half["index weights"] < whole["index weights"]


def test_busy_time_is_the_union_of_what_runs_side_by_side() -> None:
    from deepinfer_bench.busy import of_events, union

    assert union([(0, 10), (5, 12), (20, 30), (22, 25)]) == (22, 30)
    assert union([]) == (0, 0)
    ran = (("CUDA", 1000, 3000, "a"), ("CUDA", 9000, 1000, "b"), ("CPU", 0, 90_000, "c"))
    events = [
        SimpleNamespace(
            device_type=lambda kind=kind: f"DeviceType.{kind}",
            start_ns=lambda begin=begin: begin,
            duration_ns=lambda took=took: took,
            name=lambda name=name: name,
        )
        for kind, begin, took, name in ran
    ]
    busy = of_events(events)
    assert (busy.span_us, busy.busy_us, busy.kernels) == (9, 4, 2)
    assert busy.idle == pytest.approx(5 / 9)
    assert busy.top[0] == ("a", 3.0, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes, and no device to profile."""
    import device_bench.decode as decode

    from deepinfer_bench.busy import Busy

    whole = decode.cut_down

    def profiled(work: Any) -> Busy:
        work()
        return Busy(2000.0, 1000.0, 10, (("kernel", 900.0, 10),))

    monkeypatch.setattr(decode, "cut_down", lambda layers, **text: whole(layers, **{**SMALL, **text}))
    monkeypatch.setattr(decode, "prompts", lambda batch, context, vocab: [[3 + i] * context for i in range(batch)])
    monkeypatch.setattr(decode, "profiled", profiled)


@pytest.mark.slow
def test_decode_benchmark_reports_every_way_to_run(small: None) -> None:
    from device_bench.decode import run

    options = argparse.Namespace(
        layers=6, experts=8, backend="cpu", drafts=0, batches=[1, 3], contexts=[40], kv_memory="64MiB", mode="released",
        graphs="both", overlap="both", tokens=2, all_kernels=False,
    )  # fmt: skip
    lines: list[str] = []
    reports: list[dict[str, Any]] = []
    run(options, reports.append, lines.append)
    assert [len(report["rows"]) for report in reports] == [2, 4, 6, 8]
    report = reports[-1]
    ways = [(row["graphs"], row["overlap"], row["batch"]) for row in report["rows"]]
    assert ways == [(g, o, b) for g in (True, False) for o in (True, False) for b in (1, 3)]
    for row in report["rows"]:
        assert row["step_us"] > 0
        assert row["device_busy_us"] == 500
        assert row["launches_per_step"] == 5
    assert report["machine"]["date"]
    assert any("idle" in line for line in lines)


@pytest.mark.slow
def test_layer_benchmark_reports_each_kind(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from device_bench import layers
    from kernel_bench.ceilings import Ceilings
    from kernel_bench.harness import Timing

    def timed(calls: Any) -> Timing:
        calls[0]()
        return Timing(50.0, 50.0, 50.0, 1)

    monkeypatch.setattr(layers, "measure", timed)
    monkeypatch.setattr(layers, "measure_ceilings", lambda: Ceilings(4e12, 7e14))
    monkeypatch.setattr(layers, "EXPERTS", 8)
    report = layers.run(
        argparse.Namespace(backend="cpu", batches=[1, 3], context=200, prefill=64, all_kernels=False), lambda line: None
    )
    assert len(report["rows"]) == 3 * 6
    assert {row["phase"] for row in report["rows"]} == {"decode", "prefill"}
    for row in report["rows"]:
        assert row["floor_us"] == pytest.approx(sum(row["floors_us"].values()), abs=0.2)
