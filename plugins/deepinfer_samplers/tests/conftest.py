"""Makes the slow plain versions beside the tests importable, whichever import mode pytest runs in."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def engine():
    """The grammar engine over a vocabulary of bytes and some longer tokens; the test is skipped without the library."""
    if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
        pytest.skip("structured output is not installed: requirements-xgrammar.txt")
    from structured_walk import ByteTokenizer

    from deepinfer_samplers.grammars.xgrammar_engine import XGrammarEngine

    tokenizer = ByteTokenizer()
    return XGrammarEngine(tokenizer, tokenizer.size, 64 * 2**20)
