"""``deepinfer --backend ascend --emulate``: the text of ``cpu``, and the mark on everything that comes out."""

import json
import os

import pytest
from click.testing import CliRunner

from deepinfer_ascend.jit import serving
from deepinfer_ascend.jit.serving import parts
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.root import root

pytestmark = pytest.mark.emulated
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, top_k=40, seed=3, max_tokens=24)
ROUNDED = {"compress.decode", "compress.prefill", "engram.gate", "mhc.post", "mhc.pre", "norm.rms"}
ROUNDED |= {"transform.fused", "transform.rotary"}
"""Ops whose kernels add up in another order, in fp32 for fp64, or round a product before it is added."""
PROMPTS = ["import os", "def main("]
BANNER = "EMULATED on the processor: this says nothing of the speed of a device"


def texts(*ways, **settings):
    """Tokens of each prompt in each way, greedy ones without any."""
    with LLM(kv_memory="64MiB", **settings) as llm:
        return [output.token_ids for params in ways or (GREEDY,) for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("mode", ["released", pytest.param("exact", marks=pytest.mark.slow)])
def test_tokens_are_those_of_cpu(mode):
    found = texts(backend="ascend", emulate=True, numeric_mode=mode)
    assert found == texts(backend="cpu", numeric_mode=mode)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["exact", "released"])
def test_lowered_kernels_give_the_tokens_of_cpu(monkeypatch, tmp_path, mode):
    """Every op that has a kernel of ours: executed from AscendC, in every layer of every step.

    In exact arithmetic no greedy step and no draw here is close. In released rounding a relative error of 1e-7 in the
    mixing coefficients moves logits by 0.1: codes of casts change, layer upon layer. There the ops of ``ROUNDED`` are
    the plain ones, and all others have to give the bits of ``cpu``.
    """
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    if "DEEPINFER_ASCEND_CACHE" not in os.environ:
        monkeypatch.setenv("DEEPINFER_ASCEND_CACHE", str(tmp_path))
    monkeypatch.setenv("DEEPINFER_ASCEND_LOWERED", "1")
    if mode == "released":
        serve = serving.serve
        kept = lambda ops: {op: call for op, call in serve(ops).items() if op not in ROUNDED}  # noqa: E731
        monkeypatch.setattr(serving, "serve", kept)
    executed = set()
    monkeypatch.setattr(parts.hosted, "run", noted(parts.hosted.run, executed))
    found = texts(GREEDY, SEEDED, backend="ascend", emulate=True, numeric_mode=mode)
    assert executed >= {"feed_rows", "post_rows" if mode == "exact" else "cast_rows"}
    assert found == texts(GREEDY, SEEDED, backend="cpu", numeric_mode=mode)


def noted(run, names):
    """``run``, which adds the name of each kernel that it executes to ``names``."""

    def call(kernel, *arguments, **options):
        names.add(kernel.name)
        return run(kernel, *arguments, **options)

    return call


@pytest.mark.slow
def test_drafts_and_prefix_cache_give_the_same_tokens():
    settings = {"draft_tokens": 4, "prefix_cache": True}
    assert texts(backend="ascend", emulate=True, **settings) == texts(backend="cpu", **settings)


def test_outputs_and_chunks_are_marked():
    with LLM(backend="ascend", emulate=True, kv_memory="64MiB") as llm:
        [output] = llm.generate("import os", GREEDY)
        assert output.emulated
        assert output.as_record()["emulated"] is True
        assert all(chunk.emulated for chunk in llm.stream("import os", GREEDY))


def deepinfer(*arguments):
    return CliRunner().invoke(root, list(arguments), standalone_mode=False)


def test_the_banner_is_on_standard_error_and_each_line_of_json_is_marked(tmp_path):
    options = ["--backend", "ascend", "--emulate", "generate", "--temperature", "0", "--max-tokens", "4"]
    streamed = deepinfer(*options, "--json", "--stream", "import os")
    assert BANNER in streamed.stderr
    lines = [json.loads(line) for line in streamed.stdout.splitlines()]
    assert len(lines) > 1
    assert all(line["emulated"] is True for line in lines)
    deepinfer(*options, "--out", str(tmp_path / "out.jsonl"), "import os")
    [record] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert record["emulated"] is True
    assert record["run"]["settings"]["emulate"] is True


def test_reports_of_commands_are_marked(tmp_path, monkeypatch):
    """Of ``bench``, ``eval``, ``ppl``, ``replay``: a figure that is passed on must say where it comes from."""
    for module in ("deepinfer_bench", "deepinfer_eval", "deepinfer_verify"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    on = ["--backend", "ascend", "--emulate", "--json"]
    small = ["--batch", "1", "--prompt", "8", "--rounds", "1", "--warm-up-rounds", "0", "--no-profile"]
    measured = json.loads(deepinfer(*on, "bench", "prefill", *small, "--csv", "bench.csv").stdout)
    assert measured["emulated"] is measured["points"][0]["emulated"] is True
    assert "emulated" in (tmp_path / "bench.csv").read_text().splitlines()[0].split(",")

    (tmp_path / "items.jsonl").write_text('{"question": "import os", "answer": "x"}\n')
    asked = [
        "eval",
        "generate",
        "items.jsonl",
        "--out",
        "answers.jsonl",
        "--max-tokens",
        "2",
        "--scorer",
        "exact_match",
    ]
    assert json.loads(deepinfer(*on, *asked).stdout)["emulated"] is True
    _, answer = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert answer["emulated"] is True
    scored = json.loads(deepinfer("--json", "eval", "score", "answers.jsonl", "--out", "verdicts.jsonl").stdout)
    assert scored["emulated"] is json.loads((tmp_path / "verdicts.jsonl").read_text())["emulated"] is True
    assert BANNER in deepinfer("eval", "score", "answers.jsonl").stdout

    (tmp_path / "text.txt").write_text("import os\nimport sys\n" * 4)
    (tmp_path / "own.toml").write_text(
        'text = "text.txt"\nsamples = 1\nprompt_tokens = 8\nnew_tokens = 3\ndraft_tokens = 0\narithmetic = "exact"\n'
    )
    update = ["ppl", "--baseline", "own.json", "--workload", "own.toml", "--update"]
    assert json.loads(deepinfer(*on, *update).stdout)["workloads"][0]["emulated"] is True
    [entry] = json.loads((tmp_path / "own.json").read_text())["entries"].values()
    assert entry["platform"]["emulated"] is True

    deepinfer(
        "--backend", "ascend", "--emulate", "generate", "--max-tokens", "2", "--out", "results.jsonl", "import os"
    )
    assert json.loads(deepinfer("--json", "replay", "results.jsonl").stdout)["emulated"] is True
