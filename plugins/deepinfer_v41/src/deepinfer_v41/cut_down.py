"""A V4.1 configuration with fewer layers and every other size as it is, for measurements on random weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deepinfer_core.errors import ConfigError
from deepinfer_v41.primes import engram_primes
from deepinfer_v41.released import RELEASED

ENGRAM_ROWS = 100_000
"""Start of the search for the primes of an Engram table; 16,000,000 in the release, whose tables no device holds."""
LEAST_LAYERS = 6
SWA_LAYERS = 2
REINDEX_EVERY = 4


def cut_down(layers: int, base: Mapping[str, Any] = RELEASED, **text: Any) -> dict[str, Any]:
    """``config.json`` with ``layers`` layers: two with windows only, then half with ratio 2 and half with ratio 1.

    Each half begins with a layer that owns entries; in the second, every fourth one chooses among candidates anew, as
    in the release. One layer has an Engram table, of at most ``ENGRAM_ROWS`` rows.

    :param base: The whole ``config.json``; that of the released model unless given.
    :param text: Fields of ``text_config`` to replace, for tests with small sizes.
    :raises ConfigError: so many layers cannot hold one of each kind, or ``base`` has fewer.
    """
    config = copy.deepcopy(dict(base)) | {"image_token_id": None}
    config.pop("vision_config", None)
    fields: dict[str, Any] = config.get("text_config", config)
    most = fields["num_hidden_layers"]
    if not LEAST_LAYERS <= layers <= most:
        raise ConfigError(
            f"{layers} layers: at least {LEAST_LAYERS} hold one of each kind, and the model has {most}",
            remedy=f"give a number from {LEAST_LAYERS} to {most}",
            details={"layers": layers, "least": LEAST_LAYERS, "most": most},
        )
    stages = fields["num_nextn_predict_layers"]
    # The draft head reads so many last layers, all of them in the second half.
    targets = len(fields["dspark_target_layer_ids"]) if stages else 0
    boundary = min(SWA_LAYERS + (layers - SWA_LAYERS) // 2, layers - max(targets, 1))
    reindex = list(range(boundary + min(REINDEX_EVERY, layers - boundary - 1), layers, REINDEX_EVERY))
    fields |= {
        "num_hidden_layers": layers,
        "compress_ratios": [0] * SWA_LAYERS + [2] * (boundary - SWA_LAYERS) + [1] * (layers - boundary) + [0] * stages,
        "kv_source_layer_ids": [SWA_LAYERS, boundary],
        "index_source_layer_ids": [SWA_LAYERS, boundary, *reindex],
        "candidate_source_layer_id": boundary,
        "engram_layer_ids": [1],
        "engram_vocab_size": min(ENGRAM_ROWS, fields["engram_vocab_size"]),
        "engram_compressed_vocab_size": fields["vocab_size"],  # there is no tokenizer to derive a map from
        "engram_token_map": "identity",
        "dspark_target_layer_ids": list(range(layers - targets, layers)),
    }
    fields |= text
    columns = (fields["engram_max_ngram_size"] - 1) * fields["engram_n_heads"]
    primes = engram_primes(fields["engram_vocab_size"], 1, columns)
    fields["engram_num_embeddings"] = [sum(primes[0])]
    return config


MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""What :func:`write_model` writes."""


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """A model directory without weights: ``config.json``, and a tokenizer that has a word for each id."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    words = {f"t{i}": i for i in range(config["text_config"]["vocab_size"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")  # its own save raises no OSError
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}), "utf-8")
    return folder
