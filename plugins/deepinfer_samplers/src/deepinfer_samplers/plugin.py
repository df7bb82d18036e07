"""Hook implementations. The sampler itself, and with it torch, is imported when one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deepinfer_core import hookimpl
from deepinfer_core.errors import ConfigError, InvalidParameter, PluginMissing
from deepinfer_core.settings import source_text

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.interfaces import Backend, Sampler

NAME = "canonical"


@hookimpl
def deepinfer_sampler_create(
    name: str,
    params: Mapping[str, object] | None,
    vocab_size: int,
    config: EngineConfig | None,
    backend: Backend | None,
) -> Sampler:
    """The sampler ``canonical``, which takes no parameters of its own: all of them belong to the request.

    :param vocab_size: Ids ``[0, vocab_size)`` may be chosen; further columns of the logits are padding of the head.
    :raises PluginMissing: ``name`` is not a sampler of this plugin.
    :raises InvalidParameter: ``params`` holds a key, or ``vocab_size`` is not a positive integer.
    """
    if name != NAME:
        raise PluginMissing(
            f"no sampler named {name!r} in deepinfer-samplers",
            reason=f"it provides: {NAME}",
            remedy=f"use sampler {NAME!r}, or install the plugin that provides {name!r}",
        )
    if params:
        unknown = ", ".join(repr(key) for key in sorted(params))
        raise InvalidParameter(
            f"sampler {NAME!r} takes no parameters, got {unknown}",
            reason="temperature, top_p, top_k, min_p and seed belong to each request (SamplingParams)",
            remedy=f"remove {unknown} from the sampler's settings",
        )
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise InvalidParameter(
            f"vocab_size must be an integer of at least 1, got {vocab_size!r}",
            remedy="give the number of ids that the tokenizer can decode",
        )
    from deepinfer_samplers.canonical import CanonicalSampler  # imports torch: only when a sampler is made
    from deepinfer_samplers.fused import FusedOps
    from deepinfer_samplers.rows import Preparation

    if config is None or backend is None:
        return CanonicalSampler(vocab_size)
    unknown_ids = [token for token in config.decode_token_blacklist if token >= vocab_size]
    if unknown_ids:
        raise ConfigError(
            f"decode_token_blacklist names token {unknown_ids[0]}, and the vocabulary has ids 0 to {vocab_size - 1}",
            reason=f"set by {source_text('decode_token_blacklist', config.origin('decode_token_blacklist'))}",
            remedy="give ids of this model's tokenizer",
            details={"field": "decode_token_blacklist", "value": unknown_ids},
        )
    preparation = Preparation(
        vocab_size,
        blacklist=config.decode_token_blacklist,
        force_top_k=config.sampler_force_topk,
        mask=backend.ops.get("sample.mask"),
        fused=FusedOps.of(backend.ops),
    )
    return CanonicalSampler(
        vocab_size,
        num_draft=config.draft_tokens,
        is_coupled=config.verification == "coupled",
        device=str(backend.device),
        preparation=preparation,
        sum_smaller=getattr(config, "sum_smaller", False),
    )
