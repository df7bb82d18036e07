"""Which page has which type, so that signatures can link them."""

from __future__ import annotations

import re

import attrs

from deepinfer_core import interfaces, types

# The contract records that interfaces name.
RECORDS = {
    "InputMetadata": "input_metadata",
    "SamplerInputs": "sampler_inputs",
    "SamplerOutput": "sampler_output",
}
PLACES = {
    **{name: f"types.md#{name.lower()}" for name, cls in vars(types).items() if attrs.has(cls)},
    **{name: f"interfaces.md#{name.lower()}" for name in interfaces.__all__},
    **{name: f"contracts/{page}.md" for name, page in RECORDS.items()},
    "EngineConfig": "settings.md",
}


def link_types(signature: str) -> str:
    """The types of the signature that a page describes, as links, in their order."""
    names = dict.fromkeys(name for name in re.findall(r"\w+", signature) if name in PLACES)
    return ", ".join(f"[{name}]({PLACES[name]})" for name in names)
