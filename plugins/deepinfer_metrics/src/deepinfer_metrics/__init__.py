"""DeepInfer's observability (``spec/engine.md`` 9.1 and 9.2); all of it is off until a setting of ``[observe]`` asks.

``metrics``    counters, levels and histograms of an engine, under the names of 9.1
``health``     live, ready, started: the rules of 9.2
``server``     both over HTTP
``step_log``   a JSON line every so many steps
``traces``     OpenTelemetry spans of requests and steps
``observer``   the observer that feeds them
"""
