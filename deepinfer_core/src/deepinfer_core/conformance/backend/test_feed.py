"""``meta.feed_tokens`` and ``meta.correct_lengths``: what a step takes over from the one before (``engine.md`` 5.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.reference import feed as reference

VOCAB = 97
PAD = 41


def i32(values: Any, device: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def randint(generator: torch.Generator, low: int, high: int, *shape: int) -> list[Any]:
    out: list[Any] = torch.randint(low, high + 1, shape, generator=generator).tolist()
    return out


def case_of(
    generator: torch.Generator, requests: int, before: int, k: int, depth: int, *, remap: str
) -> dict[str, Any]:
    """A step of ``requests`` behind one of ``before``, with ``k`` drafts and windows of ``depth`` ids."""
    rows = {
        "identity": None,
        "mixed": [-1 if i % 3 == 2 else int(i * 7 % before) for i in range(requests)],
        "fresh": [-1] * requests,
        "reversed": [before - 1 - i % before for i in range(requests)],
        "shifted": [min(i + 1, before - 1) for i in range(requests)],
    }[remap]
    case: dict[str, Any] = {
        "fresh": randint(generator, 0, VOCAB - 1, requests, k + 1),
        "seqlens_q": randint(generator, 1, k + 1, requests),
        "remap": rows,
        "sampled": randint(generator, 0, VOCAB - 1, before),
        "drafts": randint(generator, 0, VOCAB - 1, before, k) if k else None,
        "accepted": randint(generator, 0, k, before),
        "win": randint(generator, 0, 30, requests, k + depth - 1),
        "table": [(v * 5) % 31 if v % 11 else -1 for v in range(VOCAB - 6)],
    }
    for row in case["win"][::4]:
        row[: depth // 2] = [-1] * (depth // 2)
    for ids in (case["sampled"], *(case["drafts"] or [])):
        if len(ids) > 2:
            ids[1], ids[-1] = -1, VOCAB  # what a request that failed leaves behind
    return case


def run(backend: Any, device: Any, case: dict[str, Any], **changed: Any) -> Any:
    case = {**case, **changed}
    options: dict[str, Any] = {"vocab_size": VOCAB}
    for name in ("drafts", "accepted"):
        if case[name] is not None:
            options[name] = i32(case[name], device)
    if case["win"] is not None:
        options |= {"ngram_win": i32(case["win"], device), "ngram_table": i32(case["table"], device), "ngram_pad": PAD}
    return backend.ops["meta.feed_tokens"](
        i32(case["fresh"], device),
        i32(case["seqlens_q"], device),
        None if case["remap"] is None else i32(case["remap"], device),
        i32(case["sampled"], device),
        sum(case["seqlens_q"]),
        **options,
    )


def expected_of(case: dict[str, Any], **changed: Any) -> tuple[list[int], list[list[int]]]:
    case = {**case, **changed}
    named = {k: case[k] for k in ("drafts", "accepted", "win", "table")}
    return reference.feed_tokens(
        case["fresh"], case["seqlens_q"], case["remap"], case["sampled"], vocab_size=VOCAB, pad=PAD, **named
    )


def judge(check: Any, got: Any, expected: tuple[list[int], list[list[int]]], windows: bool, case: str) -> None:
    __tracebackhide__ = True
    op = "meta.feed_tokens"
    names = ["input_ids", *(["ngram_token_ids"] if windows else [])]
    require_equal(sorted(got), sorted(names), "fields of the fed tokens", op=op, case=case)
    for name, wanted in zip(names, expected, strict=False):
        require_equal(got[name].dtype, torch.int32, f"dtype of {name}", op=op, case=case)
        check(got[name], torch.tensor(wanted, dtype=torch.int64).reshape(got[name].shape), case=case, field=name)


@pytest.mark.op("meta.feed_tokens")
@pytest.mark.needs("op:meta.feed_tokens")
@pytest.mark.parametrize("remap", ["identity", "mixed", "fresh", "reversed", "shifted"])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_rows_feed_what_the_step_before_gave(
    backend: Any, device: Any, generator: Any, tolerance: Any, k: int, remap: str
) -> None:
    check = tolerance("meta.feed_tokens")
    for requests, depth in ((1, 1), (2, 4), (9, 4), (9, 2)):
        case = case_of(generator, requests, max(requests, 3), k, depth, remap=remap)
        for rows in (case["seqlens_q"], [k + 1] * requests, [1] * requests):
            what = {"seqlens_q": rows}
            name = f"{requests} requests of {rows} rows, windows of {depth}"
            judge(check, run(backend, device, case, **what), expected_of(case, **what), True, name)
        for missing in ("win", "accepted", "drafts"):
            if missing == "drafts" and not k:
                continue
            got, expected = run(backend, device, case, **{missing: None}), expected_of(case, **{missing: None})
            judge(check, got, expected, missing != "win", f"{requests} requests without {missing}")


@pytest.mark.op("meta.feed_tokens")
@pytest.mark.needs("op:meta.feed_tokens")
@pytest.mark.level("smoke")
def test_accepted_drafts_move_the_window_on(backend: Any, device: Any, tolerance: Any) -> None:
    """One request, K = 2, three ids back: the window holds two ids of history and the two drafts of the step before."""
    table = list(range(VOCAB))
    for accepted, history in ((0, [11, 12]), (1, [12, 13]), (2, [13, 14])):
        case = {"fresh": [[1, 2, 3]], "seqlens_q": [3], "remap": [0], "sampled": [20], "drafts": [[21, 22]],
                "accepted": [accepted], "win": [[11, 12, 13, 14]], "table": table}  # fmt: skip
        got = run(backend, device, case)
        line = [*history, 20, 21, 22]
        wanted = [[line[2 + j - r] for r in range(3)] for j in range(3)]
        tolerance("meta.feed_tokens")(got["ngram_token_ids"], torch.tensor(wanted), case=f"{accepted} accepted")
        tolerance("meta.feed_tokens")(got["input_ids"], torch.tensor([20, 21, 22]), case=f"{accepted} accepted")


@pytest.mark.op("meta.correct_lengths")
@pytest.mark.needs("op:meta.correct_lengths")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("num_draft", [0, 1, 5])
def test_lengths_shrink_by_the_drafts_that_were_refused(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, num_draft: int
) -> None:
    for requests in (1, 2, 13):
        before = requests + 2
        start, q = randint(generator, 0, 10**6, requests), randint(generator, 1, num_draft + 1, requests)
        accepted = randint(generator, -1, num_draft + 1, before)
        for remap in (None, [-1] * requests, [i if i % 2 else -1 for i in range(requests)], [before - 1] * requests):
            got = repeat(
                "meta.correct_lengths", i32(start, device), i32(q, device),
                None if remap is None else i32(remap, device), i32(accepted, device), num_draft=num_draft,
            )  # fmt: skip
            require_equal(got.dtype, torch.int32, "lengths are int32", op="meta.correct_lengths")
            expected = reference.correct_lengths(start, q, remap, accepted, num_draft)
            tolerance("meta.correct_lengths")(got, torch.tensor(expected), case=f"remap {remap}, accepted {accepted}")


@pytest.mark.op("meta.feed_tokens", "meta.correct_lengths")
@pytest.mark.needs("op:meta.feed_tokens", "op:meta.correct_lengths")
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(20))
def test_random_steps_feed_what_the_step_before_gave(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(6300 + seed)
    requests, k, depth = (randint(generator, low, high, 1)[0] for low, high in ((1, 60), (0, 6), (1, 5)))
    case = case_of(generator, requests, requests + seed % 5, k, depth, remap="identity")
    case["remap"] = None if seed % 4 == 0 else randint(generator, -1, requests - 1, requests)
    judge(tolerance("meta.feed_tokens"), run(backend, device, case), expected_of(case), True, f"{requests} requests")
    start = randint(generator, 0, 2**30, requests)
    got = backend.ops["meta.correct_lengths"](
        i32(start, device), i32(case["seqlens_q"], device),
        None if case["remap"] is None else i32(case["remap"], device), i32(case["accepted"], device), num_draft=k,
    )  # fmt: skip
    expected = reference.correct_lengths(start, case["seqlens_q"], case["remap"], case["accepted"], k)
    tolerance("meta.correct_lengths")(got, torch.tensor(expected), case=f"{requests} requests")
