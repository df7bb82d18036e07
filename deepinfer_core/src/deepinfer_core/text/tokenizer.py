"""The tokenizer of a model directory: ``tokenizer.json`` through the ``tokenizers`` library, and what lies beside it.

Text becomes the ids of ``tokenizer.json``, with the begin token in front if ``tokenizer_config.json`` asks for it and
the text does not begin with it already. Control tokens spelled out in a prompt are read as control tokens: this is the
raw-prompt interface; the messages of a chat are encoded without them (``chat/prompt.py``). End tokens are those of the
tokenizer, of ``config.json`` and of ``generation_config.json`` together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepinfer_core.errors import InvalidPrompt, TokenizerError


class Tokenizer:
    """Ids and bytes of one vocabulary.

    ``token_bytes[i]`` is what token ``i`` adds to a text: UTF-8 bytes, maybe part of a character, empty for special
    tokens. ``special_bytes[i]`` is the spelling of a special token.
    """

    def __init__(
        self, library: Any, *, bos_id: int | None = None, add_bos: bool = False, eos_ids: frozenset[int] = frozenset()
    ) -> None:
        """``library``: a ``tokenizers.Tokenizer`` with a byte-level decoder. Raises TokenizerError for another one."""
        self._library = library
        library.no_truncation()
        library.no_padding()
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.eos_ids = eos_ids
        self.vocab_size: int = library.get_vocab_size(with_added_tokens=True)
        description = json.loads(library.to_str())
        _require_byte_level(description)
        self.token_bytes, self.special_bytes = _tables(library)
        self._added = frozenset(library.get_added_tokens_decoder())
        spellings = (*self.token_bytes, *self.special_bytes.values())
        self._longest = 0 if _drops_text(library, description) else max(map(len, spellings), default=0)

    @classmethod
    def load(cls, path: Path, config: Mapping[str, Any]) -> Tokenizer:
        """Read the tokenizer of model directory ``path``; ``config`` is its parsed ``config.json``.

        Raises TokenizerError when a file is missing or broken.
        """
        library = _open(path / "tokenizer.json")
        settings = _read_json(path / "tokenizer_config.json")
        generation = _read_json(path / "generation_config.json")
        bos_id = _named_token(library, settings, "bos_token")
        if bos_id is None:
            bos_id = next((i for i in _ids(config, "bos_token_id")), None)
        eos = {i for source in (config, _sub(config, "text_config"), generation) for i in _ids(source, "eos_token_id")}
        named = _named_token(library, settings, "eos_token")
        if named is not None:
            eos.add(named)
        add_bos = settings.get("add_bos_token", False)
        if not isinstance(add_bos, bool):
            raise TokenizerError(
                f"add_bos_token in {path / 'tokenizer_config.json'} is {add_bos!r}", remedy="set it to true or false"
            )
        if add_bos and bos_id is None:
            raise TokenizerError(
                f"{path / 'tokenizer_config.json'} asks for a begin token and no file names one",
                remedy="add bos_token, or set add_bos_token to false",
            )
        return cls(library, bos_id=bos_id, add_bos=add_bos, eos_ids=frozenset(eos))

    def least_tokens(self, text: str) -> int:
        """A number of tokens that ``encode(text)`` cannot be below, known without encoding; 0 where nothing is."""
        if not self._longest or len(text) * 4 <= self._longest:
            return 0
        normalizer = self._library.normalizer
        if normalizer is not None:  # it may shorten the text
            text = normalizer.normalize_str(text.encode("utf-8", "replace").decode())
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._longest)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``. Raises InvalidPrompt for text that is not UTF-8 (lone surrogates)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as err:
            raise InvalidPrompt(
                f"the prompt is not UTF-8: character {err.start} is half of a surrogate pair or a raw byte",
                remedy="pass UTF-8 text, or token ids",
                details={"position": err.start},
            ) from None
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def control_id(self, text: str) -> int | None:
        """The id of the added token that is spelled ``text``; None if there is none."""
        token: int | None = self._library.token_to_id(text)
        return token if token in self._added else None

    def description(self) -> str:
        """The tokenizer as the text of a ``tokenizer.json``."""
        text: str = self._library.to_str()
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` in one go, special tokens left out."""
        table = self.token_bytes
        return b"".join(table[i] for i in ids if i < len(table)).decode("utf-8", "replace")

    def spelling(self, token_id: int) -> bytes:
        """What a token looks like when it is to be seen, special or not."""
        if token_id >= len(self.token_bytes):
            return b""
        return self.token_bytes[token_id] or self.special_bytes.get(token_id, b"")


