"""``python stub_cann.py FOLDER``: libraries in place of CANN's, so that ``import torch_npu`` succeeds without CANN.

Which libraries and which symbols is read from torch-npu's own: what they link and nobody here has, and what nobody here
defines. One library defines all of those symbols, as functions that return 0; the others are empty. Nothing of it may
ever be called: it serves to read schemas, signatures and shapes. Run with ``LD_LIBRARY_PATH=FOLDER`` and
``TORCH_DEVICE_BACKEND_AUTOLOAD=0``. Never ship it, or install it where CANN may be.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

DATA = ("_ZTI", "_ZTV", "_ZTS")
"""Prefixes of symbols that are tables of C++ and no functions."""
FROM_PYTHON = ("Py", "_Py")
"""Prefixes of what the interpreter has."""


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library):
    """Libraries that ``library`` links, by name."""
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", output("readelf", "-d", str(library))))


def symbols(library, kind):
    """Names in its dynamic table, ``kind`` ``--undefined-only`` (weak ones left out) or ``--defined-only``."""
    rows = [line.split() for line in output("nm", "-D", kind, str(library)).splitlines()]
    weak = ("w", "v") if kind == "--undefined-only" else ()
    return {row[-1].split("@")[0] for row in rows if row[-2].lower() not in weak}


def folder_of(package):
    """Without importing it: that is what does not work."""
    return Path(importlib.util.find_spec(package).origin).parent


def wanted():
    """Names of the libraries that are missing, and of the symbols that are."""
    own = [*folder_of("torch_npu").glob("lib/*.so*"), *folder_of("torch_npu").glob("*.so")]
    here = [*own, *folder_of("torch").glob("lib/*.so*")]
    linked = set().union(*(needed(library) for library in own)) - {library.name for library in here}
    system = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", *map(str, own))))
    defined = set().union(*(symbols(library, "--defined-only") for library in [*here, *system.values()]))
    undefined = set().union(*(symbols(library, "--undefined-only") for library in own)) - defined
    absent = {name for name in linked if name not in system and not name.startswith(("ld-", "libtorch"))}
    return sorted(absent), sorted(name for name in undefined if not name.startswith(FROM_PYTHON))


def assembly(names):
    """Every name at one place: functions at the first instruction, tables at zero bytes."""
    functions, tables = ([n for n in names if n.startswith(DATA) is is_data] for is_data in (False, True))
    lines = ['.section .note.GNU-stack,"",@progbits', ".text"]
    lines += [f'.globl "{n}"\n.type "{n}",@function\n"{n}":' for n in functions]
    lines += ["xor %eax, %eax", "ret", ".data", ".align 16"]
    lines += [f'.globl "{n}"\n.type "{n}",@object\n"{n}":' for n in tables]
    return "\n".join([*lines, ".zero 4096", ""])


def build(out):
    """The libraries in ``out``; their names and how many symbols they define."""
    out.mkdir(parents=True, exist_ok=True)
    libraries, names = wanted()
    for number, name in enumerate(libraries):
        command = ["cc", "-shared", "-x", "assembler", "-", "-o", str(out / name)]
        subprocess.run(command, input=assembly(names if not number else []), text=True, check=True)
    return libraries, len(names)


if __name__ == "__main__":
    made, count = build(Path(sys.argv[1]))
    print(f"{', '.join(made)}: {count} symbols")
