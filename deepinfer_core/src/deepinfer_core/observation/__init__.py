"""What observers see of an engine that runs (``spec/engine.md`` 9.1 and 9.2).

``settings``   what a person wants to see, and where
``interfaces`` what an observer offers, and what it may ask
``watch``      tells the observers of plugins of steps and ends of requests, and answers their questions
"""
