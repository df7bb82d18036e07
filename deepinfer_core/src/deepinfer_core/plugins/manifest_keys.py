"""Every key of ``deepinfer.toml``: what the reader allows, and what ``docs/reference/manifest.md`` says of it."""

from __future__ import annotations

from attrs import frozen

KINDS = ("backend", "model", "sampler", "grammar", "logits_filter", "scorer", "extension")


@frozen
class Key:
    """One key of a table."""

    name: str
    values: str
    help: str
    required: bool = False
    kinds: tuple[str, ...] = ()
    """Kinds of plugin whose table may have it; empty: all."""


TOP_KEYS = (
    Key("schema", "`1`", "Version of this file format.", required=True),
    Key(
        "api",
        "PEP 440 range over MAJOR.MINOR",
        "Versions of the plugin API that the plugins support; another core refuses them (`E_API`).",
        required=True,
    ),
    Key(
        "contracts",
        "tables `[contracts.NAME]`",
        "Records that compiled code of the distribution reads; leave it out where there is no compiled code.",
    ),
    *(
        Key(kind, f"tables `[[{kind}]]`", f"One for each entry point in group `deepinfer.{kind}s`, of the same name.")
        for kind in KINDS
    ),
)
PLUGIN_KEYS = (
    Key("name", "text", "The plugin's name, `[a-z][a-z0-9_]*`, at most 32 characters.", required=True),
    Key("summary", "text", "What it is, in one line of `deepinfer plugins`."),
    Key(
        "claims",
        "list of texts",
        "What it can do beyond what every plugin of its kind must: `feature:NAME`, `kv:FORMAT`, `op:ID`. The "
        "conformance kit tests each.",
    ),
    Key(
        "requires",
        "table",
        "What the host must have. `--backend auto` and `grammar_engine = auto` leave out a plugin where it does not "
        "hold.",
    ),
    Key(
        "commands",
        "list of tables",
        "Commands that it adds to `deepinfer`; `deepinfer_cli_commands` says what runs.",
    ),
    Key(
        "arch",
        "list of texts",
        "Device architectures that the compiled kernels run on, compared with what the probe finds; empty: any.",
        kinds=("backend",),
    ),
    Key(
        "emulates",
        "`true`",
        "The backend's code also runs on the processor, in place of its device, where `--emulate` asks for it.",
        kinds=("backend",),
    ),
    Key(
        "claims_on",
        "table of lists of texts",
        "What it can do beyond `claims` on some of the architectures of `arch` only, by their names: "
        '`claims_on = { acme3 = ["op:moe.mega"] }`. What is compared with a model, and tested by the conformance kit, '
        "is `claims` and what is claimed on the architecture that the probe finds.",
        kinds=("backend",),
    ),
    Key(
        "architectures",
        "list of texts",
        "Names in `architectures` of `config.json` that the model runs.",
        required=True,
        kinds=("model",),
    ),
    Key(
        "checkpoint",
        "text",
        "Folder inside the package with a small checkpoint, used when no `--model` is given.",
        kinds=("model",),
    ),
)
REQUIRES_KEYS = (
    Key("os", "list of texts", "Beginnings of `sys.platform`, one of which must fit: `linux`, `darwin`, `win32`."),
    Key("machine", "list of texts", "Processors, one of which must be `platform.machine()`: `x86_64`, `aarch64`."),
    Key("any_path", "list of texts", "File patterns, one of which must match something: `/dev/davinci*`."),
    Key("modules", "list of texts", "Python packages, all of which must be installed; none is imported."),
)
COMMAND_KEYS = (
    Key("name", "text", "The command's name, `[a-z][a-z0-9_-]*`, at most 32 characters.", required=True),
    Key("summary", "text", "What it does, in one line.", required=True),
)
CONTRACT_KEYS = (
    Key("fields", "integer", "How many leading fields of the record the compiled code reads.", required=True),
    Key("chain", "16 hexadecimal digits", "Prefix hash after that field, from the record's page.", required=True),
    Key(
        "chains",
        "list of texts",
        "Prefix hash after each of these fields, the last one `chain`: with them a refusal names the first field that "
        "differs.",
    ),
)


def plugin_keys(kind: str) -> tuple[Key, ...]:
    """The keys that a table of this kind may have."""
    return tuple(key for key in PLUGIN_KEYS if not key.kinds or kind in key.kinds)
