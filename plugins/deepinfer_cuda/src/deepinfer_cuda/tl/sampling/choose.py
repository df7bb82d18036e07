"""A token of each row, drawn from the distribution that min-p, top-p and top-k leave (``spec/sampling.md`` 2.2, 2.5).

A block a row, and nothing of the row is written unless its log-probabilities are asked for. Masses and weights are
integers, so every sum has one value whatever the order, and the result is that of sorting the row. In passes over it:

1. the mass of all tokens, and for rows with top-p or top-k a histogram over the scaled logit, 64 buckets to a factor of
   e: the bucket that holds the last token to stay is found by its running sums;
2. that bucket's tokens are sorted in shared memory, and the last one to stay is found exactly, the lowest ids first
   among equals. Should they not fit, a search by bits reads the row again and again: slow, right, and rare;
3. the weights of what stays, summed by each warp over a stretch of the row of its own, and the drawn token within the
   stretch that it falls into. With coupled noise: the best token after noise instead. Or the log-probabilities.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.sampling.block import BUCKETS, LISTED, Block
from deepinfer_cuda.tl.sampling.cut import add_up, find_bucket, list_bucket, search_bits, sort_bucket
from deepinfer_cuda.tl.sampling.parts import of_part
from deepinfer_cuda.tl.sampling.results import draw_token, take_noisiest, write_logprobs
from deepinfer_cuda.tl.sampling.rows import ROWS, WARP, pure

NO_LIMIT = 1 << 31
"""``top_p`` of a row without one."""
DRAW, NOISE, ALL = "draw", "noise", "all"
"""What a launch gives: the canonical draw, the best token after coupled noise, or all log-probabilities."""
CASES = [
    *(
        {"width": 129280, "vector": 4, "result": r, "threads": 1024, "parts": p}
        for r in (DRAW, NOISE)
        for p in (8, 4, 2, 1)
    ),
    *({"width": 129280, "vector": 4, "result": r, "threads": 512, "parts": 1} for r in (DRAW, NOISE, ALL)),
    *(
        {"width": width, "vector": vector, "result": result, "threads": 512 if result == ALL else 1024, "parts": 1}
        for result in (DRAW, NOISE, ALL)
        for width, vector in ((1536, 4), (1527, 1))
    ),
]


@kernel(cases=CASES)
def choose(*, width: int, vector: int, result: str, threads: int, parts: int) -> Any:
    """``vector``: values read at once; 4 needs a width that is a multiple, and rows at multiples of 16 bytes.

    With ``all``, ``logprobs`` is ``[rows, width]`` and ``tokens`` is not written.

    :param parts: blocks of threads a row, 1 to 8.
    """
    rows, stride = T.dynamic("rows"), T.dynamic("stride")
    warps = threads // WARP
    chunk = WARP * vector
    turns = -(-width // (parts * warps * chunk))
    each = BUCKETS // threads
    told = (rows, width) if result == ALL else (rows,)

    @T.prim_func
    def choose(
        logits: T.StridedTensor((rows, width), (stride, 1), "float32"),
        peaks: T.Tensor((rows,), "float32"),
        temperature: T.Tensor((rows,), "float32"),
        min_p: T.Tensor((rows,), "float32"),
        top_p: T.Tensor((rows,), "int64"),
        top_k: T.Tensor((rows,), "int64"),
        keys: T.Tensor((rows,), "int64"),
        tokens: T.Tensor((rows,), "int64"),
        logprobs: T.Tensor(told, "float32"),
    ):
        with T.Kernel(rows * parts, threads=threads, prelude=ROWS, cluster_dims=parts if parts > 1 else None) as block:
            T.annotate_min_blocks_per_sm(1024 // threads)
            T.pdl_sync()  # a kernel of clusters is launched before the one ahead of it is done, always
            thread = T.get_thread_binding()
            warp = thread // WARP
            lane = thread % WARP
            row = block // parts
            rank = block % parts
            first = (rank * warps + warp) * (turns * chunk) + lane * vector  # of the stretch that this warp reads

            values = T.alloc_local((vector,), "float32")
            own = T.alloc_local((vector,), "uint32")
            steps = T.alloc_shared((warps * turns,), "uint32")  # weight of each of a warp's turns
            tally = T.alloc_shared((BUCKETS,), "uint32")
            masses = T.alloc_shared((2 * BUCKETS,), "uint32")  # low words, then high words
            listed = T.alloc_shared((LISTED,), "uint64")
            sums = T.alloc_shared((warps,), "int64")
            counts = T.alloc_shared((warps,), "int64")
            held = T.alloc_local((each,), "int64")  # tokens and mass of a thread's buckets
            weight = T.alloc_local((each,), "int64")
            found = T.alloc_shared((4,), "int64")  # bucket, tokens before it, mass before it, tokens listed
            last = T.alloc_shared((2,), "uint64")  # rank of the last token to stay, mass up to it
            gross = T.alloc_shared((1,), "int64")
            total = T.alloc_local((1,), "int64")
            part = T.alloc_local((1,), "int64")
            number = T.alloc_local((1,), "int64")
            before = T.alloc_local((2,), "int64")  # tokens and mass before what is looked at
            cut = T.alloc_local((1,), "uint64")
            edge = T.alloc_local((1,), "float32")  # value and id of the last token to stay
            edge_id = T.alloc_local((1,), "int32")
            light = T.alloc_local((1,), "uint32")  # weights of a row are less than 2^32 together
            size = T.alloc_local((1,), "int32")
            swapped = T.alloc_local((2,), "uint64")
            best = T.alloc_local((2,), "uint64")

            peak = peaks[row]
            heat = temperature[row]
            cold = pure("float32", "__frcp_rn", heat)
            least = min_p[row]
            room = top_k[row]
            ordered = (top_p[row] < T.int64(NO_LIMIT)) or (room < T.int64(width))
            b = Block(
                width=width, vector=vector, parts=parts, threads=threads, warps=warps, turns=turns, chunk=chunk,
                each=each, logits=logits, keys=keys, tokens=tokens, logprobs=logprobs, thread=thread, warp=warp,
                lane=lane, row=row, rank=rank, first=first, peak=peak, heat=heat, cold=cold, least=least,
                room=room, values=values, own=own, steps=steps, tally=tally, masses=masses, listed=listed,
                sums=sums, counts=counts, held=held, weight=weight, found=found, last=last, gross=gross,
                total=total, part=part, number=number, before=before, cut=cut, edge=edge, edge_id=edge_id,
                light=light, size=size, swapped=swapped, best=best,
            )  # fmt: skip

            # 1. The mass of the row, and where it lies.
            add_up(b, ordered)
            cut[0] = T.uint64(0)
            if ordered:
                limit = pure("int64", "di_part", total[0], top_p[row])
                find_bucket(b, limit)
                if found[0] >= T.int64(0):
                    # 2. The tokens of the bucket, and the last of them that stays.
                    list_bucket(b)
                    many = of_part("int64", found[3], 0, parts)
                    if many <= T.int64(LISTED):
                        sort_bucket(b, many, limit)
                    else:
                        search_bits(b, limit)

            # 3. The draw.
            share = T.cast(total[0], "float32") / T.float32(2.0**44)
            inverse = pure("float32", "__frcp_rn", share)
            log_total = pure("float32", "logf", share)
            edge[0] = -T.infinity("float32")
            edge_id[0] = 0x3FFFF
            if cut[0] != T.uint64(0):
                edge[0] = pure("float32", "di_value", cut[0])
                edge_id[0] = pure("int32", "di_id", cut[0])
            if result == ALL:
                write_logprobs(b, log_total)
            elif result == NOISE:
                take_noisiest(b, log_total)
            else:
                draw_token(b, share, inverse, log_total)

    return choose
