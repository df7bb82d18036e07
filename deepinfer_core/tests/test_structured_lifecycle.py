"""The lifecycle of an answer against a plain oracle that keeps all tokens and starts anew each time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_toys import EOS, VOCAB, byte_tokenizer
from grammar_toys import WORDS, matcher_of
from tiny_grammar import TinyEngine, bits

from deepinfer_core.structured.lifecycle import Lifecycle, Stage, WrongAnswer, allow, forbid, is_allowed
from deepinfer_core.structured.trigger import Trigger

TABLE = byte_tokenizer().token_bytes
A, B, C, D, X = b"abcdx"
DRAFTS = 5


def lifecycle_of(schema: str, trigger=(), bound=None, *, depth: int = DRAFTS + 2, matcher=None) -> Lifecycle:
    return Lifecycle(
        matcher or matcher_of("regex", schema),
        trigger=trigger,
        bound=bound,
        eos_ids=frozenset({EOS}),
        token_bytes=TABLE,
        depth=depth,
    )


class Oracle:
    """Says what is allowed behind a list of tokens, by reading all of it from the start."""

    def __init__(self, schema: str, trigger: tuple[int, ...], bound: int | None) -> None:
        self.grammar = TinyEngine(byte_tokenizer(), VOCAB).compile({"schema_type": "regex", "schema": schema})
        self.trigger = trigger
        self.bound = bound

    def read(self, tokens: list[int]) -> tuple[Stage, object]:
        """Stage, and the next forced token or the state of the grammar."""
        begin = 0 if not self.trigger else None
        forced: list[int] | None = None
        for at, token in enumerate(tokens):
            if begin is None:
                if forced:
                    if token != forced.pop(0):
                        raise ValueError("not the forced token")
                    begin = None if forced else at + 1
                elif token == EOS:
                    return Stage.TERMINATED, None
                elif self.ends_with_trigger(tokens[: at + 1]):
                    begin = at + 1
                elif token == self.bound:
                    forced = list(self.trigger[self.progress(tokens[: at + 1]) :])
                continue
            if token == EOS:
                if not self.grammar.may_end(self.state(tokens[begin:at])):
                    raise ValueError("no end here")
                return Stage.TERMINATED, None
            if not self.state(tokens[begin : at + 1]):
                raise ValueError("not in the grammar")
        if begin is not None:
            return Stage.CONSTRAINED, self.state(tokens[begin:])
        return (Stage.FORCED, forced[0]) if forced else (Stage.DORMANT, None)

    def state(self, tokens: list[int]) -> frozenset[int]:
        texts = [TABLE[token] if token < len(TABLE) else b"" for token in tokens]
        return self.grammar.walk(self.grammar.start, b"".join(texts)) if all(texts) else frozenset()

    def ends_with_trigger(self, tokens: list[int]) -> bool:
        return tuple(tokens[-len(self.trigger) :]) == self.trigger

    def progress(self, tokens: list[int]) -> int:
        """Longest beginning of the trigger that the tokens end with."""
        lengths = range(min(len(tokens), len(self.trigger) - 1), 0, -1)
        return next((n for n in lengths if tuple(tokens[-n:]) == self.trigger[:n]), 0)

    def accepts(self, tokens: list[int]) -> bool:
        try:
            self.read(tokens)
        except ValueError:
            return False
        return True

    def mask(self, tokens: list[int]) -> object:
        stage, more = self.read(tokens)
        if stage is Stage.FORCED:
            return bits([more], WORDS)
        if stage is Stage.CONSTRAINED:
            return bits(self.grammar.allowed(more), WORDS)
        return np.full(WORDS, -1, dtype=np.int32)


CASES = [
    ("(ab|cd){1,3}", (), None),
    ("a*", (X,), None),
    ("(ab|cd){1,3}", (A, B, A, C), None),
    ("[a-d]{0,4}", (A, A, B), X),
    ("a(b|c)d", (D, A), D),
    ("(a|b)+", (257, X), 257),
]


@pytest.mark.parametrize(("schema", "trigger", "bound"), CASES)
@pytest.mark.parametrize("seed", range(6))
def test_lifecycle_follows_the_oracle_over_random_tokens_and_rollbacks(schema, trigger, bound, seed):
    print(f"seed {seed}")
    draw = random.Random(seed)
    oracle, life = Oracle(schema, trigger, bound), lifecycle_of(schema, trigger, bound)
    tokens: list[int] = []
    undoable = 0
    stages = set()
    mask = np.empty(WORDS, dtype=np.int32)
    for _ in range(250):
        ended = life.stage is Stage.TERMINATED
        if undoable and draw.random() < (0.6 if ended else 0.25):
            n = draw.randint(1, undoable)
            life.rollback(n)
            del tokens[len(tokens) - n :]
            undoable -= n
        else:
            token = draw.choice([A, B, C, D, X, A, B, EOS, 257, VOCAB - 1])
            if not ended and draw.random() < 0.5:  # else the middle of a long grammar is hardly ever reached
                good = [t for t in (A, B, C, D, X, EOS) if oracle.accepts([*tokens, t])]
                token = draw.choice(good) if good else token
            good = True if ended else oracle.accepts([*tokens, token])
            assert life.accept(token) is good
            if good:
                tokens.append(token)
                undoable = min(undoable + 1, DRAFTS + 2)
        stage, _ = oracle.read(tokens)
        assert life.stage is stage
        life.fill(mask)
        assert np.array_equal(mask, oracle.mask(tokens))
        stages.add(stage)
        if stage is Stage.TERMINATED and undoable == 0:
            break
    assert stages & {Stage.CONSTRAINED, Stage.TERMINATED}


def test_rollback_over_every_stage_restores_each_one():
    trigger = (A, A, B)
    path = [X, A, X, D, A, A, B, C, EOS, 77, 78]  # D is the bound token, and cuts nothing off
    oracle, life = Oracle("[a-d]{0,4}", trigger, D), lifecycle_of("[a-d]{0,4}", trigger, D, depth=len(path))
    expected = []
    mask = np.empty(WORDS, dtype=np.int32)
    for at, token in enumerate(path):
        life.fill(mask)
        expected.append((life.stage, mask.copy()))
        assert np.array_equal(mask, oracle.mask(path[:at]))
        assert life.accept(token)
    names = [stage.value for stage, _ in expected]
    assert names == ["dormant"] * 4 + ["forced"] * 3 + ["constrained"] * 2 + ["terminated"] * 2
    for n in range(len(path) + 1):
        again = lifecycle_of("[a-d]{0,4}", trigger, D, depth=len(path))
        for token in path:
            again.accept(token)
        again.rollback(n)
        at = len(path) - n
        for token in path[at:]:
            again.fill(mask)
            assert (again.stage, mask.tolist()) == (expected[at][0], expected[at][1].tolist())
            assert again.accept(token)
            at += 1


def test_rollback_beyond_the_history_is_refused_and_changes_nothing():
    life = lifecycle_of("a*", depth=3)
    for _ in range(5):
        assert life.accept(A)
    with pytest.raises(ValueError, match="cannot go back 4 of 3 tokens"):
        life.rollback(4)
    life.rollback(3)
    with pytest.raises(ValueError, match="cannot go back 1 of 0 tokens"):
        life.rollback(1)
    assert life.accept(A)


def test_special_token_is_refused_without_asking_the_matcher():
    class Raises:
        def accept(self, token):
            raise RuntimeError("a special token")

        def finished(self):
            return False

    life = lifecycle_of("", matcher=Raises())
    assert not life.accept(257)
    assert not life.accept(VOCAB - 1)  # a row of the head that no token has
    with pytest.raises(RuntimeError, match="a special token"):
        life.accept(A)


def test_end_token_before_the_trigger_ends_an_answer_that_is_no_sentence():
    life = lifecycle_of("a", (X,))
    assert life.accept(EOS)
    assert (life.stage, life.is_sentence) == (Stage.TERMINATED, False)
    life.rollback(1)
    for token in (X, A, EOS):
        assert life.accept(token)
    assert (life.stage, life.is_sentence) == (Stage.TERMINATED, True)


@pytest.mark.parametrize("method", ["accept", "finished"])
@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_matcher_that_says_neither_yes_nor_no_is_named(method, answer):
    class Odd:
        def accept(self, token):
            return answer if method == "accept" else True

        def finished(self):
            return answer

    with pytest.raises(WrongAnswer, match=rf"Matcher.{method} returned {answer!r}, expected True or False"):
        lifecycle_of("", matcher=Odd()).accept(A)


@pytest.mark.parametrize("seed", range(4))
def test_trigger_is_found_where_a_plain_search_finds_it(seed):
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        tokens = tuple(draw.randrange(2) for _ in range(draw.randint(1, 6)))
        trigger, progress, seen = Trigger(tokens), 0, []
        for _ in range(40):
            seen.append(draw.randrange(3))
            progress = trigger.step(progress, seen[-1])
            lengths = range(min(len(seen), len(tokens)), -1, -1)
            assert progress == next(n for n in lengths if tuple(seen[len(seen) - n :]) == tokens[:n])
            if progress == len(tokens):
                break


def test_bits_of_a_mask_are_those_of_the_tokens():
    mask = np.zeros(WORDS, dtype=np.int32)
    for token in (0, 31, 32, 63, VOCAB - 1):
        allow(mask, token)
        allow(mask, token)
    assert np.array_equal(mask, bits([0, 31, 32, 63, VOCAB - 1], WORDS))
    assert [token for token in range(32 * WORDS) if is_allowed(mask, token)] == [0, 31, 32, 63, VOCAB - 1]
    forbid(mask, 31)
    forbid(mask, 31)
    assert np.array_equal(mask, bits([0, 32, 63, VOCAB - 1], WORDS))
