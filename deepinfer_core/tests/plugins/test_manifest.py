"""Each way in which a manifest can be wrong, and its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.errors import ManifestError
from deepinfer_core.plugins.manifest import MAX_BYTES, parse_manifest, read_manifest

HEAD = 'schema = 1\napi = ">=1.0,<2"\n'
TOY = HEAD + '[[backend]]\nname = "toy"\n'


def parse(text: str):
    return parse_manifest(text.encode(), Path("deepinfer.toml"))


def test_manifest_with_every_key_is_read():
    manifest = parse(
        HEAD
        + '[contracts.SchedulerOutputs]\nfields = 14\nchain = "9f31c05be2a4d7f0"\n'
        + '[[backend]]\nname = "toy"\nsummary = "A toy"\narch = ["toy1"]\n'
        + 'claims = ["feature:graphs", "kv:v41_fp4", "op:moe.mega"]\n'
        + 'requires = { os = ["linux"], machine = ["x86_64"], any_path = ["/dev/toy*"], modules = ["json"] }\n'
        + '[[model]]\nname = "tiny"\narchitectures = ["TinyLM"]\ncheckpoint = "checkpoints/tiny"\n'
    )
    toy = manifest.tables["backend", "toy"]
    assert toy.claims == {"feature:graphs", "kv:v41_fp4", "op:moe.mega"}
    assert (toy.requires.os, toy.requires.any_path) == (("linux",), ("/dev/toy*",))
    assert manifest.tables["model", "tiny"].checkpoint == "checkpoints/tiny"
    assert manifest.contracts["SchedulerOutputs"].fields == 14


def test_claims_on_an_architecture_add_to_those_on_all():
    text = 'arch = ["toy1", "toy2"]\nclaims = ["feature:graphs"]\nclaims_on = { toy2 = ["op:moe.mega"] }\n'
    toy = parse(TOY + text).tables["backend", "toy"]
    assert toy.claims_for("toy1") == {"feature:graphs"}
    assert toy.claims_for("toy2") == {"feature:graphs", "op:moe.mega"}
    assert toy.claims_for("") == {"feature:graphs"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('api = ">=1.0"', "deepinfer.toml: schema must be 1, got None"),
        ('schema = 2\napi = ">=1.0"', "deepinfer.toml: schema must be 1, got 2"),
        ("schema = 1", "deepinfer.toml: api must be a text, got None"),
        (HEAD + "backends = 3", "deepinfer.toml: unknown key 'backends'; did you mean 'backend'?"),
        (HEAD + '[backend]\nname = "toy"', "deepinfer.toml: write [[backend]], one table for each backend"),
        (
            HEAD + '[[backend]]\nname = "Toy"',
            "deepinfer.toml: [[backend]] needs a name of the form [a-z][a-z0-9_]*, got 'Toy'",
        ),
        (TOY + 'sumary = "x"', "deepinfer.toml: backend 'toy': unknown key 'sumary'; did you mean 'summary'?"),
        (
            TOY + 'claims = ["feature:grahps"]',
            "deepinfer.toml: backend 'toy': unknown claim 'feature:grahps'; did you mean 'feature:graphs'?",
        ),
        (
            TOY + 'arch = ["toy1"]\nclaims_on = { toy2 = ["feature:graphs"] }',
            "deepinfer.toml: backend 'toy': claims_on: 'toy2' is not in arch; did you mean 'toy1'?",
        ),
        (
            TOY + 'arch = ["toy1"]\nclaims_on = { toy1 = ["feature:grahps"] }',
            (
                "deepinfer.toml: backend 'toy': claims_on: toy1: unknown claim 'feature:grahps'; did you mean "
                "'feature:graphs'?"
            ),
        ),
        (
            TOY + 'arch = ["toy1"]\nclaims = ["feature:graphs"]\nclaims_on = { toy1 = ["feature:graphs"] }',
            (
                "deepinfer.toml: backend 'toy': claims_on: toy1: feature:graphs is in claims, and so claimed on every "
                "architecture"
            ),
        ),
        (TOY + 'claims_on = ["feature:graphs"]', "deepinfer.toml: backend 'toy': claims_on must be a table"),
        (
            TOY + 'arch = ["toy1"]\nclaims_on = { toy1 = "feature:graphs" }',
            "deepinfer.toml: backend 'toy': claims_on: toy1 must be a list of texts, got 'feature:graphs'",
        ),
        (
            HEAD + '[[sampler]]\nname = "toy"\nclaims_on = { toy1 = ["feature:graphs"] }',
            "deepinfer.toml: sampler 'toy': unknown key 'claims_on'; did you mean 'claims'?",
        ),
        (
            TOY + 'claims = ["graphs"]',
            "deepinfer.toml: backend 'toy': unknown claim 'graphs'; a claim begins with feature:, kv: or op:",
        ),
        (
            TOY + 'claims = ["op:norm.rms"]',
            "deepinfer.toml: backend 'toy': claim 'op:norm.rms' is of a required op, which every backend has",
        ),
        (TOY + 'arch = "toy1"', "deepinfer.toml: backend 'toy': arch must be a list of texts, got 'toy1'"),
        (
            TOY + 'requires = { oss = ["linux"] }',
            "deepinfer.toml: backend 'toy': requires: unknown key 'oss'; did you mean 'os'?",
        ),
        (TOY + '[[backend]]\nname = "toy"', "deepinfer.toml: two [[backend]] tables are named 'toy'"),
        (
            HEAD + '[[model]]\nname = "tiny"',
            "deepinfer.toml: model 'tiny': architectures must name at least one architecture",
        ),
        (
            HEAD + '[[model]]\nname = "tiny"\narchitectures = ["A"]\ncheckpoint = "../secret"',
            "deepinfer.toml: model 'tiny': checkpoint must be a path inside the package, got '../secret'",
        ),
        (
            HEAD + '[contracts.X]\nfields = 1\nchain = "zz"',
            "deepinfer.toml: contracts.X: chain must be 16 hexadecimal digits, got 'zz'",
        ),
        (
            HEAD + '[contracts.X]\nfields = -1\nchain = "9f31c05be2a4d7f0"',
            "deepinfer.toml: contracts.X: fields must be an integer from 0 to 1024, got -1",
        ),
        ("x" * (MAX_BYTES + 1), f"deepinfer.toml is larger than {MAX_BYTES} bytes"),
    ],
)
def test_manifest_that_is_wrong_says_where(text, message):
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert caught.value.what == message


@pytest.mark.parametrize("data", [b"schema = ", b"\xff\xfe"])
def test_manifest_that_is_no_toml_is_refused(data):
    with pytest.raises(ManifestError, match="is not TOML"):
        parse_manifest(data, Path("deepinfer.toml"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("json", "entry point value 'json' is not <top package>:<file>"),
        ("json:../x.toml", "entry point value 'json:../x.toml' is not <top package>:<file>"),
        ("a.b:deepinfer.toml", "the manifest is in 'a.b'; it must be in a top-level package"),
        ("no_such_pkg:d.toml", "package 'no_such_pkg' is not importable here, or is a single module"),
        ("this:deepinfer.toml", "package 'this' is not importable here, or is a single module"),
    ],
)
def test_manifest_entry_value_that_is_wrong_says_so(value, message):
    with pytest.raises(ManifestError) as caught:
        read_manifest(value)
    assert caught.value.what == message
