"""Reading a checkpoint: every tensor of the table once, with its dtype, shape and scale, or one error that lists all.

Nothing is converted: FP8, MXFP4 and E8M0 tensors come out as stored, mapped from the files. The one exception are
F32 scales, taken where each value is a power of two and handed out as E8M0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

import attrs
from torch import Tensor

from deepinfer_core.errors import InvalidParameter
from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.checks import check_names, check_storage, find_absent_stages, require_draft
from deepinfer_v41.weights.formats import f32_to_e8m0
from deepinfer_v41.weights.index import ShardSet, open_shards
from deepinfer_v41.weights.problems import Problems
from deepinfer_v41.weights.table import tensor_table

DraftMode = Literal["auto", "on", "off"]


@attrs.frozen(eq=False)
class LoadedTensors(Mapping[str, Tensor]):
    """Name (without ``model.``) -> tensor as stored. Data is mapped from the files when a tensor is asked for."""

    draft_stages: int
    """Draft stages whose tensors are all there: ``num_nextn_predict_layers``, or 0."""
    draft_note: str
    """Why drafting is off, in words for the user; empty when it is possible."""
    _shards: ShardSet = attrs.field(repr=False)
    _names: tuple[str, ...] = attrs.field(repr=False)

    @property
    def has_draft(self) -> bool:
        return self.draft_stages > 0

    @property
    def num_shards(self) -> int:
        """Files that the index names."""
        return len(self._shards.handles)

    def __getitem__(self, name: str) -> Tensor:
        stored = self._shards.tensors[name]
        tensor = self._shards.read(name)
        return f32_to_e8m0(tensor) if name.endswith(".scale") and stored.dtype == "F32" else tensor

    def __contains__(self, name: object) -> bool:
        return name in self._shards.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_tensors(path: Path | str, config: V41Config, *, draft: DraftMode = "auto") -> LoadedTensors:
    """Open the checkpoint in directory ``path`` and check it against ``config``.

    :param draft: ``on``: the draft stages must be there. ``auto`` and ``off``: they may be absent as a whole; a
        stage that is there in part is an error in every mode.

    Raises CheckpointError listing every problem in groups, ModelNotFound when there is no such directory, and
    InvalidParameter for an unknown ``draft``.
    """
    if draft not in get_args(DraftMode):
        modes = ", ".join(repr(mode) for mode in get_args(DraftMode))
        raise InvalidParameter(f"draft is {draft!r}", reason=f"must be one of {modes}", remedy="use 'auto'")
    directory = Path(path)
    problems = Problems(directory)
    shards = open_shards(directory, problems)
    table = tensor_table(config)
    absent = find_absent_stages(table, shards)
    if draft == "on":
        require_draft(config, absent, table, problems)
    check_names(table, shards, absent, problems)
    check_storage(table, shards, problems)
    problems.raise_if_any()
    return LoadedTensors(
        draft_stages=0 if absent else config.num_nextn_predict_layers,
        draft_note=_draft_note(config, absent),
        shards=shards,
        names=tuple(name for name in table if name in shards.tensors),
    )


def _draft_note(config: V41Config, absent: list[int]) -> str:
    if config.num_nextn_predict_layers == 0:
        return "drafting is off: the model has no draft stages"
    if absent:
        stages = ", ".join(f"mtp.{stage}" for stage in absent)
        return f"drafting is off: the checkpoint has no weights of draft stage{'s' if len(absent) > 1 else ''} {stages}"
    return ""
