"""The runner of the pages finds commands that fail and output that differs, and writes what was printed."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "run_pages.py"
spec = importlib.util.spec_from_file_location("docs_run_pages", SCRIPT)
run_pages = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = run_pages  # dataclasses look their module up
spec.loader.exec_module(run_pages)


@pytest.fixture
def ran(tmp_path):
    """The failures of a page with this text, without its path."""

    def run(text):
        page = run_pages.Page(write(tmp_path / "page.md", text), tmp_path)
        page.run()
        return [failure.removeprefix(f"{tmp_path}/page.md:") for failure in page.failures]

    return run


def write(path, text):
    path.write_text(text, "utf-8")
    return path


def fenced(kind, body):
    return f"```{kind}\n{body}```\n"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a \nb", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n", "a\nb\n", False),
        ("a 1... s\n", "a 1.23 s\n", True),
        ("a 1... s\n", "a 1.23 s late\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("a.b\n", "axb\n", False),
    ],
)
def test_same_output_compares_lines_and_dots(shown, printed, same):
    assert run_pages.same_output(shown, printed) is same


def test_command_that_works_gives_no_failure(ran):
    assert ran(fenced("bash", "true\n") + fenced("python", "print(1)\n")) == []


def test_command_that_fails_is_told_with_its_line_and_output(ran):
    assert ran("# Page\n\n" + fenced("bash", "echo so; exit 3\n")) == ["4: exit status 3\nso\n"]


def test_expected_exit_status_passes_and_another_one_fails(ran):
    page = "<!-- exit status: 3 -->\n" + fenced("bash", "exit {}\n")
    assert ran(page.format(3)) == []


def test_expected_exit_status_that_does_not_come_is_told(ran):
    assert ran("<!-- exit status: 3 -->\n" + fenced("bash", "true\n")) == ["3: exit status 0, expected 3\n"]


def test_skipped_block_does_not_run(ran):
    assert ran("<!-- not run: it would fail -->\n" + fenced("bash", "false\n")) == []


def test_text_without_a_mark_is_not_compared(ran):
    assert ran(fenced("bash", "echo a\n") + "\n" + fenced("text", "b\n")) == []


def test_marked_output_is_compared_with_standard_output_alone(ran):
    assert ran(fenced("bash", "echo a; echo b >&2\n") + "\n<!-- output -->\n" + fenced("text", "a\n")) == []


def test_marked_error_output_is_compared_with_standard_error_alone(ran):
    assert ran(fenced("bash", "echo a; echo b >&2\n") + "\n<!-- error output -->\n" + fenced("text", "b\n")) == []


def test_marked_output_that_differs_is_told(ran):
    page = fenced("bash", "echo a\n") + "\nIt prints:\n\n<!-- output -->\n" + fenced("text", "b\n")
    assert ran(page) == ["9: the page shows\nb\nand what came is\na\n"]


def test_output_before_any_command_is_told(ran):
    assert ran("<!-- output -->\n" + fenced("text", "b\n")) == ["3: nothing ran before this output"]


def test_console_runs_each_command_and_compares_both_streams(ran):
    body = "$ echo a; echo b >&2\na\nb\n$ echo c\nc\n"
    assert ran(fenced("console", body)) == []


def test_console_with_other_output_is_told(ran):
    assert ran(fenced("console", "$ echo a\nb\n")) == ["2: the page shows\nb\nand what came is\na\n"]


def test_console_without_command_is_told(ran):
    assert ran(fenced("console", "a\n")) == ["2: the block does not begin with a command"]


def test_command_past_its_time_is_told(ran, monkeypatch):
    monkeypatch.setattr(run_pages, "TIMEOUT_S", 0.1)
    assert ran(fenced("python", "import time; time.sleep(60)\n")) == ["2: still running after 0.1 s"]


def test_write_puts_what_was_printed_into_the_page(tmp_path, capsys):
    before = (
        fenced("bash", "echo a\n")
        + "\n<!-- output -->\n"
        + fenced("text", "b\n")
        + fenced("console", "$ echo c\nd\n$ echo e\n")
    )
    page = write(tmp_path / "page.md", before)
    assert run_pages.main(["--write", str(page)]) == 1
    assert page.read_text("utf-8") == before.replace("text\nb", "text\na").replace("c\nd\n", "c\nc\n").replace(
        "$ echo e\n", "$ echo e\ne\n"
    )
    assert run_pages.main([str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{page}: ok"


def test_write_leaves_output_with_dots_to_people(tmp_path):
    page = write(tmp_path / "page.md", fenced("console", "$ echo a\nb...\n"))
    assert run_pages.main(["--write", str(page)]) == 1
    assert page.read_text("utf-8") == fenced("console", "$ echo a\nb...\n")


def test_environment_of_its_own_is_another_one_and_sees_the_packages(ran):
    page = run_pages.OWN_ENVIRONMENT + "\n" + fenced("python", "import sys, attrs; print(sys.prefix)\n")
    page += "\n<!-- output -->\n" + fenced("text", ".../.venv\n")
    assert ran(page) == []
