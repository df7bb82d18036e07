"""The golden prompts in ``released`` rounding, under emulation: the logits of ``cpu`` bit for bit, and near the golden
values as ``plugins/deepinfer_v41/tests/golden/README.md`` asks; greedy texts up to the first close step."""

import sys
from pathlib import Path

import pytest
import torch
from emulated_backend import emulated

V41 = Path(__file__).parents[2] / "deepinfer_v41" / "tests"
if not V41.is_dir():
    pytest.skip("without the sources of deepinfer-v41", allow_module_level=True)
pytest.importorskip("deepinfer_v41")
sys.path.insert(0, str(V41))

from dense_reference import DenseReference  # noqa: E402
from v41_golden import PROMPTS, sure  # noqa: E402
from v41_models import SHIPPED, make_driver, manifest, shipped_higher_ties  # noqa: E402
from v41_recording import PatchedBackend, higher_ties  # noqa: E402

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.timeout(1200)]
SPREAD = "bf16, emulated FP8 activations"


@pytest.fixture(scope="module")
def driver():
    made = emulated()
    yield lambda variant: make_driver(SHIPPED, variant, backend=PatchedBackend(made, {"index.topk": higher_ties}))
    made.close()


@pytest.fixture(scope="module")
def released(driver):
    return driver("released")


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if PROMPTS[p]["length"] <= 200])
def test_released_logits_are_those_of_cpu_and_within_the_spread(released, prompt):
    ids, spread = PROMPTS[prompt]["ids"], manifest()["spread_against_fp32_kvq"][SPREAD][prompt]
    got = released.all_logits(ids)
    assert torch.equal(got, shipped_higher_ties("released").all_logits(ids))
    oracle = DenseReference(SHIPPED, ties="higher", token_map=manifest()["engram"]["token_map"])
    want = oracle.run(ids).logits
    assert float((got - want).abs().mean()) < 2 * spread["mean_abs"]
    if PROMPTS[prompt]["length"] >= 31:
        kl = (want.softmax(-1) * (want.log_softmax(-1) - got.log_softmax(-1))).sum(-1)
        assert float(kl.mean()) < 2 * spread["mean_kl"]


def test_greedy_continuations_are_golden_up_to_the_first_close_step(driver):
    """In fp32 with the released caches: whatever the backend prepares for a device, the numbers are the golden ones."""
    texts = manifest()["texts"]
    tokens, _ = driver("kvq").greedy_batch([t["ids"] for t in texts], 64)
    for text, mine in zip(texts, tokens, strict=True):
        certain = sure(text["kvq"]["gaps"])
        assert mine[:certain] == text["kvq"]["greedy"][:certain], text["id"]
