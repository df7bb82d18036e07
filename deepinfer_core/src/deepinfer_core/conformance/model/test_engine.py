"""The model in an engine: scheduler, packer and sampler of the real thing (``spec/engine.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model.rig import Rig
from deepinfer_core.conformance.part import Part, settings
from deepinfer_core.errors import DeepInferError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.plugins.manager import PluginManager

pytestmark = pytest.mark.level("core")
SAMPLER = "canonical"
TOKENS = 6


@pytest.fixture(scope="module")
def llm(part: Part, checkpoint: Path, rig: Rig) -> Iterator[LLM]:
    """An engine of the model that takes prompts as long as those of the rig."""
    from deepinfer_core.assembly.assemble import assemble

    if part.manager.registry.find("sampler", SAMPLER) is None:
        pytest.skip(f"sampler {SAMPLER!r} is not installed: pip install deepinfer-samplers")
    if not (checkpoint / "tokenizer.json").is_file():
        pytest.skip("the checkpoint has no tokenizer.json, without which there is no engine")
    config = settings(
        model=str(checkpoint),
        model_plugin=part.owner.name,
        backend=part.backend_name,
        max_model_len=rig.max_len,
        max_num_seqs=8,
        validation="full",
    )
    made = LLM.from_assembly(assemble(config, announce=None, manager=PluginManager.from_config(config)))
    yield made
    made.close()


def greedy(rig: Rig, tokens: list[int], known: int) -> list[int]:
    """The best tokens one after the other, without an engine."""
    text = rig.open(tokens, room=TOKENS + 1)
    row = rig.prefill(text, len(tokens))[-1][-1]
    out = [int(row[:known].argmax())]
    while len(out) < TOKENS:
        text.tokens.append(out[-1])
        row = rig.run([(text, 1)], prompt=False)[0]
        out.append(int(row[:known].argmax()))
    rig.close(text)
    return out


def prompts_of(rig: Rig, llm: LLM) -> list[list[int]]:
    known = min(rig.vocab_size, llm.get_tokenizer().vocab_size)
    lengths = (1, 2, rig.block_size, rig.block_size + 1, 2 * rig.block_size + 3, 7)
    return [[token % known for token in rig.prompt(n, seed=60 + n)] for n in lengths]


def test_engine_says_what_the_model_says_step_by_step(llm: LLM, rig: Rig) -> None:
    """All prompts in one engine, each against its own greedy run."""
    prompts = prompts_of(rig, llm)
    known = min(rig.vocab_size, llm.get_tokenizer().vocab_size)
    want = [greedy(rig, tokens, known) for tokens in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    for _ in range(2):
        outputs = llm.generate(prompts, params)
        for i, output in enumerate(outputs):
            require(output.error is None, "a request failed in the engine", request=i, got=output.error)
            require_equal(list(output.token_ids), want[i], "in the engine the model says something else", request=i)


@pytest.mark.parametrize("case", ["beyond the vocabulary", "too long", "negative"])
def test_prompt_that_cannot_run_ends_with_a_typed_error_and_the_others_go_on(llm: LLM, rig: Rig, case: str) -> None:
    good = prompts_of(rig, llm)[1]
    bad = {
        "beyond the vocabulary": [1, rig.model.vocab_size],
        "too long": [1] * (rig.max_len + 1),
        "negative": [1, -1],
    }[case]
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    alone = llm.generate([good], params)[0]
    outputs: list[Any] = llm.generate([good, bad, good], params)
    require(isinstance(outputs[1].error, DeepInferError), "a bad prompt has no typed error", got=repr(outputs[1].error))
    for output in (outputs[0], outputs[2]):
        require_equal(output.token_ids, alone.token_ids, "a bad prompt changed the answer to another one")


def test_check_of_prompts_takes_good_ones_and_raises_typed_errors_only(rig: Rig) -> None:
    check = getattr(rig.model, "check_prompt", None)
    if check is None:
        pytest.skip("it has no check_prompt, which may be left out")
    check(())
    for tokens in ([rig.vocab_size - 1], list(range(min(rig.vocab_size, 4096)))):
        try:
            check(tuple(tokens))
        except DeepInferError as error:
            require(error.what, "an error without a text")
