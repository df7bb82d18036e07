"""Functions compiled for several processors: each version finds what the portable one finds."""

import subprocess

import pytest
from c_build import FLAGS, NATIVE, compiler, run

pytestmark = pytest.mark.compiled

PORTABLE = "-DDI_NO_CLONES"
SOURCE = NATIVE / "tests" / "c" / "ranges_program.c"


def has_clones(cc) -> bool:
    """Whether this compiler makes them for this system."""
    text = '#include "di_clones.h"\n#define TEXT(x) #x\n#define SHOW(x) TEXT(x)\nconst char *s = SHOW(DI_CLONES);\n'
    command = [*cc, *FLAGS, "-E", "-x", "c", "-"]
    return "avx2" in subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_versions_of_range_tests_agree_with_plain_loops(tmp_path):
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    said = []
    for name, flags in (("chosen", []), ("portable", [PORTABLE])):
        program = tmp_path / name
        run([*cc, *FLAGS, "-O0", *flags, SOURCE, "-lm", "-o", program])
        said.append(run([program]))
    assert said[0] == said[1]
    assert said[0].startswith("100000 tests, ")
    if has_clones(cc):
        assert b"di_in_range.avx2" in (tmp_path / "chosen").read_bytes()
    assert b"di_in_range.avx2" not in (tmp_path / "portable").read_bytes()


@pytest.mark.parametrize("flag", [PORTABLE, "-fsanitize=address", "-fsanitize=thread"])
def test_only_the_portable_version_is_made(flag):
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    assert not has_clones([*cc, flag])
