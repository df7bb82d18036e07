"""Accepting drafts (``spec/sampling.md`` 2.7): what each row of a step gives; `outcome` says how far the drafts of a
request hold.

All but the last row of a request verify a draft; the last one gives a token of its own. With *rejection* a draft is
accepted with probability ``min(1, q / p)`` and replaced from the residual otherwise, so that tokens follow the target's
distribution q whatever the drafter's p. With *coupled* draws, and for greedy requests, the row's token does not depend
on the draft, which is accepted if it is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from deepinfer_samplers import shortcuts
from deepinfer_samplers.description import Description, describe, joined
from deepinfer_samplers.description import join as join_descriptions
from deepinfer_samplers.drafts import NO_DRAFT
from deepinfer_samplers.draw import draw
from deepinfer_samplers.filters import MASS_BITS, Distribution, mass
from deepinfer_samplers.gumbel import coupled, noise_keys
from deepinfer_samplers.hashing import FRESH, RESIDUAL, accept_keys, draw_keys, uniform
from deepinfer_samplers.parameters import StepParameters
from deepinfer_samplers.rows import ROW_NOTHING_ALLOWED, ROW_OK, Rows
from deepinfer_samplers.step_drafts import StepDrafts
from deepinfer_samplers.third_party import sample_rows

KEEP: Final = math.exp(-5e-5)
"""Share of p that the residual takes from q: it is never empty where p and q are almost equal, at the price of a total
variation below 5e-5."""


@frozen
class Choice:
    """What some rows give. Tensors lie where the logits do."""

    tokens: torch.Tensor
    """int32 ``[r]``: the draft where it is accepted, else what takes its place; 0 where the row has failed."""
    description: Description
    """What is reported of the tokens."""
    status: torch.Tensor
    """int8 ``[r]``, as `Rows.status`."""
    accepted: torch.Tensor | None
    """bool ``[r]``: the row's own verdict, before those of earlier rows; None where no row verifies."""
    chance: torch.Tensor | None
    """f32 ``[r]``: how probable it was that the draft is accepted. With coupled and greedy rows it is 0 or 1."""


def choose(
    rows: Rows,
    step: StepParameters,
    *,
    is_coupled: bool,
    proposed: torch.Tensor | None = None,
    drafts: StepDrafts | None = None,
    sum_smaller: bool = False,
) -> Choice:
    """The token of each row, accepted or drawn. Failed rows accept nothing; their tokens mean nothing.

    :param proposed: int64 ``[R]``, the draft of each row of the step, -1 for none; None where nothing is verified.
    :param drafts: Where they come from; read where a row is drawn.
    """
    device = rows.logits.device
    drawn = rows.drawn()
    tokens = rows.best.clone() if len(drawn) or step.parts else rows.best
    chance = accepted = None
    wanted = None if proposed is None else proposed[rows.at]
    index = shortcuts.places(drawn, len(rows), device) if len(drawn) else None
    chosen = None
    if len(drawn) and wanted is None and _is_all_asked(rows, step, sum_smaller):
        chosen = rows.chosen(drawn, _key_bits(rows, drawn, is_coupled=is_coupled), is_coupled=is_coupled)
    distribution = rows.distribution(drawn) if len(drawn) and chosen is None else None
    if chosen is not None:
        tokens[index] = chosen.tokens
    elif distribution is not None and (is_coupled or drafts is None or wanted is None):
        tokens[index] = _target_tokens(distribution, rows, drawn, is_coupled=is_coupled)
    if wanted is not None:
        accepted = tokens == wanted
        chance = accepted.to(torch.float32)
        if distribution is not None and drafts is not None and not is_coupled:
            verdict = _reject(distribution, rows, drawn, drafts, wanted[index])
            tokens[index], accepted[index], chance[index] = verdict
    status, lost = rows.status, rows.failed
    if step.parts:
        at, named = sample_rows(rows.logits, rows.parameters, step.parts)
        if len(at):
            place, named_tokens = shortcuts.upload(at, device), shortcuts.upload(named, device)
            tokens[place] = named_tokens.clamp(min=0)
            if accepted is not None and chance is not None and wanted is not None:
                accepted[place] = named_tokens == wanted[place]
                chance[place] = accepted[place].to(torch.float32)
            if (named < 0).any():
                failed = torch.zeros(len(rows), dtype=torch.bool, device=device)
                failed[place] = named_tokens < 0
                status = torch.where(failed & (status == ROW_OK), ROW_NOTHING_ALLOWED, status)
                lost = failed if lost is None else lost | failed
    if rows.parameters.forced is not None:
        forced = shortcuts.upload(rows.parameters.forced.astype(np.int64), device)
        tokens = torch.where(forced >= 0, forced, tokens)
        if accepted is not None and wanted is not None:
            accepted = torch.where(forced >= 0, forced == wanted, accepted)
    description = describe(rows, drawn, chosen or distribution, tokens, step, sum_smaller=sum_smaller)
    if lost is not None:
        tokens = torch.where(lost, 0, tokens)
        if accepted is not None:
            accepted &= ~lost
    return Choice(tokens.to(torch.int32), description, status.to(torch.int8), accepted, chance)


