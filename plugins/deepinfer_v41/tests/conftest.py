"""Makes the modules of this folder importable by its tests (pytest runs in importlib mode, which adds no path)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
