"""Perplexity of the decode path against baselines (``spec/sampling.md`` 6.2).

=============  =======================================================================================
``workloads``  what is computed: texts, how they are cut, drafts, arithmetic
``measure``    tokens forced through decode steps, and their log-probabilities
``platforms``  which machines compute the same bits
``records``    one entry of a file of baselines, and the file itself
``storage``    the file: read, and written as a whole under a lock
``comparison`` what was computed beside an entry
``outcomes``   which entry that is, and what an update writes
``report``     the same for a reader
=============  =======================================================================================
"""
