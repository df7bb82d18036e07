"""The logits filter ``top_n_sigma``: keep what stands out of the row (Tang et al. 2024, "Top-nσ: Not All Logits Are You
Need").

Most logits of a row are noise of about one normal distribution, and the few tokens that make sense lie far above it. So
the limit is a distance from the largest logit, in standard deviations of the row. Dividing by a temperature changes
maximum and deviation alike: which tokens are kept does not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_core.errors import InvalidParameter


class TopNSigma:
    """Implements `deepinfer_core.interfaces.LogitsFilter`. Keeps nothing of any request.

    :param n: Standard deviations below the row's largest logit that a token may be. A request brings it, so it may be
        anything.
    :raises InvalidParameter: ``n`` is not a finite number above 0.
    """

    def __init__(self, n: Any = 1.0) -> None:
        is_number = isinstance(n, int | float) and not isinstance(n, bool)
        if not is_number or not 0 < n <= sys.float_info.max:
            raise InvalidParameter(
                f"n of logits filter 'top_n_sigma' must be a finite number above 0, got {n!r}",
                reason="it is a distance from the largest logit, in standard deviations of the row",
                remedy="give 1.0, or leave it out; more keeps more tokens",
                details={"field": "n", "value": n},
            )
        self.n = float(n)

    def apply(self, logits: npt.NDArray[np.float32], positions: Sequence[int]) -> npt.NDArray[np.float32]:
        """-inf, in place, for every logit below ``max - n * sigma`` of its row. An equal one stays, and so the largest.

        :param logits: f32 ``[rows, vocab_size]``. Mean and population deviation are of the finite logits of a row, in
            float64: they are what is left of biases, penalties and filters before.
        :param positions: Not used.
        """
        # One row at a time: the order in which numpy sums must not depend on how many rows there are.
        for row in logits:
            wide = row.astype(np.float64)
            finite = wide[np.isfinite(wide)]
            if not finite.size:
                continue  # nothing may be chosen here, which is for the sampler to say
            with np.errstate(over="ignore"):  # a limit of -inf keeps all
                limit = finite.max() - np.float64(self.n) * finite.std()
            row[wide < limit] = -np.inf
        return logits
