"""A function in a process of its own: what it printed is there, however soon the process is killed."""

from deepinfer_core.plugins.child import run_children

SLOW_TO_END = """
import atexit, time
def answer(number):
    atexit.register(time.sleep, 30)  # before the interpreter flushes what was printed
    print("loading toy")
    return number + 1
"""


def test_what_a_child_printed_before_its_answer_is_kept(tmp_path, monkeypatch):
    (tmp_path / "slow_to_end.py").write_text(SLOW_TO_END)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    [result] = run_children([("slow_to_end:answer", [41])], limit_s=60.0, at_once=1)
    assert (result.answer, result.failure, result.stdout) == (42, "", "loading toy")


def test_child_needs_no_folder_for_temporary_files(tmp_path, monkeypatch):
    """As on a full disk: Python then finds no folder that it can write to."""

    def none_found():
        raise FileNotFoundError("No usable temporary directory found")

    (tmp_path / "talkative.py").write_text("def answer():\n    print('loading toy')\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tempfile.TemporaryFile", none_found)
    [result] = run_children([("talkative:answer", [])], limit_s=60.0, at_once=1)
    assert (result.answer, result.failure, result.stdout) == (1, "", "loading toy")
