"""Structured output of a chat: the prompt says the form, and the grammar starts where the reasoning ends."""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import evolve

from deepinfer_core.chat.options import ChatOptions
from deepinfer_core.chat.prompt import ChatPrompt
from deepinfer_core.errors import InvalidParameter
from deepinfer_core.parameters.sampling_params import SamplingParams


def response_format(params: SamplingParams, options: ChatOptions) -> Mapping[str, object] | None:
    """What the prompt says of the form of the answer: a JSON schema, which the V4.1 form has a place for.

    Raises InvalidParameter for a grammar together with tools, whose calls it would forbid.
    """
    structured = params.structured
    if structured is None:
        return None
    if options.tools and options.tool_choice != "none":
        raise InvalidParameter(
            "structured output and tools are given together",
            reason="the grammar would forbid the calls",
            remedy="leave the tools out, or set tool_choice to none",
            details={"field": "tools"},
        )
    if structured.schema_type != "json":
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(structured.schema)}}


def behind_reasoning(params: SamplingParams, prompt: ChatPrompt) -> SamplingParams:
    """``params`` whose grammar waits for the end of reasoning, unless it has a trigger of its own."""
    structured = params.structured
    if structured is None or structured.trigger_token_ids or not prompt.starts_in_reasoning:
        return params
    return params.updated({"so_args": evolve(structured, trigger_token_ids=(prompt.thinking_end_id,))})
