"""Finding, checking, loading and choosing plugins, one step of ``spec/plugins.md`` in each module."""
