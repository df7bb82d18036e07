"""Which calls of ``meta.feed_tokens`` the kernel takes, without a device: the others are the plain op's to refuse."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from deepinfer_core.errors import ShapeContractError  # noqa: E402


@pytest.mark.parametrize("shape", [(3, 1), (2, 4), (3,), ()])
def test_windows_that_no_gram_fits_are_refused(shape, monkeypatch):
    from deepinfer_cuda.ops import feed
    from deepinfer_cuda.ops.feed import feed_tokens

    def launched(**kw):
        raise AssertionError("the kernel was asked for")

    monkeypatch.setattr(feed, "int32", lambda x, shape: x.dtype == torch.int32 and x.shape == shape)  # on any device
    monkeypatch.setattr(feed, "feed_rows", launched)
    ints = torch.int32
    fresh, lengths, sampled = torch.zeros(3, 3, dtype=ints), torch.ones(3, dtype=ints), torch.zeros(3, dtype=ints)
    windows, table = torch.zeros(shape, dtype=ints), torch.zeros(9, dtype=ints)
    with pytest.raises(ShapeContractError):
        feed_tokens(fresh, lengths, None, sampled, 3, vocab_size=9, ngram_win=windows, ngram_table=table)
