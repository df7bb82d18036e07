"""DeepInfer's evaluations: ``deepinfer eval generate`` and ``deepinfer eval score`` (``spec/sampling.md`` 6.1).

``dataset``      items of a JSON-lines file, checked as a whole
``answers``      what a file of answers says: its header and its lines
``journal``      that file while it grows: appended to, never rewritten
``generating``   the answers that are still missing, from an engine
``scoring``      a verdict on each answer, and Pass@1 of all
``scorers/``     the scorers of this distribution
"""
