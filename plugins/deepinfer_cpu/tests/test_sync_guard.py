"""Host reads of tensors are found and named; what the backend does itself, and declared reads, are not."""

import pytest
import torch

from deepinfer_core.errors import HiddenSync
from deepinfer_cpu.sync_guard import DECLARATION, NoSync

X = torch.tensor([[1.0, 0.0], [2.0, 3.0]])

READS = {
    "item": lambda: X[0, 0].item(),
    "float": lambda: float(X[0, 0]),
    "bool": lambda: bool((X > 0).any()),
    "if": lambda: 1 if X.sum() else 0,
    "index": lambda: [1, 2][X[1, 1].long() - 2],
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "array": lambda: __import__("numpy").asarray(X),
    "cpu": lambda: X.cpu(),
    "to cpu": lambda: X.to("cpu"),
    "to device cpu": lambda: X.to(device="cpu"),
    "nonzero": lambda: X.nonzero(),
    "where": lambda: torch.where(X > 0),
    "mask": lambda: X[X > 0],
    "masked store": lambda: X.clone().index_put_((X > 0,), torch.ones(3)),
    "masked_select": lambda: X.masked_select(X > 0),
    "unique": lambda: X.unique(),
    "equal": lambda: torch.equal(X, X),
    "bincount": lambda: torch.bincount(X.long().view(-1)),
    "repeat": lambda: torch.repeat_interleave(torch.tensor([1, 2])),
}
FREE = {
    "matmul": lambda: X @ X,
    "where of three": lambda: torch.where(X > 0, X, 0),
    "mask with one value": lambda: X.clone().masked_fill_(X > 0, 1.0),
    "store of one value": lambda: X.clone().__setitem__(X > 0, 1.0),
    "index": lambda: X[torch.tensor([1, 0])],
    "len": lambda: len(X) + X.shape[0] + X.numel(),
    "to dtype": lambda: X.to(torch.int32),
    "to its device": lambda: X.to(X.device),
    "repeat of known size": lambda: torch.repeat_interleave(torch.tensor([1, 2]), output_size=3),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", list(READS))
def test_host_read_is_an_error_with_its_place(kind: str, inference: bool) -> None:
    with torch.inference_mode(inference), NoSync(), pytest.raises(HiddenSync) as caught:
        READS[kind]()
    assert caught.value.code == "E_SYNC"
    assert str(caught.value.details["place"]).startswith(__file__)
    READS[kind]()  # outside it is nobody's business


@pytest.mark.parametrize("kind", list(FREE))
def test_work_that_stays_on_the_device_is_free(kind: str) -> None:
    with torch.inference_mode(), NoSync():
        FREE[kind]()


def test_op_of_the_backend_may_read(backend) -> None:
    from deepinfer_cpu.ops import meta

    with NoSync():  # how many rows there are is in the lengths, which this op reads itself
        out = meta.decode_metadata(
            *(torch.tensor(v, dtype=torch.int32) for v in ([2], [5], [[1]], [0], [0])),
            block_size=8, window=0, ring=0,
        )  # fmt: skip
    assert out["positions"].tolist() == [3, 4]
    with backend.no_sync(), pytest.raises(HiddenSync):
        X.tolist()


def test_module_that_declares_host_reads_is_believed() -> None:
    scope = {DECLARATION: "the values never leave the host"}
    exec("def read(x):\n    return x.tolist()\n", scope)
    with NoSync():
        read = scope["read"](X)
    assert read == X.tolist()


def test_guard_ends_with_an_exception_and_may_be_entered_again() -> None:
    guard = NoSync()
    for _ in range(2):
        with pytest.raises(HiddenSync), guard:
            X.tolist()
        X.tolist()
