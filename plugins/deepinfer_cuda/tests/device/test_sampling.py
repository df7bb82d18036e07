"""Kernels of the sampler on a device: what the steps of the canonical sampler give there, bit for bit."""

import math
from types import SimpleNamespace

import pytest
import torch

from deepinfer_cuda.ops import sampling

filters = pytest.importorskip("deepinfer_samplers.filters", reason="compared with the steps of deepinfer-samplers")
steps_draw = pytest.importorskip("deepinfer_samplers.draw").draw
coupled = pytest.importorskip("deepinfer_samplers.gumbel").coupled
draw_keys = pytest.importorskip("deepinfer_samplers.hashing").draw_keys

pytestmark = pytest.mark.cuda
KINDS = {
    "spread": lambda x: x * 2,
    "peaked": lambda x: x * 8,
    "flat": lambda x: x * 0.01,  # more neighbours in a bucket than are listed
    "equal": torch.zeros_like,
    "few values": lambda x: (x * 2).round(),
    "masked": lambda x: x.masked_fill(x < 1.0, -math.inf).index_fill(1, torch.tensor([0], device=x.device), 0.5),
}


def random_rows(seed, rows, width, device, kind="spread"):
    print("seed", seed)
    return KINDS[kind](torch.randn(rows, width, generator=torch.Generator(device).manual_seed(seed), device=device))


def parameters(width, device):
    def column(values, dtype):
        return torch.tensor(values, dtype=dtype, device=device)

    top_p = [1.0, 0.95, 0.5, 0.95, 1.0, 0.9, 0.0, 1.0, 0.3, 0.99, 0.95, 0.999]
    top_k = [width, width, width, 50, 1, 7, width, 1000, width, width, 20, width]
    return SimpleNamespace(
        temperature=column([1.0, 0.7, 1.5, 0.3] * 3, torch.float32),
        min_p=column([0, 0, 0.05, 0, 0, 0.01, 0, 0, 0, 0, 0, 0.2], torch.float32),
        top_p=column([int(p * 2**31) for p in top_p], torch.int64),
        top_k=column([min(k, width) for k in top_k], torch.int64),
    )


@pytest.mark.parametrize("width", [1, 5, 1527, 1536, 129280])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_coupled", [False, True], ids=["drawn", "coupled"])
def test_choose_gives_tokens_and_logprobs_of_the_steps(cuda, kind, width, is_coupled):
    logits, params = random_rows(7, 12, width, cuda, kind), parameters(width, cuda)
    keys = torch.randint(-(2**63), 2**63 - 1, (12,), dtype=torch.int64, device=cuda)
    ids, peaks = sampling.best(logits)
    assert torch.equal(ids, logits.argmax(1))
    got = sampling.choose(logits, peaks, params, keys, coupled=is_coupled)
    every = filters.Filters(params.temperature, params.min_p, torch.arange(12, device=cuda), params.top_p, params.top_k)
    distribution = filters.process(logits, peaks, every)
    tokens = coupled(distribution, keys) if is_coupled else steps_draw(distribution.probabilities, keys)
    assert torch.equal(got[0], tokens)
    assert torch.equal(got[1], distribution.logprobs(tokens))


@pytest.mark.parametrize("width", [3, 1527, 129280])
def test_draw_gives_the_token_of_equal_weights(cuda, width):
    logprobs = torch.log_softmax(random_rows(11, 9, width, cuda), 1)
    logprobs[3], logprobs[4], logprobs[5] = -40.0, math.nan, -math.inf
    logprobs[5, width // 2] = 0.0
    seeds = torch.randint(-(2**63), 2**63 - 1, (9,), dtype=torch.int64, device=cuda)
    positions = torch.arange(9, dtype=torch.int32, device=cuda) * 1013
    for case in (0, 1, 4):
        keys = draw_keys(seeds.cpu().numpy(), positions.cpu().numpy(), case).view("int64")
        wanted = steps_draw(logprobs.exp().nan_to_num(0.0), torch.from_numpy(keys).to(cuda))
        assert torch.equal(sampling.draw(logprobs, seeds, positions, case=case).long(), wanted), case


def test_a_token_does_not_depend_on_rows_around_it_or_on_where_they_lie(cuda):
    wide = random_rows(13, 12, 1540, cuda)
    params, keys = parameters(1536, cuda), torch.arange(12, device=cuda) * 0x123456789ABCDEF
    inside, apart = wide[:, :1536], wide[:, :1536].clone()  # rows at a stride, and their own memory
    odd = torch.empty(12 * 1537 + 1, device=cuda)[1:].view(12, 1537)[:, :1536]  # rows that begin anywhere
    odd.copy_(inside)
    results = [sampling.choose(x, sampling.best(x)[1], params, keys) for x in (inside, apart, odd)]
    for tokens, logprobs in results[1:]:
        assert torch.equal(tokens, results[0][0])
        assert torch.equal(logprobs, results[0][1])
    for row in range(12):
        one = SimpleNamespace(**{name: value[row : row + 1] for name, value in vars(params).items()})
        alone = apart[row : row + 1]
        tokens, logprobs = sampling.choose(alone, sampling.best(alone)[1], one, keys[row : row + 1])
        assert (tokens.item(), logprobs.item()) == (results[0][0][row].item(), results[0][1][row].item())


@pytest.mark.parametrize("is_coupled", [False, True], ids=["drawn", "coupled"])
def test_a_token_does_not_depend_on_how_many_blocks_its_row_has(cuda, is_coupled):
    rows, width = 140, 129280
    logits = random_rows(19, rows, width, cuda)
    logits[5], logits[30] = 0.0, logits[30] * 0.01  # rows that fill no list
    few = parameters(width, cuda)
    params = SimpleNamespace(**{name: value.repeat(12)[:rows] for name, value in vars(few).items()})
    keys, peaks = torch.arange(rows, device=cuda) * 0x123456789ABCDEF, sampling.best(logits)[1]
    wanted = sampling.choose(logits, peaks, params, keys, coupled=is_coupled)
    for n in (1, 16, 33, 66, 132):  # 8, 8, 4, 2 blocks, and one of more threads
        part = SimpleNamespace(**{name: value[:n] for name, value in vars(params).items()})
        tokens, logprobs = sampling.choose(logits[:n], peaks[:n], part, keys[:n], coupled=is_coupled)
        assert torch.equal(tokens, wanted[0][:n])
        assert torch.equal(logprobs, wanted[1][:n])


def test_ops_of_the_sampler_are_captured_and_replayed(cuda):
    logits, params = random_rows(17, 12, 1536, cuda), parameters(1536, cuda)
    keys = torch.arange(12, device=cuda)
    sampling.choose(logits, sampling.best(logits)[1], params, keys)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = sampling.choose(logits, sampling.best(logits)[1], params, keys)
    logits.copy_(random_rows(18, 12, 1536, cuda))
    graph.replay()
    assert torch.equal(tokens, sampling.choose(logits, sampling.best(logits)[1], params, keys)[0])
