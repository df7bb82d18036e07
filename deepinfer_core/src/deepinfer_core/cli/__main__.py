"""``python -m deepinfer_core.cli``: the same as the ``deepinfer`` command."""

import sys

from deepinfer_core.cli import main

sys.exit(main())
