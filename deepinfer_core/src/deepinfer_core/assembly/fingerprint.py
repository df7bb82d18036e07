"""Which model a folder holds, by its content and not by its name."""

from __future__ import annotations

import hashlib
from pathlib import Path

WHOLE_BYTES = 64 << 20
"""Files up to this size are read whole."""
SAMPLES, SAMPLE_BYTES = 64, 64 << 10
"""Of larger ones: so many pieces of this size at even distances, the first and the last bytes among them."""
SUFFIXES = (".json", ".safetensors")


def model_fingerprint(folder: Path) -> str:
    """``blake2b:`` and 32 hex digits over names, sizes and content of configuration, tokenizer and weights.

    Large files are sampled, 4 MiB each: weights of half a terabyte cost a second, and a change of less than a tensor
    may go unseen there. Raises OSError for a folder that cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= WHOLE_BYTES:
                while piece := stream.read(1 << 20):
                    digest.update(piece)
            else:
                for index in range(SAMPLES):
                    stream.seek((size - SAMPLE_BYTES) * index // (SAMPLES - 1))
                    digest.update(stream.read(SAMPLE_BYTES))
    return f"blake2b:{digest.hexdigest()}"
