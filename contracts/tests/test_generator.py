"""The generator: idempotent, red on a hand edit, append only against the released chains, clear about mistakes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import generate
import pytest
from generator import history, lang
from generator.outputs import render
from generator.reader import load
from generator.schema import SchemaError

CONTRACTS = Path(generate.HERE)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """A copy of the schemas that may be edited."""
    return Path(shutil.copytree(CONTRACTS / "schema", tmp_path / "schema"))


def edit(folder: Path, file: str, change: Callable[[str], str]) -> None:
    path = folder / file
    before = path.read_text(encoding="utf-8")
    after = change(before)
    if before == after:
        raise AssertionError(f"the edit of {file} changes nothing")
    path.write_text(after, encoding="utf-8")


def test_generated_files_in_the_tree_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_generate_twice_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--root", str(tmp_path)]) == 0
    assert generate.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" 0 written")


@pytest.mark.parametrize("name", ["native/src/di_checks.c", "contracts/src/deepinfer_contracts/_chains.py"])
def test_check_after_a_hand_edit_lists_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    generate.main(["--root", str(tmp_path)])
    edited = tmp_path / name
    edited.write_text(edited.read_text(encoding="utf-8") + " ", encoding="utf-8")
    capsys.readouterr()
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [f"  {name}"]
    assert edited.read_text(encoding="utf-8").endswith(" ")


FIELD = '[[field]]\nname = "extra"\ndtype = "i32"\ndoc = "new"\n'


def test_history_accepts_an_appended_field(schema: Path) -> None:
    edit(schema, "event_batch.toml", lambda t: f"{t}\n{FIELD}")
    history.check(load(schema), CONTRACTS / "history")


def _swap(text: str) -> str:
    blocks = re.split(r"(?m)^(?=\[\[field\]\])", text)
    blocks[2], blocks[3] = blocks[3], blocks[2]
    return "".join(blocks)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.replace('name = "token_id"', 'name = "token"').replace("token_id", "token"), "token_id"),
        (lambda t: t.replace('name = "logprob"\ndtype = "f32"', 'name = "logprob"\ndtype = "f64"'), "logprob"),
        (lambda t: t.replace('name = "prompt_len"\ndtype = "i32"', 'name = "prompt_len"\ndtype = "u32"'), "prompt_len"),
        (_swap, "kind"),
        (lambda t: t.replace("[[field]]", FIELD + "\n[[field]]", 1), "seq_uid"),
        (
            lambda t: t[: t.index('[[field]]\nname = "prompt_logprobs"')].replace("len(prompt_logprobs)", "Pl"),
            "is gone",
        ),
    ],
    ids=["rename", "width", "sign", "reorder", "insert", "remove"],
)
def test_history_refuses_a_changed_field_by_name(schema: Path, change: Callable[[str], str], named: str) -> None:
    edit(schema, "event_batch.toml", change)
    with pytest.raises(SchemaError, match=named) as caught:
        history.check(load(schema), CONTRACTS / "history")
    assert "EventBatch" in str(caught.value)


def test_history_accepts_a_change_with_a_new_major(schema: Path) -> None:
    edit(schema, "event_batch.toml", lambda t: _swap(t).replace('version = "1.0"', 'version = "2.0"'))
    history.check(load(schema), CONTRACTS / "history")


def test_history_refuses_a_renumbered_enum(schema: Path) -> None:
    edit(schema, "enums.toml", lambda t: t.replace("ABORT = 3, TOO_LONG = 4", "ABORT = 4, TOO_LONG = 3"))
    with pytest.raises(SchemaError, match=r"FinishReason\.ABORT was released as 3 and is now 4"):
        history.check(load(schema), CONTRACTS / "history")


def test_released_history_is_never_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--record", "1.0"]) == 2
    assert "never written again" in capsys.readouterr().err


def test_history_holds_the_current_chains() -> None:
    released = json.loads((CONTRACTS / "history" / "1.0.json").read_text(encoding="utf-8"))
    current = load(CONTRACTS / "schema")
    for c in current.contracts:
        old = released["contracts"][c.name]["chain"]
        assert [f"{h:016x}" for h in c.chain[: len(old)]] == old


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("all(token_id >= )", "expected a value, got ')'"),
        ("all(token_id >= 0", "expected ',', got 'the end'"),
        ("token_id ? 0", "unexpected character '?'"),
        ("all(token >= 0)", "no field, dimension or limit named 'token'"),
        ("all(token_id >= Flavour.SWEET)", "no enum named 'Flavour'"),
        ("all(kind == EventKind.SLEEP)", "EventKind has no member 'SLEEP'"),
        ("token_id + 1", "a check is a condition; this is a vector"),
        ("all(token_id + 1)", "expected bool, got int"),
        ("all(diff(cumsum(token_id)) >= 0)", "expected a vector with random access"),
        ("frobnicate(token_id)", "no function named 'frobnicate'"),
        ("all(minimum(token_id) >= 0)", "minimum takes 2 argument(s), got 1"),
        ("all(token_id == step.seqlens_q)", "this contract has no context"),
        ("all(token_id >= r)", "'r' exists only in checks of fields with per = 'ratio'"),
        ("X == 0 or all(token_id >= 0)", "all(...) must be the whole check"),
        ("all(token_id[:, 0] >= 0)", "token_id has no column 0"),
    ],
)
def test_wrong_check_is_refused_with_file_field_and_place(schema: Path, check: str, message: str) -> None:
    edit(schema, "event_batch.toml", lambda t: t.replace('"all(-1 <= token_id < V)"', json.dumps(check)))
    with pytest.raises(SchemaError) as caught:
        render(load(schema))
    text = str(caught.value)
    assert text.startswith("event_batch.toml: token_id: ")
    assert message in text
    assert text.splitlines()[-1].strip() == "^"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace('dtype = "i32"', 'dtype = "int"', 1), "dtype 'int'; known: bool, u8"),
        (lambda t: t.replace("doc = ", "docs = ", 1), "unknown key 'doc"),
        (
            lambda t: t.replace('presence = "optional"', 'presence = "cap:magic"', 1),
            "presence 'cap:magic'; known: always",
        ),
        (lambda t: t.replace('enum = "EventKind"', 'enum = "Kind"'), "no enum 'Kind' in enums.toml"),
        (lambda t: t.replace('name = "token_id"', 'name = "kind"'), "kind: the name is used twice"),
    ],
)
def test_malformed_schema_is_refused(schema: Path, change: Callable[[str], str], message: str) -> None:
    edit(schema, "event_batch.toml", change)
    with pytest.raises(SchemaError, match=re.escape(message)):
        render(load(schema))


def test_parser_chains_comparisons_and_binds_implies_last() -> None:
    node = lang.parse("0 <= a < b implies not c or d")
    assert isinstance(node, lang.Binary)
    assert node.op == "implies"
    assert isinstance(node.a, lang.Binary)
    assert node.a.op == "and"
    assert isinstance(node.b, lang.Binary)
    assert node.b.op == "or"
