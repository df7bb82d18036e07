"""Import the installed ``deepinfer_core`` first: in importlib mode the folder of that name would shadow it."""

import signal

import deepinfer_core  # noqa: F401

# A job that a shell starts in the background inherits an ignored SIGINT, and so would every process of the tests: those
# about Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
