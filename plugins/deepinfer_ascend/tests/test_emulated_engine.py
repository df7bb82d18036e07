"""``deepinfer --backend ascend --emulate``: the text of ``cpu``, and the mark on everything that comes out."""

import json

import pytest
from click.testing import CliRunner

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.root import root

pytestmark = pytest.mark.emulated
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
PROMPTS = ["import os", "def main("]
BANNER = "EMULATED on the processor: this says nothing of the speed of a device"


def texts(**settings):
    with LLM(kv_memory="64MiB", **settings) as llm:
        return [output.token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("mode", ["released", pytest.param("exact", marks=pytest.mark.slow)])
def test_tokens_are_those_of_cpu(mode):
    found = texts(backend="ascend", emulate=True, numeric_mode=mode)
    assert found == texts(backend="cpu", numeric_mode=mode)


@pytest.mark.slow
def test_lowered_kernels_give_the_tokens_of_cpu(monkeypatch, tmp_path):
    """Norm, rotation, casts, SwiGLU, index rows: executed from AscendC, in every layer of every step."""
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    monkeypatch.setenv("DEEPINFER_ASCEND_CACHE", str(tmp_path))
    monkeypatch.setenv("DEEPINFER_ASCEND_LOWERED", "1")
    found = texts(backend="ascend", emulate=True)
    assert list(tmp_path.glob("rms_rows-*.so"))
    assert found == texts(backend="cpu")


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
