"""Bounded replay beside its rule (``spec/model.md`` 5, ``spec/engine.md`` 2.10 and 3.7).

Level 1 needs no weights: what the packer's arrays mean, row by row, beside the rule written plainly. Level 2 runs a
checkpoint and compares bits.

===================  =================================================================================
``rule``             which rows run, what each of them sees, and what it stores
``contents``         caches that hold, in place of numbers, what was stored
``core_run``         requests through the native scheduler and packer, with made-up tokens
``prefill_arrays``   the arrays of a prefill step, turned into what each row sees and stores, beside the rule
``decode_arrays``    the same of a decode step
``beside``           one thing of one row, compared
``level1``           lengths, chunk sizes, hits and modes
``traced``           an engine that records log-probabilities, drafts and confidences
``prompts``          the prompts of level 2
``bits``             two traces, bit by bit
``level2``           modes, chunks and hits of one checkpoint beside each other
``findings``         what was compared, and what differs
``report``           the same for a reader
===================  =================================================================================
"""
