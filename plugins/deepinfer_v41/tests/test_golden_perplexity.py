"""Perplexity of the golden text: rows of 511 tokens, each after one BOS, scored independently."""

from __future__ import annotations

import functools

import pytest
from v41_models import manifest
from v41_perplexity import ROW, first_tokens, row_nll, rows, weighted


@functools.cache
def all_rows(variant: str) -> list[float]:
    return [nll for i in range(0, len(rows()), 8) for nll in row_nll(variant, rows()[i : i + 8])]


def test_text_splits_into_the_stored_tokens():
    assert sum(len(r) - 1 for r in rows()) == manifest()["perplexity"]["kvq"]["tokens"]
    assert len(rows()) == len(manifest()["perplexity"]["kvq"]["row_nll"])


@pytest.mark.parametrize("variant", ["plain", "kvq"])
def test_first_rows_have_the_stored_perplexity(variant):
    got = row_nll(variant, rows()[:4])
    want = manifest()["perplexity"][variant]["row_nll"][:4]
    assert weighted(got, [ROW] * 4) == pytest.approx(weighted(want, [ROW] * 4), rel=2e-3 if variant == "kvq" else 1e-4)


def test_released_first_rows_stay_near_the_exact_ones():
    """Rounding costs well under 2 % of perplexity on these rows; a wrong scale or a lost row costs far more."""
    got = weighted(row_nll("released", rows()[:4]), [ROW] * 4)
    assert got == pytest.approx(weighted(manifest()["perplexity"]["kvq"]["row_nll"][:4], [ROW] * 4), rel=2e-2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", ["plain", "kvq"])
def test_whole_text_has_the_stored_perplexity(variant):
    got = weighted(all_rows(variant), [len(r) - 1 for r in rows()])
    print(f"perplexity {variant}: {got:.4f}")
    assert got == pytest.approx(manifest()["perplexity"][variant]["perplexity"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_released_perplexity_of_the_first_16384_tokens():
    want = manifest()["spread_against_fp32_kvq"]["bf16, emulated FP8 activations"]
    got = first_tokens("released", 16384)
    print(f"perplexity released: {got:.4f}")
    assert abs(got - want["perplexity of the first 16384 tokens"]) < 0.05
