"""``deepinfer doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import json

import click

from deepinfer_core.cli.generate import SETTINGS
from deepinfer_core.cli.state import CommandState, common_options, setting_options


@click.command("doctor")
@click.argument("name", required=False)
@click.option(
    "--settings", "show_settings", is_flag=True, help="Print every setting, its value and where it comes from."
)
@setting_options(*SETTINGS)
@common_options
@click.pass_obj
def doctor(state: CommandState, name: str | None, show_settings: bool) -> int:
    """Examine the installation, or the plugins called NAME (a name, KIND:NAME or a distribution).

    Each plugin is loaded, probed and asked in processes of its own, with a time limit: one that crashes, hangs or
    prints is reported, and the others are examined all the same. With --model DIR it also says what would run that
    model: plugin, backend, who computes each op, memory, and problems of the checkpoint. No weights are loaded.

    Exit status: 0 all well, or a problem of a plugin that nobody named; 1 a problem in what was named or what every
    run needs; 2 usage; 3 no plugin is called NAME.
    """
    from deepinfer_core.cli.root import versions
    from deepinfer_core.doctor.diagnose import Scope, diagnose
    from deepinfer_core.doctor.settings_checks import effective, resolve
    from deepinfer_core.doctor.text import as_text, settings_text

    resolved = resolve(state.flags, state.config_file)
    report = diagnose(resolved, Scope(name, state.flags), versions())
    settings = effective(resolved.config) if show_settings else None
    if state.json:
        click.echo(json.dumps(report.as_data(settings)))
    else:
        click.echo(as_text(report))
        if settings is not None:
            click.echo("\n" + settings_text(settings))
    return report.exit_status
