"""What is still to be asked, and how: an item's question as a prompt, its samples, their seeds.

The seed of an answer depends on the base seed, the place of its item and the number of its sample alone, so that a run
that goes on draws what it would have drawn without the interruption.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from deepinfer_core.errors import DeepInferError
from deepinfer_core.requests.prompts import PromptInput
from deepinfer_core.requests.seeds import request_seed, sample_seed
from deepinfer_eval.dataset import Dataset, Item

if TYPE_CHECKING:
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.llm import LLM
    from deepinfer_core.parameters.sampling_params import SamplingParams

PLACE = "{question}"
"""Where the question stands in a template."""


@frozen
class Ask:
    """One prompt of the engine: samples of one item."""

    item: int
    samples: tuple[int, ...]


def still_to_ask(items: int, samples: int, done: Set[tuple[int, int]]) -> list[Ask]:
    """All samples of an item without any answer as one prompt, which is computed once; missing ones of others apart."""
    asks: list[Ask] = []
    for item in range(items):
        missing = tuple(sample for sample in range(samples) if (item, sample) not in done)
        if len(missing) == samples:
            asks.append(Ask(item, missing))
        else:
            asks += (Ask(item, (sample,)) for sample in missing)
    return asks


@frozen
class Asker:
    """Makes the engine's inputs."""

    dataset: Dataset
    params: SamplingParams
    """Of all; with the number of samples as ``n``."""
    base_seed: int
    template: str = PLACE
    chat: ChatOptions | None = None
    """None: the question is a prompt as it stands."""
    has_limit: bool = True
    """Whether ``max_tokens`` was given; a chat has a default of its own."""

    def inputs(self, llm: LLM, asks: list[Ask]) -> Iterator[PromptInput]:
        """One input for each of ``asks``, in order; made when its turn comes."""
        for ask in asks:
            item = self.dataset.items[ask.item]
            seed = request_seed(self.base_seed, ask.item)
            if len(ask.samples) < self.params.n:
                seed = sample_seed(seed, ask.samples[0])
            params = evolve(self.params, n=len(ask.samples), seed=seed)
            try:
                yield self._input(llm, item, params)
            except DeepInferError as err:
                yield PromptInput(None, params, item.item_id, item.line, err)

    def _input(self, llm: LLM, item: Item, params: SamplingParams) -> PromptInput:
        text = self.template.replace(PLACE, item.question)
        if self.chat is None:
            return PromptInput(text, params, item.item_id, item.line)
        from deepinfer_core.chat.conversation import Conversation

        conversation = Conversation([{"role": "user", "content": text}], self.chat)
        prompt, params = llm.encode_chat(conversation, params)
        if not self.has_limit:
            params = evolve(params, max_tokens=prompt.default_max_tokens)
        return PromptInput(
            prompt.token_ids, params, item.item_id, item.line, chat=prompt, stops_between=prompt.stops_between
        )
