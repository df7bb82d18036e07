"""The compressed vocabulary of Engram: tokens that read alike share one id (spec/model.md 2.3).

Built from ``tokenizer.json`` at load, never stored. The ``tokenizers`` library's own normalizers are part of the
definition: Python's ``unicodedata`` and ``str`` methods differ on rare characters (mark tables, final sigma, strip).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deepinfer_core.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

_REPLACEMENT = "\ufffd"
# A lone space must survive Strip; it travels through it as a private-use character.
_LONE_SPACE = "\ue000"


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer at ``path``. Raises TokenizerError."""
    from tokenizers import Tokenizer  # 20 ms; only models with an Engram need it here

    if not path.is_file():
        raise TokenizerError(
            f"{path.name} is missing in {path.parent}",
            reason="the Engram layers derive their compressed vocabulary from it",
            remedy="put the tokenizer.json of the checkpoint beside its config.json",
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every kind of bad file
        raise TokenizerError(
            f"{path} is not a tokenizer: {error}", remedy="download the checkpoint's tokenizer.json again"
        ) from error


def count_tokens(tokenizer: Tokenizer) -> int:
    """One more than the highest token id, added tokens included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def compress_vocabulary(tokenizer: Tokenizer, n_tokens: int) -> npt.NDArray[np.int32]:
    """``[n_tokens]`` int32: the compressed id of each token id, numbered in order of first appearance.

    The key of a token is its normalised text; the text itself where nothing is left of it; the vocabulary piece where
    the token is no whole character (its text has U+FFFD). All three kinds share one dictionary.
    """
    normalize = _normalizer().normalize_str
    texts = tokenizer.decode_batch([[token] for token in range(n_tokens)], skip_special_tokens=False)
    ids: dict[str, int] = {}
    table = np.empty(n_tokens, dtype=np.int32)
    for token, text in enumerate(texts):
        if _REPLACEMENT in text:
            key = tokenizer.id_to_token(token) or text
        else:
            key = normalize(text) or text
        table[token] = ids.setdefault(key, len(ids))
    return table


def _normalizer() -> Normalizer:
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"\A \z"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
