"""The page of environment variables: those of the settings, and what others read that matters here."""

from __future__ import annotations

from deepinfer_core.config import settings_by_key
from generators.markdown import NOTICE, cell

OTHERS = {
    "OMP_NUM_THREADS": "threads of torch, unless `--num-threads` says otherwise; 1 is often fastest on a busy machine",
    "PYTHONPATH": "folders here hide installed packages; `deepinfer doctor` names plugins that are hidden so",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "read by torch: 1 imports extensions for other devices with it. Unless it is "
    "set, plugins get torch without them, so that one that is broken harms no other backend",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "read by pytest: the conformance kit then needs "
    "`-p deepinfer_core.conformance.pytest_plugin`",
}

OF_CUDA = {
    "DEEPINFER_CUDA_CACHE": "folder of compiled kernels; default `deepinfer/cuda` in the user's cache folder",
    "DEEPINFER_CUDA_VENDORS": "libraries whose kernels serve ops in place of our own, comma separated: `flashmla`, "
    "`gemm`, `ep`, `deepselect`, `tile-kernels`; default: none",
    "DEEPINFER_CUDA_CHECK_NAN": "1: look for NaN in the result of each op, slowly and without graphs; default: 0",
}

OF_ASCEND = {
    "DEEPINFER_ASCEND_LOWERED": "under `--emulate`, 1: execute lowered kernels on the processor; default: 0. On a "
    "device, 0: leave their ops to plain ones, 1: refuse to run without `bisheng`; default: they serve where it is",
    "DEEPINFER_ASCEND_CACHE": "folder of kernels compiled so; default `deepinfer/ascend` in the user's cache folder",
}


def environment_page() -> str:
    lines = [
        "# Environment variables",
        "",
        NOTICE,
        "Every setting can be given in the environment. A flag and the settings file win over it. A variable that",
        "begins with `DEEPINFER_` and is not listed here gives a warning with the nearest name, and changes nothing.",
        "",
        "| variable | setting | values | meaning |",
        "| --- | --- | --- | --- |",
    ]
    named = sorted((declared.env_name(key), key, declared) for key, declared in settings_by_key().items())
    for variable, key, declared in named:
        lines.append(f"| `{variable}` | `{key}` | {declared.range_text()} | {cell(declared.help)} |")
    lines += ["", "## Read by backend `cuda`", "", "| variable | what it does |", "| --- | --- |"]
    lines += [f"| `{variable}` | {meaning} |" for variable, meaning in OF_CUDA.items()]
    lines += ["", "## Read by backend `ascend`", "", "| variable | what it does |", "| --- | --- |"]
    lines += [f"| `{variable}` | {meaning} |" for variable, meaning in OF_ASCEND.items()]
    lines += ["", "## Read by others", "", "| variable | what it does here |", "| --- | --- |"]
    lines += [f"| `{variable}` | {meaning} |" for variable, meaning in OTHERS.items()]
    return "\n".join(lines) + "\n"
