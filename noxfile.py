"""The matrix of checks. ``nox`` runs the gate; ``nox -s nightly`` the long tests. CONTRIBUTING.md has the table, and a
test compares the two.

Every session has its own venv, made by uv. torch is pinned in the same command as whatever depends on it, so that no
other build of it is pulled in.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
TORCH = "torch==2.13.0"
TORCHLESS = ("./contracts", "./native", "./deepinfer_core")
PLUGINS = (
    "./plugins/deepinfer_cpu",
    "./plugins/deepinfer_v41",
    "./plugins/deepinfer_samplers",
    "./plugins/deepinfer_bench",
    "./plugins/deepinfer_verify",
    "./plugins/deepinfer_eval",
    "./plugins/deepinfer_metrics",
)
# Apart: TileLang is 180 MB on disk, and the first command of README.md has no use for it.
CUDA = "./plugins/deepinfer_cuda"
# Apart as well: nobody needs it on a machine without an Ascend device. Its emulation needs torch alone.
ASCEND = "./plugins/deepinfer_ascend"
CHANGELOG_TOOLS = ("towncrier>=25.8",)
# Never beside anything else: where CANN is not, it breaks every import of torch.
TORCH_NPU = "torch-npu==2.13.0"
# Its sources are read, and nothing of it runs: it wants a later Python.
TILE_KERNELS = "tile-kernels==2.1.0"
# What users of the extras [audit], [chat], [new-plugin] and [plots] have as well.
LIBRARIES = ("scipy>=1.11", "deepseek-recipe>=0.2,<0.3", "jinja2>=3.1", "matplotlib>=3.8,<4")
TEST_TOOLS = (
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
    "lark>=1.2",
    "hatchling>=1.24",  # with the two below: fake distributions are built and installed by tests
    "editables>=0.5",
    "uv>=0.5",
    *LIBRARIES,
)
KIT_TOOLS = ("pytest>=8.3", "pytest-xdist>=3.6", "jinja2>=3.1", "jsonschema>=4.20")
LINT_TOOLS = ("ruff==0.17.6",)
TYPE_TOOLS = (
    "mypy==2.4.1",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "jinja2>=3.1",
    "prometheus-client>=0.20,<1",
    "opentelemetry-sdk>=1.25,<2",
)
SITE_TOOLS = ("sphinx>=9.0,<10", "myst-parser>=5.2,<6", "furo>=2025.12")
# Two OpenMP threads on busy cores are a hundred times slower than one; tests run side by side instead.
TEST_ENV = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random"}

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False  # an absent interpreter is skipped, with nox's reason
# What a change has to pass, cheapest first: `nox`, or `nox -s ci`.
GATE = (
    "lint",
    "types",
    "contracts",
    "site",
    "tests",
    "conformance",
    "torchless-3.12",
    "torchless-3.13",
    "optimised",
    "wheels",
    "examples",
    "docs",
)
nox.options.sessions = list(GATE)

os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
os.environ.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
if os.environ.get("PIP_CERT"):  # uv does not know how pip was told of a certificate
    os.environ.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
# Interpreters kept by pyenv are found only on PATH.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PYENV_BINS = [str(version / "bin") for version in sorted(PYENV.glob("3.1*"))]
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *PYENV_BINS])


def install_all(session: nox.Session, *tools: str) -> None:
    """Everything, editable, as requirements.txt has it for users."""
    session.install("--compile-bytecode", "-r", "requirements.txt", *tools)


def install_wheels(session: nox.Session, *tools: str) -> None:
    """Everything, as wheels, beside the pinned torch."""
    session.install("--compile-bytecode", TORCH, *built(session, *TORCHLESS, *PLUGINS), *tools)


def install_grammars(session: nox.Session) -> None:
    """The library for structured output, without the gigabyte that it requires and does not use."""
    session.install("--compile-bytecode", "--no-deps", "-r", "requirements-xgrammar.txt")


def install_cuda(session: nox.Session) -> None:
    """Backend cuda with TileLang, beside the pinned torch. Last: its apache-tvm-ffi is older than that of grammars."""
    session.install("--compile-bytecode", "-r", "requirements-cuda.txt")


def install_ascend(session: nox.Session) -> None:
    """Backend ascend, without torch-npu: where CANN is not, that breaks every import of torch."""
    session.install("--compile-bytecode", "-r", "requirements-ascend.txt")


def built(session: nox.Session, *folders: str) -> list[str]:
    """Wheels of distributions, built once for each state of their sources: the C core takes a while to compile."""
    wheels = []
    for folder in folders:
        digest = hashlib.sha256()
        listed = session.run("git", "ls-files", "-co", "--exclude-standard", folder, external=True, silent=True)
        for name in sorted(str(listed).splitlines()):
            digest.update(f"{name}\n".encode() + (ROOT / name).read_bytes())
        out = ROOT / ".nox" / "built" / f"{Path(folder).name}-{digest.hexdigest()[:16]}"
        if not list(out.glob("*.whl")):
            session.install("uv>=0.5")
            session.run("uv", "build", "-q", "--wheel", "--out-dir", str(out), folder)
        wheels += [str(p) for p in out.glob("*.whl")]
    return wheels


def run_tests(session: nox.Session, *args: str, python: tuple[str, ...] = ("python",)) -> None:
    chosen = session.posargs or args
    session.run(*python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *chosen, env=TEST_ENV)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting, C sources included where clang-format is present."""
    session.install(*LINT_TOOLS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on what others build against, and on what new-plugin writes for them."""
    session.install(*TYPE_TOOLS, *LINT_TOOLS, "filelock>=3.16,<5", *built(session, *TORCHLESS))
    for package in ("deepinfer_contracts", "deepinfer_native", "deepinfer_core"):
        session.run("mypy", "-p", package)
    # Of the samplers, what needs no torch: it is installed as a path, not as a package.
    samplers = "plugins/deepinfer_samplers/src"
    names = ("grammars", "grammar_plugin.py", "filter_plugin.py", "top_n_sigma.py")
    torchless = [f"{samplers}/deepinfer_samplers/{name}" for name in names]
    session.run("mypy", "--explicit-package-bases", *torchless, env={"MYPYPATH": samplers})
    verify = "plugins/deepinfer_verify/src"
    session.run("mypy", "--explicit-package-bases", f"{verify}/deepinfer_verify", env={"MYPYPATH": verify})
    for name in ("eval", "bench", "metrics"):
        source = f"plugins/deepinfer_{name}/src"
        session.run("mypy", "--explicit-package-bases", f"{source}/deepinfer_{name}", env={"MYPYPATH": source})
    # Of backends with kernels, the ops and what they share. Without torch its values are Any: what is returned of them,
    # and comments for those who have it, are no faults. Kernels are another language in the form of Python.
    anyhow = ("--follow-imports=silent", "--no-warn-unused-ignores", "--no-warn-return-any")
    for name in ("cuda", "ascend"):
        source = ROOT / "plugins" / f"deepinfer_{name}" / "src"
        package = source / f"deepinfer_{name}"
        chosen = [str(path) for path in (package / "ops", *sorted(package.glob("*.py")))]
        session.run("mypy", "--explicit-package-bases", *anyhow, *chosen, env={"MYPYPATH": str(source)})
    session.run("python", "-m", "pytest", "-q", "tests/new_plugin/test_new_plugins_style.py")


@nox.session
def contracts(session: nox.Session) -> None:
    """Generated files are what the schemas and the code say."""
    session.install(*built(session, *TORCHLESS), "click==8.5.1")  # commands.md holds help as this version wraps it
    # For the tables of structured-output.md and the help of commands that plugins bring; nothing of it imports torch.
    torchless = [f"./plugins/deepinfer_{name}" for name in ("samplers", "bench", "verify", "eval", "v41")]
    session.install("--no-deps", *built(session, *torchless))
    session.run("python", "contracts/generate.py", "--check")
    session.run("python", "docs/generate_reference.py", "--check")


@nox.session
def tests(session: nox.Session) -> None:
    """The suite of every distribution and across them, with torch."""
    install_all(session, *TEST_TOOLS)
    install_grammars(session)
    install_cuda(session)
    install_ascend(session)
    run_tests(session, "-m", "not slow")


@nox.session
def conformance(session: nox.Session) -> None:
    """The conformance kit at level full on every plugin that is installed here, from wheels, in a folder without the
    sources. Reports go to build/conformance."""
    install_wheels(session, *KIT_TOOLS)
    install_grammars(session)
    reports = ROOT / "build" / "conformance"
    reports.mkdir(parents=True, exist_ok=True)
    listed = session.run("deepinfer", "plugins", "--json", silent=True)
    plugins = [(p["kind"], p["name"]) for p in json.loads(str(listed))["plugins"] if p["state"] == "found"]
    folder = session.create_tmp()
    Path(folder, "pytest.ini").write_text("[pytest]\n")  # not the settings of the workspace around it
    session.chdir(folder)
    for kind, name in plugins:
        report = reports / f"{kind}-{name}"
        session.run(
            *("python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"),
            *("--pyargs", "deepinfer_core.conformance", f"--{kind.replace('_', '-')}", name, "--level", "full"),
            *(f"--report={report}.json", f"--report={report}.html", *session.posargs),
            env=TEST_ENV,
        )


DEVICE_TESTS = ("plugins/deepinfer_cuda/tests/device", "plugins/deepinfer_v41/tests")
# Distribution -> what is installed for its tests, as wheels; and what is there to be listed, but for none of its needs.
UNITS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "contracts": (TORCHLESS[:1], ()),
    "native": (TORCHLESS[:2], ()),
    "core": (TORCHLESS, PLUGINS),
    "cpu": ((*TORCHLESS, "./plugins/deepinfer_cpu"), ()),
    "samplers": ((*TORCHLESS, "./plugins/deepinfer_cpu", "./plugins/deepinfer_samplers"), ()),
    "v41": ((*TORCHLESS, *PLUGINS), ()),
    "bench": ((*TORCHLESS, *PLUGINS), ()),
    "verify": ((*TORCHLESS, *PLUGINS), ()),
    "eval": ((*TORCHLESS, *PLUGINS), ()),
    "metrics": ((*TORCHLESS, *PLUGINS), ()),
    "cuda": ((*TORCHLESS, *PLUGINS, CUDA), ()),
    "ascend": ((*TORCHLESS, *PLUGINS, ASCEND), ()),
}


@nox.session
@nox.parametrize("distribution", [nox.param(name, id=name) for name in UNITS])
def unit(session: nox.Session, distribution: str) -> None:
    """The tests of one distribution, with nothing installed but what it declares and its tests use."""
    needed, listed = UNITS[distribution]
    torch = (TORCH,) if {*needed} & {*PLUGINS, CUDA, ASCEND} else ()
    session.install(*torch, *built(session, *needed), *TEST_TOOLS)
    if listed:
        session.install("--no-deps", *built(session, *listed))
    [folder] = [folder for folder in needed if folder.endswith(distribution)]
    run_tests(session, "-m", "not slow", f"{folder}/tests")


@nox.session
def skew(session: nox.Session) -> None:
    """Plugins and cores of neighbouring versions: the last frozen wheels where there are any, and synthetic plugins."""
    session.install("--compile-bytecode", TORCH, *built(session, *TORCHLESS, *PLUGINS), *TEST_TOOLS)
    run_tests(session, "-m", "not slow", "tests/fakeplugins/test_skew.py")
    frozen = sorted((ROOT / "snapshots").glob("*/"), key=lambda folder: tuple(map(int, folder.name.split("."))))
    if not frozen:
        session.log("snapshots/ is empty: nothing was released yet")
        return
    for core, plugins in ((TORCHLESS, None), (None, PLUGINS)):  # old plugins on the new core, and the reverse
        new = built(session, *(core or plugins or ()))
        taken = {Path(wheel).name.split("-")[0] for wheel in new}
        old = [str(wheel) for wheel in frozen[-1].glob("*.whl") if wheel.name.split("-")[0] not in taken]
        session.install("--force-reinstall", "--no-deps", *new, *old)
        session.run("deepinfer", "doctor", "--backend", "cpu", env=TEST_ENV)
        session.run("deepinfer", "generate", "--backend", "cpu", "--max-tokens", "16", "import os", env=TEST_ENV)


@nox.session(python=["3.11", "3.12", "3.13"])
def torchless(session: nox.Session) -> None:
    """What needs no torch, installed from wheels, on each Python. That of 3.11 is left to the nightly."""
    session.install("--compile-bytecode", *built(session, *TORCHLESS), *TEST_TOOLS)
    session.install(
        "--no-deps", *built(session, *PLUGINS)
    )  # to be listed, and for the shipped tokenizer; nothing imports them
    run_tests(session, "-m", "not slow and not compiled", "contracts/tests", "native/tests", "deepinfer_core/tests")


@nox.session
def optimised(session: nox.Session) -> None:
    """The same behaviour under ``python -O``: nothing validates with assert. The nightly adds the numeric suites."""
    install_wheels(session, *TEST_TOOLS)
    install_grammars(session)
    session.install(TORCH, *built(session, CUDA, ASCEND))
    # What the gate leaves to the nightly: the numeric comparisons, and tests that only start programs without -O.
    elsewhere = [f"--ignore=tests/{folder}" for folder in ("benchmarks", "docs", "mutants")]
    lowered = "test_*_kernels.py", "test_hosted.py", "test_lowering.py"
    elsewhere += [f"--ignore-glob=plugins/deepinfer_ascend/tests/{name}" for name in lowered]
    chosen = (
        "-m",
        "not slow and not compiled",
        "-k",
        "not golden and not invariants and not install_matrix",
        *elsewhere,
    )
    run_tests(session, *chosen, python=("python", "-O"))


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel, install them into an empty venv, and generate from there, in a folder without the sources."""
    # Nothing is compiled ahead: two commands import a small part of it.
    session.install(TORCH, *built(session, *TORCHLESS, *PLUGINS))
    session.install("--no-deps", *built(session, CUDA, ASCEND))  # listed, and no reason for auto to leave cpu
    session.chdir(session.create_tmp())
    session.run("deepinfer", "plugins")
    session.run("deepinfer", "generate", "--max-tokens", "16", "import os", env=TEST_ENV)


@nox.session
def examples(session: nox.Session) -> None:
    """The tests of the example distributions, installed as wheels beside wheels of ours."""
    folders = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
    install_wheels(session, *KIT_TOOLS, *built(session, *(str(path.relative_to(ROOT)) for path in folders)))
    for folder in folders:
        session.chdir(folder)  # its own settings of pytest, not those of the workspace
        session.run("deepinfer", "plugins", "check", ".")
        session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", env=TEST_ENV)


@nox.session
def site(session: nox.Session) -> None:
    """The documentation as a site in build/site. A dead link, a missing anchor or a page in no index is an error."""
    session.install(*SITE_TOOLS)
    # -E: a page that did not change may link one that did.
    session.run("sphinx-build", "-q", "-E", "-W", "-n", "--keep-going", "-d", "build/doctrees", "docs", "build/site")


@nox.session
def changelog(session: nox.Session) -> None:
    """Show the next section of CHANGELOG.md, of the fragments in changes/; ``-- build --version X`` writes it."""
    session.install(*CHANGELOG_TOOLS)
    session.run("towncrier", *(session.posargs or ["build", "--draft", "--version", "next"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Every command and program on the pages runs as written."""
    install_wheels(session, *LIBRARIES, *KIT_TOOLS, "hatchling>=1.24", "editables>=0.5")
    install_grammars(session)
    session.run("python", "docs/run_pages.py", env=TEST_ENV)


@nox.session(venv_backend="none")
def ci(session: nox.Session) -> None:
    """All that a change has to pass, as ``nox`` without arguments runs it."""
    for name in GATE:
        session.notify(name)


@nox.session
def nightly(session: nox.Session) -> None:
    """The long tests: whole perplexity texts, every split, long random schedules; and all others under ``-O``. Then
    each distribution's tests by themselves, what needs no torch on 3.11, neighbouring versions, all kernels, and calls
    of torch-npu."""
    units = [f"unit({distribution})" for distribution in UNITS]
    for name in ("kernels", "npu_schemas", "emulation", "torchless-3.11", "skew", *units):
        session.notify(name)
    install_all(session, *TEST_TOOLS)
    install_grammars(session)
    install_cuda(session)
    install_ascend(session)
    run_tests(session, "-m", "slow", "--timeout", "3600")
    run_tests(session, "-m", "not slow and not compiled", python=("python", "-O"))


@nox.session
def kernels(session: nox.Session) -> None:
    """Every kernel of backend cuda lowered and compiled for each architecture, without a GPU, and counted; registers
    and spills of each go to build/kernels.json. Needs nvcc. Before that, every kernel of backend ascend lowered."""
    session.install("--compile-bytecode", TORCH, *built(session, *TORCHLESS, "./plugins/deepinfer_cpu", CUDA, ASCEND))
    session.run("python", "-m", "deepinfer_ascend.jit.survey", env=TEST_ENV)
    report = ROOT / "build" / "kernels.json"
    report.parent.mkdir(exist_ok=True)
    session.run("python", "-m", "deepinfer_cuda.jit.survey", "--json", str(report), *session.posargs, env=TEST_ENV)


@nox.session
def npu_schemas(session: nox.Session) -> None:
    """Every call of backend ascend to torch-npu against schemas, signatures and shape functions of the real one, with
    libraries in place of CANN's, and to tile-kernels against its sources. Skipped where torch-npu is not to be had."""
    wheels = built(session, *TORCHLESS, "./plugins/deepinfer_cpu", ASCEND)
    session.install("--compile-bytecode", TORCH, *wheels, *KIT_TOOLS, "pytest-timeout>=2.3")
    try:
        session.install("--compile-bytecode", TORCH, TORCH_NPU)
    except CommandFailed:
        session.skip(f"{TORCH_NPU} cannot be installed: no wheel for this machine, or no registry in reach")
    tests = ROOT / "plugins" / "deepinfer_ascend" / "tests" / "npu_schemas"
    stubs = Path(session.create_tmp(), "cann").absolute()
    session.run("python", str(tests / "stub_cann.py"), str(stubs))
    sources = Path(session.create_tmp(), "tile_kernels").absolute()
    session.install("--no-deps", "--python-version", "3.12", "--target", str(sources), TILE_KERNELS)
    alone = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LD_LIBRARY_PATH": str(stubs), "TILE_KERNELS": str(sources)}
    session.run("python", "-m", "pytest", "-q", *(session.posargs or [str(tests)]), env={**TEST_ENV, **alone})


@nox.session
def emulation(session: nox.Session) -> None:
    """The conformance kit at level core on backend ascend, on the processor: with equivalents, where plain ops compute
    what only lowered kernels serve, and with every lowered kernel executed. Needs g++. Reports go to
    build/conformance."""
    wheels = built(session, *TORCHLESS, *PLUGINS, ASCEND)
    session.install("--compile-bytecode", TORCH, *wheels, "tilelang>=0.1.15,<0.1.16", *KIT_TOOLS)
    reports = ROOT / "build" / "conformance"
    reports.mkdir(parents=True, exist_ok=True)
    session.chdir(session.create_tmp())
    Path("pytest.ini").write_text("[pytest]\n")  # not the settings of the workspace around it
    kit = (
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--pyargs",
        "deepinfer_core.conformance",
        "--backend",
        "ascend",
        "--emulate",
    )
    for name, lowered in (("equivalents", "0"), ("lowered", "1")):
        report = f"--report={reports / f'backend-ascend-{name}'}.json"
        environ = {**TEST_ENV, "DEEPINFER_ASCEND_LOWERED": lowered}
        session.run("python", "-m", "pytest", "-q", *kit, report, *session.posargs, env=environ)


@nox.session
def cuda(session: nox.Session) -> None:
    """On a machine with a GPU: kernels compiled, every test marked ``cuda``, and the conformance kit on backend cuda.
    ``nox -s cuda --no-venv`` takes the environment that is active, with the torch that is in it."""
    if session.venv_backend != "none":
        install_all(session, *TEST_TOOLS)
        install_cuda(session)
    session.run("deepinfer", "doctor", "cuda")
    session.run("python", "-m", "deepinfer_cuda.jit.warm")
    session.run("python", "-m", "pytest", "-q", "-m", "cuda", *(session.posargs or DEVICE_TESTS))
    session.chdir(session.create_tmp())
    Path("pytest.ini").write_text("[pytest]\n")  # not the settings of the workspace around it
    kit = ("--pyargs", "deepinfer_core.conformance", "--backend", "cuda", "--level", "full")
    session.run("python", "-m", "pytest", "-q", *kit)


@nox.session
@nox.parametrize("sanitizer", ["address", "thread", "portable"])
def sanitizers(session: nox.Session, sanitizer: str) -> None:
    """The C core under AddressSanitizer with UndefinedBehaviorSanitizer, under ThreadSanitizer, and as it is compiled
    for a processor without SSE2."""
    session.install("setuptools>=77", "cffi>=2.0", "./contracts", *TEST_TOOLS)
    session.run("python", "native/sanitize.py", sanitizer)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """The scheduler benchmark at tiny sizes, or with the options given after ``--``; ``-- full``: every benchmark, JSON
    into benchmarks/results."""
    install_all(session)
    install_grammars(session)
    if "full" not in session.posargs:
        session.run("python", "benchmarks/scheduler.py", *(session.posargs or ["--smoke"]))
        return
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        out = results / f"{script.stem}.json"
        session.run("python", str(script), "--json", str(out), env={"OMP_NUM_THREADS": "1"})
