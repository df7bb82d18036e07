"""The slow plain versions: Python integers for the hash and the draw, double precision for the filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed: int, pos: int, case: int) -> int:
    if case >= 3:
        return key(mix(seed ^ case), pos, 0)
    s = ((3 * pos + case) * GAMMA) & MASK
    return mix((seed + (s ^ ((s << 13) & MASK))) & MASK)


def accept(seed: int, pos: int) -> int:
    return mix(seed ^ (((3 * pos + 2) * GAMMA) & MASK))


def target(h: int, total: int) -> int:
    return (h * total) >> 64


def draw(weights: Sequence[int], h: int) -> int:
    """The lowest id whose inclusive sum exceeds the target; -1 if every weight is 0."""
    r, inclusive = target(h, sum(weights)), 0
    for token, weight in enumerate(weights):
        inclusive += weight
        if inclusive > r:
            return token
    return -1


def ranking(logits: Sequence[float]) -> list[int]:
    """Ids from the best to the worst; equal logits (+0 and -0 too) by the lower id."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def kept(
    logits: Sequence[float], temperature: float, min_p: float, top_p: float, top_k: int, slack: float = 0.0
) -> list[int]:
    """Surviving ids in rank order. ``slack`` moves the thresholds of mass, to find how far a result may differ."""
    order = ranking(logits)
    best = logits[order[0]]
    mass = {token: math.exp((logits[token] - best) / temperature) for token in order}
    order = [token for token in order if mass[token] >= min_p * (1 - slack)]
    total = math.fsum(mass[token] for token in order)
    survivors, before = [], 0.0
    for token in order:
        if survivors and top_p < 1.0 and before / total > top_p + slack:
            break
        survivors.append(token)
        before += mass[token]
    return survivors[:top_k] if top_k > 0 else survivors


def probabilities(logits: Sequence[float], temperature: float, survivors: Sequence[int]) -> list[float]:
    best = max(logits[token] for token in survivors)
    mass = [0.0] * len(logits)
    for token in survivors:
        mass[token] = math.exp((logits[token] - best) / temperature)
    total = math.fsum(mass)
    return [m / total for m in mass]


def gumbel_best(p: Sequence[float], h: int) -> int:
    """The token with the highest log-probability plus noise, the lowest id on ties."""

    def score(token: int) -> float:
        u = ((mix((h + token * GAMMA) & MASK) >> 40) + 0.5) * 2.0**-24
        return math.log(p[token]) - math.log(-math.log(u))

    return max((token for token in range(len(p)) if p[token] > 0), key=lambda token: (score(token), -token))


def verify(
    target: Sequence[float],
    drafter: Sequence[float] | None,
    draft: int,
    *,
    seed: int,
    position: int,
    temperature: float,
    is_coupled: bool,
) -> tuple[bool, int]:
    """Whether a row accepts ``draft``, and its token. ``drafter`` None: the row verifies nothing."""
    if temperature < 1e-5:
        token = ranking(target)[0]
        return drafter is not None and token == draft, token
    everything = range(len(target))
    q = probabilities(target, temperature, everything)
    if is_coupled:
        token = gumbel_best(q, key(seed, position, 3))
        return drafter is not None and token == draft, token
    if drafter is None:
        return False, draw([int(x * 2**31) for x in q], key(seed, position, 0))
    p = probabilities(drafter, temperature, everything)
    if (accept(seed, position) >> 11) * 2.0**-53 < q[draft] / p[draft]:
        return True, draft
    rest = [max(a - b * math.exp(-5e-5), 0.0) for a, b in zip(q, p, strict=True)]
    left = math.fsum(rest)
    return False, draw([int(x / left * 2**31) for x in rest], key(seed, position, 1))


def penalised(
    logits: Sequence[float],
    prompt: Sequence[int],
    outputs: Sequence[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    """Logits after the penalties, from the plain lists of tokens."""
    changed = []
    for token, logit in enumerate(logits):
        count = list(outputs).count(token)
        if count or token in prompt:
            logit = logit / repetition if logit > 0 else logit * repetition
        changed.append(logit - frequency * count - (presence if count else 0.0))
    return changed


def words(allowed: Sequence[int], n_words: int) -> list[int]:
    """A grammar mask as signed 32-bit words, least significant bit first."""
    bits = [0] * n_words
    for token in allowed:
        bits[token // 32] |= 1 << (token % 32)
    return [word - 2**32 if word >= 2**31 else word for word in bits]
