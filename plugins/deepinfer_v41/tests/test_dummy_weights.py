"""Random weights: every tensor of the table in its format, the same for the same seed, and a model on them."""

import attrs
import pytest
import torch

from deepinfer_core.errors import NotSupported
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.dummy import DummyTensors
from deepinfer_v41.weights.formats import dequantize_block_fp8, dequantize_mxfp4
from deepinfer_v41.weights.table import tensor_table

DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}


@pytest.fixture(scope="module")
def config(shipped_checkpoint):
    return V41Config.from_directory(shipped_checkpoint)


@pytest.fixture(scope="module")
def shipped_checkpoint():
    from importlib.resources import files
    from pathlib import Path

    return Path(str(files("deepinfer_v41").joinpath("checkpoints/v41-tiny")))


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("quantized", [True, False])
def test_every_tensor_has_the_shape_and_type_of_the_table(config, quantized):
    config = attrs.evolve(config, quantized=quantized)
    tensors, table = DummyTensors(config, device="cpu", draft=True), tensor_table(config)
    assert list(tensors) == list(table)
    assert tensors.nbytes == sum(spec.nbytes for spec in table.values())
    for name, spec in table.items():
        tensor = tensors[name]
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, DTYPES[spec.dtype]), name
        assert tensor.float().isfinite().all(), name


def test_draft_stages_are_left_out_on_request(config):
    tensors = DummyTensors(config, device="cpu", draft=False)
    assert "mtp.0.attn.wq_a.weight" not in tensors
    assert 0 < len(tensors) < len(tensor_table(config))


def test_the_seed_decides_and_names_differ(config):
    name, other = "layers.0.attn.wq_a.weight", "layers.1.attn.wq_a.weight"
    first = DummyTensors(config, device="cpu", draft=False, seed=3)
    assert same(first[name], DummyTensors(config, device="cpu", draft=True, seed=3)[name])
    assert not same(first[name], first[other])
    assert not same(first[name], DummyTensors(config, device="cpu", draft=False, seed=4)[name])


def test_a_product_with_a_matrix_keeps_the_size_of_its_input(config):
    tensors = DummyTensors(config, device="cpu", draft=False)
    fp8 = dequantize_block_fp8(tensors["layers.0.attn.wq_b.weight"], tensors["layers.0.attn.wq_b.scale"])
    fp4 = dequantize_mxfp4(tensors["layers.0.ffn.experts.0.w1.weight"], tensors["layers.0.ffn.experts.0.w1.scale"])
    for matrix in (fp8, fp4):
        out = torch.randn(64, matrix.shape[1]) @ matrix.T
        assert 0.5 < float(out.std()) < 2


def test_a_model_runs_without_weights_in_its_folder(shipped_checkpoint, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((shipped_checkpoint / name).read_bytes())
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    results = []
    for _ in range(2):
        with LLM(str(tmp_path), backend="cpu", load_format="dummy", max_num_seqs=2, draft_tokens=2, seed=7) as llm:
            outputs = llm.generate(["import os", "x = 1"], params)
            assert [output.error for output in outputs] == [None, None]
            results.append([output.token_ids for output in outputs])
    assert results[0] == results[1]


def test_a_model_without_random_weights_is_refused(shipped_checkpoint, monkeypatch):
    from deepinfer_v41.model import V41Model

    monkeypatch.delattr(V41Model, "load_dummy")
    with pytest.raises(NotSupported, match="no random weights"):
        LLM(str(shipped_checkpoint), backend="cpu", load_format="dummy")
