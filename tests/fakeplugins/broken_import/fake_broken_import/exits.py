"""Ends the process that imports it."""

import sys

sys.exit("acme: no licence found")
