"""Import the installed ``deepinfer_core`` first: in importlib mode the folder of that name would shadow it."""

import deepinfer_core  # noqa: F401
