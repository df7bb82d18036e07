"""Needs a package that is not installed."""

import acme_driver  # noqa: F401
