"""Makes the slow plain versions beside the tests importable, whichever import mode pytest runs in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
