"""What is asked again after an interruption, and with which seeds."""

from __future__ import annotations

import itertools
from pathlib import Path

from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.seeds import sample_seed
from deepinfer_eval.asking import Ask, Asker, still_to_ask
from deepinfer_eval.dataset import read_dataset


def test_every_missing_sample_is_asked_for_once_and_no_other() -> None:
    everything = set(itertools.product(range(3), range(2)))
    for count in range(7):
        for done in itertools.combinations(sorted(everything), count):
            asks = still_to_ask(3, 2, set(done))
            asked = [(ask.item, sample) for ask in asks for sample in ask.samples]
            assert sorted([*asked, *done]) == sorted(everything)


def test_item_without_answers_is_one_prompt() -> None:
    assert still_to_ask(2, 3, {(1, 1)}) == [Ask(0, (0, 1, 2)), Ask(1, (0,)), Ask(1, (2,))]


def test_sample_asked_for_alone_has_the_seed_that_it_had_among_others(dataset: Path) -> None:
    asker = Asker(read_dataset(str(dataset)), SamplingParams(n=3), base_seed=9, template="Q: {question}\nA:")
    [together] = asker.inputs(None, [Ask(2, (0, 1, 2))])  # type: ignore[arg-type]  # a model is for chats
    alone = list(asker.inputs(None, [Ask(2, (sample,)) for sample in range(3)]))  # type: ignore[arg-type]
    assert together.prompt == "Q: def function_2(\nA:"
    assert (together.params.n, together.request_id) == (3, "f2")
    seed = together.params.seed
    assert seed is not None
    assert [item.params.seed for item in alone] == [sample_seed(seed, sample) for sample in range(3)]
    assert all(item.params.n == 1 for item in alone)
