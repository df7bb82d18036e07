"""Run by ``test_npu_device.py``: the backend on the fake device, and what it did, as JSON."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import fake_torch_npu  # noqa: E402
from emulated_backend import K, T, fp4_weight, fp8_weight, plain, rows  # noqa: E402

from deepinfer_ascend import backend as backend_module  # noqa: E402
from deepinfer_ascend.chip import VECTOR_CORES  # noqa: E402
from deepinfer_ascend.jit import hosted  # noqa: E402
from deepinfer_ascend.jit.lowering import lowered  # noqa: E402
from deepinfer_core.assembly import assemble  # noqa: E402
from deepinfer_core.config import EngineConfig  # noqa: E402
from deepinfer_core.llm import LLM  # noqa: E402
from deepinfer_core.parameters.sampling_params import SamplingParams  # noqa: E402
from deepinfer_core.plugins.selection import Selection  # noqa: E402
from deepinfer_core.types import CacheLayer, CacheSpec  # noqa: E402

doubles = {}
"""Op -> fp64 tensors that it made on the device."""


def counting(device):
    """Backends whose ops count them."""
    build = backend_module.build_backend

    def wrapped(op, call):
        def counted(*args, **kwargs):
            before = device.doubles()
            result = call(*args, **kwargs)
            if device.doubles() > before:
                doubles[op] = doubles.get(op, 0) + device.doubles() - before
            return result

        return counted

    def made(name, ops, **options):
        return build(name, {op: wrapped(op, call) for op, call in ops.items()}, **options)

    backend_module.build_backend = made


def kernel_sizes():
    """Ops at sizes that kernels take: greatest difference to ``cpu`` of each."""
    npu, cpu = backend_module.create("npu:0", EngineConfig(backend="ascend")), plain()
    found = {}

    def compare(name, call):
        mine, wanted = call(npu, lambda t: t.to("npu")), call(cpu, lambda t: t)
        found[name] = float((mine.cpu().float() - wanted.float()).abs().nan_to_num(0.0).max())

    def product(make):
        def call(which, put):
            w = which.quant.prepare_weight("w", *(put(t) for t in make()))
            return which.gemm.dense(which.quant.cast_per_token(put(rows(T, K))), w)

        return call

    def attention(extra):
        def call(which, put):
            specs = [CacheSpec("swa", "swa", [CacheLayer(0, 134, "v41", 512)])]
            specs += [CacheSpec("main", "main", [CacheLayer(0, 64, extra, 512)])]
            caches = which.cache.alloc(specs, {"swa": 2, "main": 3})
            window, main = (which.cache.view(caches, name, 0) for name in ("swa", "main"))
            which.cache.store(put(rows(200, 512)), window, put(torch.arange(200, dtype=torch.int32)))
            which.cache.store(put(rows(150, 512, seed=6)), main, put(torch.arange(150, dtype=torch.int32)))
            idx = put((torch.arange(T * 33, dtype=torch.int32) % 200).view(T, 33))
            return which.attn.sparse_decode(
                put(rows(T, 12, 512)), window, idx, scale=0.04, extra=main, extra_idx=idx // 2
            )[0]

        return call

    def scores(which, put):
        specs = [CacheSpec("index", "index", [CacheLayer(0, 64, "index_fp4", 128)])]
        view = which.cache.view(which.cache.alloc(specs, {"index": 3}), "index", 0)
        which.cache.store(put(rows(192, 128)), view, put(torch.arange(192, dtype=torch.int32)))
        q = which.quant.cast_per_token(put(rows(T, 32, 128, seed=9)), fmt="e2m1")
        lens, table = torch.tensor([1, 64, 100, 7, 130]), torch.tensor([[0, 1, 2]] * T)
        found = which.index.logits(
            q, put(torch.ones(T, 32)), view, context_lens=put(lens.int()), block_table=put(table.int()), max_k=130
        )
        return which.index.topk(found.bfloat16(), 16, end=put(lens.int()))

    def experts(which, put):
        up, down = ([fp8_weight(n, k, s + i) for i in range(3)] for n, k, s in ((512, K, 10), (K, 256, 20)))
        w1, w2 = (
            which.quant.prepare_weight("w", [put(w) for w, _ in e], [put(s) for _, s in e], use="experts")
            for e in (up, down)
        )
        idx, weight = torch.tensor([[0, 2], [2, 0], [-1, -1], [2, 0], [0, 2]]), torch.full((T, 2), 0.5)
        d = which.moe.dispatch(which.quant.cast_per_token(put(rows(T, K))), put(idx), put(weight))
        return which.moe.combine(which.moe.experts(d, w1, w2, clamp=10.0), d.handle)

    compare("fp8 product", product(fp8_weight))
    compare("fp4 product", product(fp4_weight))
    for extra in ("v41", "v41_fp4"):
        compare(f"attention, {extra}", attention(extra))
    compare("selection", scores)
    compare("experts", experts)
    npu.close()
    return found


def kernels_of_ours(device):
    """Ops that our kernels serve, on the device: what those are compiled to is stood for by their lowered source, which
    shares the device's memory. Greatest difference to the same kernels on the host."""
    ran, found = [], {}

    def compiled(name, sizes):
        def launch(**given):
            ran.append(name)
            there = {k: device.on_host(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
            hosted.run(lowered(name, **sizes), VECTOR_CORES, **there)

        return launch

    hosted.compiled = compiled
    backend_module.wanted_on_device = lambda: True
    npu = backend_module.create("npu:0", EngineConfig(backend="ascend"))
    backend_module.wanted_on_device = lambda: False
    os.environ["DEEPINFER_ASCEND_LOWERED"] = "1"
    host = backend_module.create(None, EngineConfig(backend="ascend", emulate=True))
    del os.environ["DEEPINFER_ASCEND_LOWERED"]
    pairs = torch.tensor([[3, 4], [0, 0]], dtype=torch.int32)
    for name, call in {
        "norm.rms": lambda which, put: which.norm.rms(put(rows(T, 64)), put(rows(64)).float(), eps=1e-6)[0],
        "meta.window_index_decode": lambda which, put: which.meta.window_index_decode(put(pairs), 8, 32),
    }.items():
        mine, wanted = call(npu, lambda t: t.to("npu")), call(host, lambda t: t)
        found[name] = float((mine.cpu().float() - wanted.float()).abs().max()) if mine.device.type == "npu" else None
    npu.close()
    host.close()
    return {"differences": found, "ran": ran}


def generate(backend):
    with LLM(backend=backend, graphs=False, kv_memory="64MiB") as llm:
        [output] = llm.generate("import os", SamplingParams(temperature=0.0, max_tokens=12))
        return list(output.token_ids)


def main():
    device = load("fake_npu", [str(HERE / "fake_npu.cpp")], extra_cflags=["-O0", "-w"], build_directory=sys.argv[1])
    fake_torch_npu.start(device)
    counting(device)
    report = {"differences": kernel_sizes(), "calls": sorted(set(fake_torch_npu.calls))}
    wanted = generate("cpu")
    assemble.select_backend = lambda manager, needs: Selection(manager.require("backend", "ascend"), "backend: ascend")
    found = generate("ascend")
    report["kernels"] = kernels_of_ours(device)
    report["copies"] = len(fake_torch_npu.copied)
    report |= {"tokens": found, "tokens of cpu": wanted, "doubles": dict(sorted(doubles.items()))}
    Path(sys.argv[2]).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
