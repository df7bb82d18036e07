"""When a field is present: the alternatives that `presence = "..."` names."""

from __future__ import annotations

from attrs import frozen

from generator.schema import Contract, Field, Schema, SchemaError


@frozen
class Alternative:
    """One way for a field to be present: in a phase ("" = both), under capabilities, perhaps optional."""

    phase: str
    caps: tuple[str, ...]
    optional: bool


def presence_of(schema: Schema, contract: Contract, f: Field) -> list[Alternative]:
    out = []
    for part in f.presence.split(" or "):
        phase, caps, optional = "", [], False
        for token in (t.strip() for t in part.split(",")):
            if token in ("prefill", "decode"):
                phase = token
            elif token == "optional":
                optional = True
            elif token.startswith("cap:") and token[4:] in schema.presence:
                caps.append(token[4:])
            elif token != "always":
                raise SchemaError(
                    f"{contract.file}.toml: {f.name}: presence {token!r}; known: always, prefill, decode, optional, "
                    + ", ".join(f"cap:{c}" for c in schema.presence)
                )
        if phase and not contract.phase_rule:
            raise SchemaError(
                f"{contract.file}.toml: {f.name}: presence by phase, but the contract has no prefill_when"
            )
        out.append(Alternative(phase, tuple(caps), optional))
    return out
