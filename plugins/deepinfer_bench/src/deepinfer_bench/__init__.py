"""The command ``deepinfer bench``: how fast the engine runs here, by the method of ``spec/engine.md`` 9.4."""
