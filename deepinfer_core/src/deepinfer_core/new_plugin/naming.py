"""What a new plugin, its distribution and its package are called, and which names are refused."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from importlib import metadata

from attrs import frozen

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import InvalidParameter
from deepinfer_core.plugins.discovery import package_folders
from deepinfer_core.plugins.manifest import NAME
from deepinfer_core.plugins.names import FIRST_PARTY, FIRST_PARTY_DISTRIBUTIONS, RESERVED_WORDS
from deepinfer_core.plugins.registry import Registry

KINDS = {
    "backend": "backend",
    "model": "model",
    "sampler": "sampler",
    "logits-filter": "logits_filter",
    "grammar": "grammar",
    "scorer": "scorer",
    "extension": "extension",
}
"""As typed -> as manifests, entry points and templates have it."""
_OURS = FIRST_PARTY_DISTRIBUTIONS | {"deepinfer-contracts", "deepinfer-core", "deepinfer-native"}


@frozen
class Names:
    """All names of a new plugin. Made by :func:`check_name`."""

    kind: str
    """As manifests have it: ``logits_filter``."""
    name: str

    @property
    def command(self) -> str:
        """The command of an extension."""
        return self.name.replace("_", "-")

    @property
    def distribution(self) -> str:
        """What pip installs, and the folder of the project."""
        return f"deepinfer-{self.command}"

    @property
    def package(self) -> str:
        """What Python imports."""
        return f"deepinfer_{self.name}"

    @property
    def group(self) -> str:
        """The entry point group."""
        return f"deepinfer.{self.kind}s"

    @property
    def architecture(self) -> str:
        """What ``config.json`` of a model's checkpoints says."""
        return "".join(word.capitalize() for word in self.name.split("_")) + "ForCausalLM"


def check_name(kind: str, name: str, commands: Collection[str] = ()) -> Names:
    """The names of a new plugin called ``name``.

    :param kind: A key of :data:`KINDS`.
    :param commands: Those that ``deepinfer`` has, whose names an extension cannot have.
    :raises InvalidParameter: the name has another form, is reserved, or is taken by something installed here.
    """
    if not NAME.fullmatch(name):
        raise _refused(name, "a plugin's name is a-z, 0-9 and _, begins with a letter, and has at most 32 characters")
    if "__" in name or name.endswith("_"):
        raise _refused(name, "a distribution cannot be named after it: put single underscores between words")
    if keyword.iskeyword(name):
        raise _refused(name, "it is a keyword of Python")
    if name in RESERVED_WORDS or name in {own for _, own in FIRST_PARTY}:
        raise _refused(name, "it is reserved")
    names = Names(KINDS[kind], name)
    if names.kind == "extension" and names.command in commands:
        raise _refused(name, f"deepinfer has a command {names.command}")
    if names.distribution in _OURS:
        raise _refused(name, f"its distribution would be {names.distribution}, which is DeepInfer's own")
    try:
        version = metadata.version(names.distribution)
    except metadata.PackageNotFoundError:
        pass
    else:
        raise _refused(name, f"{names.distribution} {version} is installed here")
    folders = package_folders(names.package)
    if folders:
        raise _refused(name, f"the package {names.package} is here already: {folders[0]}")
    owner = Registry.build(EngineConfig(), warn=lambda line: None).find(names.kind, name)
    if owner is not None:
        raise _refused(name, f"{owner.distribution} {owner.version} has a {kind} of that name")
    return names


def _refused(name: str, reason: str) -> InvalidParameter:
    spelt = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    near = spelt if spelt != name and NAME.fullmatch(spelt) and not keyword.iskeyword(spelt) else "acme_one"
    return InvalidParameter(
        f"a new plugin cannot be named {name!r}",
        reason=reason,
        remedy=f"choose another name, such as {near}",
        details={"field": "name", "value": name},
    )
