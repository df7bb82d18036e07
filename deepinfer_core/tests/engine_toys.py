"""A model, a backend and a sampler in plain numpy, and nothing of the real ones: the engine cannot tell the difference.

The toy model keeps each token in two caches, one paged (ratio 1) and one a sliding-window ring, and reads its whole
history back from them at every row. A block that is reused too early, a chunk that is stored in the wrong place or a
table that belongs to somebody else changes the hash of the history, and so the next token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from deepinfer_contracts import RowStatus, SamplerOutput
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError
from deepinfer_core.llm import LLM
from deepinfer_core.plugins.grammars import no_engine
from deepinfer_core.requests.outputs import RequestOutput
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import CacheLayer, CacheSpec, Capabilities, ModelCard, SchedulerHints

EOS = 256
BOS = 257
VOCAB = 260
"""256 bytes, end, begin, and two rows of the head that no token has."""
TOKENS = 258
WINDOW = 6
RING = 8
BLOCK = 4
MIX = np.uint64(0x9E3779B97F4A7C15)


def byte_tokenizer(*, eos: bool = True) -> Tokenizer:
    """Token ``i`` is byte ``i``; 256 ends an answer, 257 begins a prompt."""
    alphabet = _alphabet()
    library = Library(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<bos>", special=True)])
    return Tokenizer(library, bos_id=BOS, add_bos=True, eos_ids=frozenset({EOS}) if eos else frozenset())


def save_tokenizer(folder: Path) -> None:
    """The same as the files of a model directory."""
    byte_tokenizer()._library.save(str(folder / "tokenizer.json"))
    settings = {"add_bos_token": True, "bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def _alphabet() -> str:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return "".join(chr(byte) if byte in printable else chr(next(spare)) for byte in range(256))


def mixed(values: Any) -> Any:
    """splitmix64 of an array."""
    with np.errstate(over="ignore"):
        z = np.asarray(values).astype(np.uint64) + MIX
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def history_hash(tokens: Any, first: int) -> Any:
    """Order-dependent hash of ``tokens`` at positions ``first, first + 1, ...``."""
    tokens = np.asarray(tokens, dtype=np.uint64)
    positions = np.arange(first, first + len(tokens), dtype=np.uint64)
    with np.errstate(over="ignore"):
        return mixed(tokens * np.uint64(1_000_003) + positions).sum(dtype=np.uint64)


def row_hidden(all_tokens: Any, window_tokens: Any) -> list[Any]:
    """The hidden row of a position: hashes of the whole history and of the window that ends there."""
    position = len(all_tokens) - 1
    return [history_hash(all_tokens, 0), history_hash(window_tokens, position + 1 - len(window_tokens))]


def logits_of(hidden: Any) -> Any:
    with np.errstate(over="ignore"):
        state = mixed(hidden[:, 0] ^ (hidden[:, 1] * np.uint64(31)))[:, None]
        draws = mixed(state + np.arange(VOCAB, dtype=np.uint64)[None, :] * np.uint64(0x632BE59BD9B4E019))
    return (draws >> np.uint64(40)).astype(np.float32) / np.float32(2**20)


class ToyCaches:
    """int64 token ids: ``main`` [blocks, BLOCK], ``swa`` [slots, RING]. Poisoned, so that reading too far shows."""

    def __init__(self, units: Mapping[str, int]) -> None:
        self.main = np.full((units.get("main", 0), BLOCK), 7_777, dtype=np.int64)
        self.swa = np.full((units.get("swa", 0), RING), 8_888, dtype=np.int64)
        self.zeroed: list[tuple[str, int]] = []

    def view(self, name: str, layer: int) -> Any:
        return getattr(self, name)

    def zero(self, pool: str, units: Sequence[int]) -> None:
        self.zeroed += [(pool, unit) for unit in units]
        getattr(self, pool)[list(units)] = 0

    def clone(self, pool: str, pairs: Sequence[tuple[int, int]]) -> None:
        for src, dst in pairs:
            getattr(self, pool)[dst] = getattr(self, pool)[src]

    @property
    def nbytes(self) -> int:
        return int(self.main.nbytes + self.swa.nbytes)


def feed_tokens(
    fresh: Any, seqlens_q: Any, remap: Any, sampled: Any, total_q: int, *, vocab_size: int, **drafts: Any
) -> dict[str, Any]:
    """``meta.feed_tokens`` without drafts and n-grams, in numpy."""
    n, sampled = len(seqlens_q), getattr(sampled, "values", sampled)
    source = np.arange(n) if remap is None else remap
    known = np.asarray(sampled).reshape(-1)[np.clip(source, 0, len(sampled) - 1)].astype(np.int64)
    known[(known < 0) | (known >= vocab_size)] = vocab_size - 1
    return {"input_ids": np.where(source >= 0, known, fresh[:, 0]).astype(np.int32)}


class ToyBackend:
    name = "toy"
    device = "host"
    capabilities = Capabilities(name="toy", device_type="host", arch="none")
    ops: Mapping[str, Any] = {"meta.feed_tokens": feed_tokens}
    plan: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.closed = 0

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int:
        pools = {"main", "index"} if pool == "main" else {pool}
        return sum(8 * layer.entries for spec in specs if spec.pool in pools for layer in spec.layers)

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> ToyCaches:
        if units.get("main", 0) > 1 << 24:
            raise CapacityError("too many blocks")
        return ToyCaches(units)

    def bind_inputs(self, record: Any) -> Any:
        return record

    def to_host(self, tensor: Any) -> Any:
        return tensor

    def close(self) -> None:
        self.closed += 1


class ToyModel:
    vocab_size = VOCAB

    def __init__(self, ring: int = RING) -> None:
        self.ring_length = ring

    def load(self, path: Path) -> None:
        pass

    def forward(self, inputs: Any, caches: ToyCaches) -> Any:
        rows = self._prefill(inputs, caches) if inputs.is_prompt else self._decode(inputs, caches)
        return np.array(rows, dtype=np.uint64).reshape(-1, 2)

    def logits(self, hidden: Any) -> Any:
        return logits_of(hidden)

    @staticmethod
    def _prefill(inputs: Any, caches: ToyCaches) -> list[Any]:
        main, ring = caches.main.reshape(-1), caches.swa.reshape(-1)
        new = inputs.input_ids.astype(np.int64)
        keep = inputs.slot_main[1] >= 0
        main[inputs.slot_main[1][keep]] = new[keep]
        gathered = np.zeros(int(inputs.total_k_main[1]), dtype=np.int64)
        for block, begin, end, dst in inputs.load_main[1].tolist():
            if block >= 0:
                gathered[dst : dst + end - begin] = caches.main[block, begin:end]
        window = np.zeros(int(inputs.total_k_swa) + len(new), dtype=np.int64)
        for slot, begin, end, dst in inputs.load_swa.tolist():
            if slot >= 0:
                window[dst : dst + end - begin] = caches.swa[slot, begin:end]
        window[int(inputs.total_k_swa) :] = new
        keep = inputs.slot_swa >= 0
        ring[inputs.slot_swa[keep]] = new[keep]
        rows = []
        for (start, count), (a, old, b, now) in zip(
            inputs.ca_offset_len[1].tolist(), inputs.swa_pivots.tolist(), strict=True
        ):
            seen = np.concatenate([window[a : a + old], window[b : b + now]])
            rows.append(row_hidden(gathered[start : start + count], seen))
        return rows

    def _decode(self, inputs: Any, caches: ToyCaches) -> list[Any]:
        main, ring = caches.main.reshape(-1), caches.swa.reshape(-1)
        new = inputs.input_ids.astype(np.int64)
        main[inputs.slot_main[1]] = new
        ring[inputs.slot_swa] = new
        rows = []
        for table, length, (first, count) in zip(
            inputs.block_tables, inputs.context_lens.tolist(), inputs.swa_offset_len.tolist(), strict=True
        ):
            history = caches.main[table[: -(-length // BLOCK)]].reshape(-1)[:length]
            base = first // self.ring_length * self.ring_length
            seen = ring[base + (first - base + np.arange(count)) % self.ring_length]
            rows.append(row_hidden(history, seen))
        return rows


def apply_masks(scores: Any, inputs: Any) -> None:
    """``-inf`` where a grammar forbids a token, in place: row j of a request has mask j, where it is listed."""
    for j, rows in enumerate(inputs.grammar_rows or ()):
        for request in [] if rows is None else rows.tolist():
            if inputs.row_count is not None and j >= inputs.row_count[request]:
                continue
            row = request if inputs.first_row is None else int(inputs.first_row[request]) + j
            words = np.asarray(inputs.grammar_mask[j][request])
            flags = np.unpackbits(words.view(np.uint8), bitorder="little")[: scores.shape[1]]
            scores[row, flags == 0] = -np.inf


class ToySampler:
    """The largest logit, or at a temperature the largest after noise from (seed, position)."""

    def __init__(self, vocab_size: int = TOKENS) -> None:
        self.vocab_size = vocab_size

    def sample(self, logits: Any, inputs: Any) -> SamplerOutput:
        scores = np.array(logits, dtype=np.float32)
        scores[:, self.vocab_size :] = -np.inf
        if inputs.eos_suppress is not None and len(inputs.eos_suppress):
            rows, tokens = inputs.eos_suppress.T
            scores[rows, tokens] = -np.inf
        apply_masks(scores, inputs)
        status = np.isnan(scores).any(axis=1).astype(np.int8)
        status[np.isneginf(scores).all(axis=1)] = RowStatus.NO_ALLOWED_TOKEN
        for row, temperature in enumerate(inputs.temperature.tolist()):
            if temperature >= 1e-5:
                key = mixed(np.uint64(inputs.seed[row]) ^ mixed(np.uint64(inputs.sample_pos[row])))
                noise = mixed(key ^ np.arange(VOCAB, dtype=np.uint64)) >> np.uint64(40)
                scores[row] += noise.astype(np.float32) / np.float32(2**20) * np.float32(temperature)
        scores[status != 0] = 0
        zeros = np.zeros(len(scores), dtype=np.float32)
        return SamplerOutput(
            sampled_ids=scores.argmax(axis=1).astype(np.int32), sampled_logprob=zeros, row_status=status
        )


TOY_CARD = ModelCard(path=Path("toy"), architecture="Toy", model_type="toy", config={})
TOY_HINTS = SchedulerHints(
    block_size=BLOCK,
    window=WINDOW,
    backtrack=1,
    swa_ring=RING,
    ratios_dense=(1,),
    max_model_len=256,
    vocab_size=VOCAB,
    inputs="InputMetadataV41",
    prefix_replay=True,
)


TOY_OWNERS = {part: f"toy (acme-{part} 0.1)" for part in ("backend", "model", "sampler", "grammar")}


@define(eq=False)
class ToyParts:
    """What ``build_engine`` reads of an assembly."""

    config: EngineConfig
    model: Any = field(factory=ToyModel)
    backend: Any = field(factory=ToyBackend)
    sampler: Any = field(factory=ToySampler)
    card: ModelCard = TOY_CARD
    cache_specs: Sequence[CacheSpec] = (
        CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
        CacheSpec("swa", "swa", [CacheLayer(0, RING, "i64", 1)]),
    )
    hints: SchedulerHints = TOY_HINTS
    owners: Mapping[str, str] = field(factory=lambda: dict(TOY_OWNERS))
    grammar: Any = None
    """Makes the grammar engine: gets the tokenizer and the width of the logits. None: none is installed."""
    observers: Sequence[Any] = ()

    def make_sampler(self, name: str, params: Mapping[str, Any], vocab_size: int) -> Any:
        return self.sampler

    def grammar_engine(self) -> Any:
        if self.grammar is None:
            raise no_engine([])
        return self.grammar


def small_pool(blocks: int, seqs: int) -> dict[str, object]:
    """Settings with which exactly ``blocks`` blocks can be used, beside the slots of ``seqs`` sequences."""
    slots = int(1.2 * seqs) + 1
    return {"kv_memory": (blocks + 1) * BLOCK * 8 + slots * RING * 8, "max_num_seqs": seqs}


SETTINGS: dict[str, object] = {"max_num_seqs": 16, "validation": "full"}
"""Of every toy LLM; the fixture ``overlap`` runs a test with both values of that setting."""


def toy_llm(
    *, eos: bool = True, parts: Mapping[str, Any] | None = None, tokenizer: Tokenizer | None = None, **settings: object
) -> LLM:
    settings = {**SETTINGS, **settings}
    config = EngineConfig.resolve(settings, environ={}, flag_origin="argument")
    return LLM.from_assembly(ToyParts(config, **(parts or {})), tokenizer or byte_tokenizer(eos=eos))


def solo_tokens(prompt: Sequence[int], count: int, *, ends: frozenset[int] = frozenset({EOS})) -> list[int]:
    """Greedy tokens of the toy model without any engine: the history is simply a list."""
    tokens = list(prompt)
    for _ in range(count):
        hidden = np.array([row_hidden(tokens, tokens[-WINDOW:])], dtype=np.uint64)
        token = int(logits_of(hidden)[0, :TOKENS].argmax())
        tokens.append(token)
        if token in ends:
            break
    return tokens[len(prompt) :]


def check_idle(llm: LLM) -> None:
    """Nothing runs, and every unit of every pool has come back."""
    core = llm.built.engine.core
    core.check()
    core.audit()
    if core.unfinished or llm.built.engine.num_live:
        raise AssertionError(f"{core.unfinished} requests unfinished, {llm.built.engine.num_live} live")


def prompts_of(count: int, length: int, seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for _ in range(count)]


def ids(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


class Faulty:
    """Wraps a part and misbehaves: ``fault(method, call number, go)`` may raise, or change what ``go()`` gives."""

    def __init__(self, part: Any, fault: Callable[[str, int, Any], Any], *methods: str) -> None:
        self._part = part
        self._fault = fault
        self._methods = methods
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        if name not in self._methods:
            return value

        def call(*args: Any) -> Any:
            self.calls[name] = number = self.calls.get(name, 0) + 1
            return self._fault(name, number, lambda: value(*args))

        return call
