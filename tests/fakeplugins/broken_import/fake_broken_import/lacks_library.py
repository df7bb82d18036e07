"""Needs a shared library that is not there."""

import ctypes

ctypes.CDLL("libacme_rt.so.7")
