"""``deepinfer doctor``: what is installed here, what of it works, and what a model would run on.

Everything that belongs to a plugin runs in a child process, so that nothing a plugin does ends the diagnosis::

    findings      one line of the report, and the report
    installation  Python, our distributions, what they require, the settings
    plugin_checks each plugin: manifest, import, where it came from, device, its own checks
    child_tasks   what runs in the children
    model_plan    model card, plugin, backend, execution plan, memory, checkpoint; no weights are read
    text          the report for people
"""
