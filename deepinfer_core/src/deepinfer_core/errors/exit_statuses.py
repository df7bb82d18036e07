"""The exit statuses of ``deepinfer``. The text below each is its meaning in the reference."""

EXIT_OK = 0
"""Everything asked for was done."""
EXIT_SOME_FAILED = 1
"""Some requests failed, each with its reason; the others have their results. ``deepinfer doctor``: a problem in what
was named or what every run needs."""
EXIT_USAGE = 2
"""A parameter, setting, prompt or input file is wrong, or asks for what this release does not have."""
EXIT_BACKEND = 3
"""No backend can be used, or a plugin failed."""
EXIT_MODEL = 4
"""The model, its configuration, its checkpoint or its tokenizer is wrong."""
EXIT_MISMATCH = 5
"""A result differs from its baseline, or a run from the one whose file it wants to go on with."""
EXIT_INTERNAL = 70
"""A fault of DeepInfer or of a plugin."""
EXIT_OUTPUT = 74
"""Results could not be written (no space left, or the file or stream refuses them)."""
EXIT_INTERRUPTED = 130
"""Interrupted (Ctrl-C)."""
EXIT_TERMINATED = 128 + 15
"""Ended by SIGTERM. What Ctrl-C keeps is kept."""
EXIT_READER_LEFT = 128 + 13  # what a shell reports for a process that SIGPIPE ended
"""The reader of standard output, or of the pipe given to ``--out``, left before the end."""