def _is_all_asked(rows: Rows, step: StepParameters, sum_smaller: bool) -> bool:
    """Whether these rows want their tokens, the log-probabilities of these, and nothing more."""
    return not (sum_smaller or step.parts or step.top is not None or rows.parameters.forced is not None)


def _key_bits(rows: Rows, drawn: npt.NDArray[np.intp], *, is_coupled: bool) -> npt.NDArray[np.int64]:
    """What keys the draw of rows that look at no draft, ``[r]``."""
    seed, position = rows.parameters.seed[drawn], rows.parameters.position[drawn]
    return noise_keys(seed, position) if is_coupled else draw_keys(seed, position, FRESH).view(np.int64)


def _target_tokens(
    distribution: Distribution, rows: Rows, drawn: npt.NDArray[np.intp], *, is_coupled: bool
) -> torch.Tensor:
    """Tokens of rows that look at no draft, int64 ``[r]``."""
    keys = shortcuts.upload(_key_bits(rows, drawn, is_coupled=is_coupled), rows.logits.device)
    return coupled(distribution, keys) if is_coupled else draw(distribution.probabilities, keys)


def _reject(
    distribution: Distribution,
    rows: Rows,
    drawn: npt.NDArray[np.intp],
    drafts: StepDrafts,
    wanted: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rejection sampling of the rows ``drawn``: tokens int64, whether the draft is it, and how probable that was."""
    device = rows.logits.device
    seed, position = rows.parameters.seed[drawn], rows.parameters.position[drawn]
    verifies = drafts.verifies[rows.at][drawn]
    keys = np.where(verifies, draw_keys(seed, position, RESIDUAL), draw_keys(seed, position, FRESH)).view(np.int64)
    accepted = torch.zeros(len(drawn), dtype=torch.bool, device=device)
    chance = torch.zeros(len(drawn), device=device)
    weights = distribution.probabilities
    some = np.flatnonzero(verifies)
    if len(some) and drafts.pool.probabilities is not None:
        at = shortcuts.upload(some, device)
        q, x = weights[at], wanted[at]
        p = drafts.pool.probabilities[shortcuts.upload(drafts.places[rows.at][drawn][some], device)]
        column = x.clamp(min=0).unsqueeze(1)
        ratio = q.gather(1, column).double() / p.gather(1, column).double()
        noise = shortcuts.upload(uniform(accept_keys(seed[some], position[some])), device)
        accepted[at] = (noise < ratio.squeeze(1)) & (x != NO_DRAFT)
        rest, left = residual(q, p)
        chance[at] = (1.0 - left).clamp_(min=0.0)
        weights = weights.index_copy(0, at, rest)
    tokens = draw(weights, shortcuts.upload(keys, device))
    return torch.where(accepted, wanted, tokens), accepted, chance


def residual(q: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``max(q - p * e**-5e-5, 0)`` of each row as a distribution, f32 ``[r, V]``, and its mass before, f32 ``[r]``.

    The mass is counted in fixed point, so that it does not depend on the order of summation. Where nothing is left,
    which rounding alone can bring about, the residual is q.
    """
    rest = (q - p * KEEP).clamp_(min=0.0)
    total = mass(rest).sum(-1)
    left = total.to(torch.float32) * 2.0**-MASS_BITS
    empty = total == 0
    rest /= left.masked_fill(empty, 1.0).unsqueeze(1)
    if not shortcuts.is_clear(empty):
        rest = torch.where(empty.unsqueeze(1), q, rest)
    return rest, left


def join(parts: Sequence[Choice], step: StepParameters, device: torch.device, *, sum_smaller: bool) -> Choice:
    """All rows of a step from its parts."""
    if len(parts) == 1:
        return parts[0]
    none = torch.zeros(0, device=device)
    accepted = [part.accepted for part in parts if part.accepted is not None]
    chance = [part.chance for part in parts if part.chance is not None]
    verifies = len(accepted) == len(parts)
    return Choice(
        joined([part.tokens for part in parts], none.to(torch.int32)),
        join_descriptions([part.description for part in parts], step, device, sum_smaller=sum_smaller),
        joined([part.status for part in parts], none.to(torch.int8)),
        joined(accepted, none.to(torch.bool)) if verifies else None,
        joined(chance, none) if verifies else None,
    )