def _open(path: Path) -> Any:
    from tokenizers import Tokenizer as Library  # heavy: loads a native library

    if not path.is_file():
        raise TokenizerError(f"no {path.name} in {path.parent}", remedy="use a model directory with a tokenizer.json")
    try:
        return Library.from_file(str(path))
    except Exception as err:  # the library raises bare Exception for a malformed file
        raise TokenizerError(
            f"cannot read {path}", reason=str(err), remedy="take tokenizer.json from the released checkpoint again"
        ) from err


def _read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise TokenizerError(f"cannot read {path}", reason=str(err), remedy="repair or remove the file") from err
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} holds no JSON object", remedy="repair or remove the file")
    return data


def _sub(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _ids(source: Mapping[str, Any], name: str) -> list[int]:
    """Token ids under ``name``: one id, a list of ids, or nothing."""
    value = source.get(name)
    items = [] if value is None else value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise TokenizerError(f"{name} is {value!r}", remedy="give a token id or a list of token ids")
    return list(items)


def _named_token(library: Any, settings: Mapping[str, Any], name: str) -> int | None:
    """Id of a token that ``tokenizer_config.json`` names by its text."""
    value = settings.get(name)
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None:
        return None
    token = library.token_to_id(text) if isinstance(text, str) else None
    if token is None:
        raise TokenizerError(
            f"{name} {text!r} of tokenizer_config.json is no token of tokenizer.json",
            remedy="take both files from one checkpoint",
        )
    return int(token)


def _drops_text(library: Any, description: Mapping[str, Any]) -> bool:
    """Whether some of a text may become no token, so that a text of any length may be one token.

    Added tokens can swallow the white space around them, and pre-tokenizers other than these can leave text out.
    """
    if any(token.lstrip or token.rstrip for token in library.get_added_tokens_decoder().values()):
        return True
    outer = description.get("pre_tokenizer") or {}
    steps = outer.get("pretokenizers", []) if outer.get("type") == "Sequence" else [outer] if outer else []
    kept = ("ByteLevel", "Split", "Digits", "Punctuation")
    return any(step.get("type") not in kept or step.get("behavior") == "Removed" for step in steps)


def _require_byte_level(description: Mapping[str, Any]) -> None:
    decoder = description.get("decoder") or {}
    kinds = [decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", []))]
    if "ByteLevel" not in kinds:
        raise TokenizerError(
            f"the tokenizer's decoder is {decoder.get('type')}, expected ByteLevel",
            reason="text is put together from the bytes of byte-level tokens",
            remedy="use a model with a byte-level BPE tokenizer",
        )


def _tables(library: Any) -> tuple[list[bytes], dict[int, bytes]]:
    alphabet = {char: byte for byte, char in enumerate(_byte_alphabet())}
    added = library.get_added_tokens_decoder()
    vocab: dict[str, int] = library.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    special: dict[int, bytes] = {}
    for token, token_id in vocab.items():
        info = added.get(token_id)
        if info is not None:
            if info.special:
                special[token_id] = token.encode()
            else:
                table[token_id] = token.encode()
        elif all(char in alphabet for char in token):
            table[token_id] = bytes(alphabet[char] for char in token)
        else:
            table[token_id] = token.encode()
    return table, special


def _byte_alphabet() -> str:
    """The character that stands for each byte in a byte-level vocabulary: printable Latin-1, then 256 onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars: list[str] = []
    spare = 256
    for byte in range(256):
        if byte in printable:
            chars.append(chr(byte))
        else:
            chars.append(chr(spare))
            spare += 1
    return "".join(chars)
