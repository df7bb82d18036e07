"""``deepinfer eval``: the group. Its two commands are in modules of their own, which share no work."""

from __future__ import annotations

import click

from deepinfer_eval.generate_command import generate
from deepinfer_eval.score_command import score


@click.group("eval")
def eval_group() -> None:
    """Answer a data set, and score the answers."""


eval_group.add_command(generate)
eval_group.add_command(score)
