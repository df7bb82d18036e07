"""The tracing helper itself: it must tell rounding from a wrong model."""

from __future__ import annotations

import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_tiny import edited, prompt, tiny_path, tiny_recorded
from v41_tracing import Root, code_distance, trace_roots

IDS = prompt(90, seed=17)


def test_same_weights_part_at_close_calls_only():
    driver, recorder = tiny_recorded(tiny_path(), "kvq")
    roots = trace_roots(driver, recorder, DenseReference(tiny_path()), IDS)
    assert all(root.explained for root in roots), "\n".join(map(str, roots))


def test_a_wrong_weight_is_found_in_its_layer_and_not_explained():
    def edit(t: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "layers.4.attn.kv_norm.weight"
        return {name: t[name] * 1.02}

    driver, recorder = tiny_recorded(edited(tiny_path(), edit), "kvq")
    roots = trace_roots(driver, recorder, DenseReference(tiny_path()), IDS)
    wrong = [root for root in roots if not root.explained]
    assert wrong
    assert (wrong[0].kind, wrong[0].layer) == ("swa", 4)
    assert "NOT explained" in str(wrong[0])


def test_a_value_beside_a_midpoint_is_a_close_call_and_one_between_is_not():
    row = torch.full((2, 32), 5.5)
    row[0, 3] = 2.5 * (1 + 1e-6)
    row[1, 3] = 2.2
    differs = torch.zeros(2, 32, dtype=torch.bool)
    differs[:, 3] = True
    near, far = code_distance(row, differs, "index").tolist()
    assert Root(0, 0, "index", 2, near).explained
    assert not Root(0, 0, "index", 2, far).explained
