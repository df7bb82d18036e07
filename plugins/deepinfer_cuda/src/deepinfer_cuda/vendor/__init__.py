"""Kernels of other libraries, each bound lazily and only where the user names its library.

``table.py`` has one row for each bound symbol; ``loading.py`` looks it up in the library that is installed;
``serving.py`` puts it in place of an op for the arguments that it takes. Nothing here was run on a device.
"""
