"""``deepinfer plugins check``: examine a plugin before its release, without importing or building it.

::

    notes    one thing that was found
    subject  what is examined: a source tree, a wheel, or an installed distribution, all read as files
    packing  whether a source tree's build would take the manifest along
    checks   everything that installation and loading will ask of it
    code     its modules as text: hooks, their arguments, and what an import of them would import
"""
