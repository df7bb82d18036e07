"""Structured output: answers that keep to a grammar (``spec/sampling.md`` 3).

=============  ==========================================================================================
module          what it does
=============  ==========================================================================================
``forms``       what a request may ask for, checked when its parameters are made
``sizes``       limits of schemas, before a compiler sees them
``compiling``   worker threads that compile, their time limit, and what happens to a stuck one
``cache``       compiled grammars by their text
``trigger``     where a sequence of tokens begins that switches a grammar on
``lifecycle``   dormant, forced, constrained, terminated: one answer in its grammar, and back
``progress``    the lifecycle of a request that runs: tokens taken, drafts tried
``waiting``     requests that wait for their grammar
``running``     requests that run in theirs: the masks of each step
``masks``       the arrays that a step's masks are written to
``failures``    how a request ends that its grammar ends
``report``      what it has cost
``manager``     the engine's hold on all of it
=============  ==========================================================================================

A grammar engine (``deepinfer_core.interfaces.GrammarEngine``) knows one grammar and its tokens; everything around it is
here, once for all engines.
"""
