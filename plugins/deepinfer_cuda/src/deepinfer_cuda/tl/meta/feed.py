"""Tokens and lengths of a decode step whose predecessor's results only the device knows (``spec/engine.md`` 5.4)."""

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.meta.requests import SUM_WORDS, THREADS, find_requests


@T.macro
def token_of(token, i, j, fresh, remap, sampled, drafts, results, vocab, mapped: bool, drafted: bool):
    """``token[0]``: token ``j`` of request ``i``, the sampled one first and its drafts behind it."""
    source = T.max(T.min(remap[i] if mapped else i, results - 1), 0)
    token[0] = vocab - 1
    if j == 0:
        token[0] = T.cast(sampled[source], "int32")
    if drafted and j > 0:
        token[0] = T.cast(drafts[source, j - 1], "int32")
    if token[0] < 0 or token[0] >= vocab:
        token[0] = vocab - 1
    if mapped and remap[i] < 0:
        token[0] = fresh[i, j]


CASES = [
    {"q": 1, "grams": 0, "mapped": True, "drafted": False, "judged": False, "even": True},
    {"q": 6, "grams": 4, "mapped": True, "drafted": True, "judged": True, "even": False},
    *({"q": 1, "grams": 4, "mapped": m, "drafted": False, "judged": False, "even": True} for m in (True, False)),
    *({"q": 6, "grams": 4, "mapped": m, "drafted": True, "judged": True, "even": True} for m in (True, False)),
]


@kernel(cases=CASES)
def feed_rows(
    *,
    q: int,
    grams: int,
    mapped: bool,
    drafted: bool,
    judged: bool,
    even: bool,
    sampled_type: str = "int32",
    drafts_type: str = "int32",
    accepted_type: str = "int32",
):
    """A thread a row. Arguments: tokens that the host knows int32 ``[N, q]``, rows of each request int32 ``[N]``, its
    row in the step before int32 ``[N]`` (``mapped``), that step's tokens ``[M]``, drafts ``[M, q - 1]`` (``drafted``)
    and accepted drafts ``[M]`` (``judged``), compressed ids before the current token int32 ``[N, q + grams - 2]``, the
    compressed id of each token int32, ids of the vocabulary, the id of what lies before the look-back's end, out int32
    ``[T]`` and, with ``grams``, int32 ``[T, grams]``. For an argument that an option turns off, any of that shape.

    :param even: every request has ``q`` rows.
    """
    requests, results, total, some, known, dead = T.dynamic("requests, results, total, some, known, dead")
    sources, judges, lines, history = T.dynamic("sources, judges, lines, history")

    @T.prim_func
    def feed_rows(
        fresh: T.Tensor((requests, q), "int32"),
        seqlens_q: T.Tensor((requests,), "int32"),
        remap: T.Tensor((some,), "int32"),
        sampled: T.Tensor((results,), sampled_type),
        drafts: T.Tensor((sources, max(q - 1, 1)), drafts_type),
        accepted: T.Tensor((judges,), accepted_type),
        win: T.Tensor((lines, history), "int32"),
        table: T.Tensor((known,), "int32"),
        vocab: T.int32,
        pad: T.int32,
        ids: T.Tensor((total,), "int32"),
        gram_ids: T.Tensor((dead, max(grams, 1)), "int32"),
    ):
        with T.Kernel(T.ceildiv(total, THREADS), threads=THREADS) as block:
            tx = T.get_thread_binding()
            owner = T.alloc_shared((THREADS,), "int32")
            place = T.alloc_shared((THREADS,), "int32")
            sums = T.alloc_shared((SUM_WORDS,), "int32")
            told = T.alloc_local((2,), "int32")
            token = T.alloc_local((1,), "int32")
            ended = T.alloc_var("int32", init=0)
            found = T.alloc_var("int32", init=0)
            back = T.alloc_var("int32", init=0)
            row0 = block * THREADS
            if even:
                owner[tx] = (row0 + tx) // q
                place[tx] = (row0 + tx) % q
            else:
                find_requests(seqlens_q, owner, place, seqlens_q, sums, told, requests, row0, tx, THREADS, False)
            if row0 + tx < total:
                i = T.min(T.max(owner[tx], 0), requests - 1)
                j = T.min(place[tx], q - 1)
                token_of(token, i, j, fresh, remap, sampled, drafts, results, vocab, mapped, drafted)
                ids[row0 + tx] = token[0]
                if grams > 0:
                    # Drafts that were not accepted are no history: it ends that many places earlier.
                    back = q - 1
                    if judged:
                        source = T.max(T.min(remap[i] if mapped else i, results - 1), 0)
                        taken = T.max(T.min(T.cast(accepted[source], "int32"), q - 1), 0)
                        if mapped:
                            if remap[i] >= 0:
                                back = q - 1 - taken
                        else:
                            back = q - 1 - taken
                    ended = 0
                    for r in T.unroll(grams):
                        found = -1
                        if r <= j:
                            token_of(token, i, j - r, fresh, remap, sampled, drafts, results, vocab, mapped, drafted)
                            if token[0] >= 0 and token[0] < known:
                                found = table[token[0]]
                        else:
                            found = win[i, grams - 1 + j - r + (q - 1) - back]
                        if found < 0:
                            ended = 1
                        gram_ids[row0 + tx, r] = T.if_then_else(ended == 1, pad, found)

    return feed_rows


@kernel(cases=[{"mapped": True}, {"mapped": False}])
def correct_rows(*, mapped: bool, accepted_type: str = "int32"):
    """End of each request, int32 ``[N]``, from its first position as if all drafts were accepted, its rows, its row in
    the step before (``mapped``; else any tensor) and the drafts that were accepted there."""
    requests, results, some = T.dynamic("requests, results, some")

    @T.prim_func
    def correct_rows(
        start: T.Tensor((requests,), "int32"),
        seqlens_q: T.Tensor((requests,), "int32"),
        remap: T.Tensor((some,), "int32"),
        accepted: T.Tensor((results,), accepted_type),
        num_draft: T.int32,
        out: T.Tensor((requests,), "int32"),
    ):
        with T.Kernel(T.ceildiv(requests, THREADS), threads=THREADS) as block:
            i = block * THREADS + T.get_thread_binding()
            if i < requests:
                source = remap[i] if mapped else i
                known = accepted[T.max(T.min(source, results - 1), 0)]
                rejected = num_draft - T.max(T.min(T.cast(known, "int32"), num_draft), 0)
                out[i] = start[i] + seqlens_q[i] - T.if_then_else(source >= 0, rejected, 0)

    return correct_rows
