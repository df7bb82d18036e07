"""The plain ops on a device (``far_device``): nothing waits, every tensor is there, and the results are those of the
host."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import far_backend
import numpy as np
import pytest
import torch
from far_device import FAR, FarTensor, WaitsError, launching

from deepinfer_core.errors import HiddenSync
from deepinfer_cpu import few_rows, rounding
from deepinfer_cpu.backend import OPS, CpuBackend
from deepinfer_cpu.ops import mhc, moe, quant

HERE = Path(__file__).parent
NOT_ELSEWHERE = {"feature:engram_host_storage", "feature:batch_invariant"}
OF_A_STEP = ["attention", "cache", "compress", "feed", "indexer", "meta", "mhc", "moe", "moe_gate", "quant", "sync"]


@pytest.fixture(autouse=True, scope="module")
def backend():
    """What copies its tables to the device once, before any step: no op has to, whichever test is the first."""
    return CpuBackend().on(FAR)


def run_kit(folder: Path, level: str, *files: str) -> subprocess.CompletedProcess[str]:
    """The conformance kit for backend ``far``, in a process of its own."""
    manifest = tomllib.loads((HERE.parent / "src" / "deepinfer_cpu" / "deepinfer.toml").read_text())
    far_backend.write_site(folder, [c for c in manifest["backend"][0]["claims"] if c not in NOT_ELSEWHERE])
    path = os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])
    names = [f"deepinfer_core.conformance.backend.test_{name}" for name in files] or ["deepinfer_core.conformance"]
    # An address in memory is all that a tensor of the device has not.
    without = ["-k", "not pages_of_all_layers_lie_apart"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *without, "--pyargs", *names]
    command += ["--backend", "far", "--level", level]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_steps_ops_pass_the_kit_on_a_device(tmp_path):
    done = run_kit(tmp_path / "site", "smoke", *OF_A_STEP)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_backend_on_a_device_passes_the_kit(tmp_path):
    done = run_kit(tmp_path / "site", "core")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense|item"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "copies to the host"),
        (lambda x: bool((x > 0).any()), "_local_scalar_dense|is_nonzero"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x + torch.ones(4), "tensor of the host"),
        (lambda x: torch.tensor([1.0, 2.0], device=FAR), "numbers of the host"),
        (lambda x: torch.ones(4).to(FAR), "tensor of the host"),
        (lambda x: x / 3.0, "reciprocal"),
        (lambda x: torch.repeat_interleave(x.long()), "repeat_interleave"),
    ],
)
def test_device_refuses_what_an_accelerator_waits_for(waits, words):
    x = torch.arange(4.0).to(FAR)
    waits(x)  # allowed outside of a launch
    with launching(), pytest.raises(WaitsError, match=words):
        waits(x)


def test_guard_of_a_step_lets_the_host_send_but_not_read():
    with launching(uploads=True):
        x = torch.ones(4).to(FAR) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=FAR)
        with pytest.raises(HiddenSync):
            x.tolist()
    assert x.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_ops_without_tensors_make_them_on_the_device():
    backend = CpuBackend().on(FAR)
    table = backend.transform.rope_table(40, 16, theta=10000.0)
    assert isinstance(table, FarTensor)
    assert torch.equal(table.cpu(), OPS["transform.rope_table"](40, 16, theta=10000.0))
    assert backend.capabilities.device_type == "far"
    assert "batch_invariant" not in backend.capabilities.features
    backend.close()


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_few_values_in_numpy_have_the_bytes_of_the_device(fmt, count):
    """Up to ``FEW_VALUES`` the host quantises in NumPy, a device always in torch."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 32, generator=generator) * torch.exp2(
        torch.randint(-20, 20, (count, 1), generator=generator)
    )
    x[0, :5] = torch.tensor([0.0, -0.0, 1e-30, 448.0, -6.0])
    assert x.numel() <= few_rows.FEW_VALUES
    there = x.to(FAR)
    with launching():
        far = quant.cast_per_token(there, fmt=fmt)
    near = quant.cast_per_token(x, fmt=fmt)
    for part in ("values", "data", "sf"):
        assert torch.equal(getattr(far, part).cpu(), getattr(near, part)), part


@pytest.mark.parametrize("tokens", [1, 2, 33, 500])
def test_mixing_coefficients_of_host_and_device_are_equal(tokens):
    """fp64 on both sides, rounded once: the host computes one token in Python, more in NumPy."""
    generator = torch.Generator().manual_seed(tokens)
    mix = torch.randn(tokens, 24, generator=generator) * 3
    there = mix.to(FAR)
    with launching():
        both, comb = mhc._coefficients_on_device(there, 4, 20, 1e-6)
    expected = mhc.coefficients(mix.numpy(), 4, 20, 1e-6)
    assert torch.equal(both.cpu(), expected[0])
    assert torch.equal(comb.cpu(), expected[1])


def test_gate_scores_of_host_and_device_differ_by_a_last_bit_at_most():
    """NumPy rounds log1p and exp of fp32 one after the other, a device once: two roundings against one."""
    z = torch.cat([torch.linspace(-80, 90, 20001), torch.tensor([20.0, np.nextafter(np.float32(20), np.float32(30))])])
    there = z.to(FAR)
    with launching():
        far = moe.sqrt_softplus(there)
    near = moe.sqrt_softplus(z)
    apart = (far.cpu().view(torch.int32) - near.view(torch.int32)).abs()
    assert int(apart.max()) <= 1


def test_tables_of_a_device_are_those_of_the_host():
    here, there = rounding.constants(torch.device("cpu")), rounding.constants(FAR)
    for name in ("e4m3", "e8m0", "e2m1_pairs", "e2m1_code_of_double"):
        assert torch.equal(getattr(there, name).cpu().view(torch.uint8), getattr(here, name).view(torch.uint8)), name
