"""Decode steps as graphs of the device: recorded once for a number of rows, launched again by one call.

The core chooses the sizes, fills up the rows of a step with placeholders and keeps the inputs in one place. A backend
brings one method, ``capture`` (``deepinfer_core.interfaces.Backend``), and a model one promise, ``static_decode``.
"""

from deepinfer_core.graphs.choice import GraphChoice, choose_graphs
from deepinfer_core.graphs.decode import DecodeGraphs
from deepinfer_core.graphs.sizes import captured_sizes, covering

__all__ = ["DecodeGraphs", "GraphChoice", "captured_sizes", "choose_graphs", "covering"]
