"""Fill the templates: files of ``templates/common`` and of the kind's own folder, which may replace common ones.

A file that ends in ``.j2`` is a Jinja template; any other one is copied. The folder ``package`` gets the name of the
package. Names that a template misspells are errors, never empty text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from attrs import asdict

from deepinfer_core.errors import LibraryMissing
from deepinfer_core.new_plugin.facts import Facts
from deepinfer_core.new_plugin.naming import Names

TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".j2"


def render(names: Names, facts: Facts) -> dict[PurePosixPath, bytes]:
    """The files of a new plugin: path inside the project's folder -> content, sorted by path.

    :raises LibraryMissing: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 60 ms, and not everybody has it
    except ImportError as err:
        raise LibraryMissing(
            "new-plugin needs the package jinja2",
            reason=str(err),
            remedy="pip install 'deepinfer-core[new-plugin]'",
            details={"package": "jinja2"},
        ) from err
    # Not HTML: nothing is escaped. Every value that a template gets was checked, or is a fact of the core.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    values: Mapping[str, object] = {
        "kind": names.kind,
        "kind_typed": names.kind.replace("_", "-"),
        "name": names.name,
        "distribution": names.distribution,
        "package": names.package,
        "group": names.group,
        "command": names.command,
        "architecture": names.architecture,
        **asdict(facts),
    }
    files: dict[PurePosixPath, bytes] = {}
    for source, target in _sources(names):
        if source.suffix == _SUFFIX:
            text = environment.get_template(source.relative_to(TEMPLATES).as_posix()).render(values)
            files[target] = text.encode("utf-8")
        else:
            files[target] = source.read_bytes()
    return dict(sorted(files.items()))


def _sources(names: Names) -> Iterator[tuple[Path, PurePosixPath]]:
    """Template file and the path that it stands for; those of the kind come later, and win."""
    for folder in (TEMPLATES / "common", TEMPLATES / names.kind):
        for source in sorted(path for path in folder.rglob("*") if path.is_file()):
            parts = [names.package if part == "package" else part for part in source.relative_to(folder).parts]
            yield source, PurePosixPath(*parts[:-1], parts[-1].removesuffix(_SUFFIX))
