"""No backend can do what was asked."""

from __future__ import annotations

from deepinfer_core.errors.base import DeepInferError
from deepinfer_core.errors.exit_statuses import EXIT_BACKEND, EXIT_INTERNAL


class BackendError(DeepInferError):
    """No backend can do what was asked; names each one that was considered, with its reason.

    :cause: Every backend that is installed was refused; each one's reason is in the message.
    :remedy: Do what one of the reasons asks for, or say ``--backend cpu``.
    """

    code = "E_BACKEND"
    exit_status = EXIT_BACKEND


class BackendNotInstalled(BackendError):
    """No installed plugin provides the backend that was asked for.

    :cause: The name is misspelt, or its distribution is not installed in this environment.
    :remedy: Take an installed name, or install what provides it.
    """

    code = "E_BACKEND_MISSING"


class BackendUnavailable(BackendError):
    """The backend is installed, but its device or driver cannot be used on this machine.

    :cause: No device, no driver, no permission, or the device is taken; the reason says which.
    :remedy: Follow the remedy, look at ``deepinfer doctor NAME``, or say ``--backend cpu``.
    """

    code = "E_BACKEND_UNAVAILABLE"


class UnsupportedArch(BackendError):
    """The backend has no kernels for the device that is present.

    :cause: The kernels were compiled for other devices than the one found.
    :remedy: Use a device that is named, or another backend.
    """

    code = "E_ARCH"


class UnsupportedOp(BackendError):
    """The model needs an op that the backend lacks.

    :cause: The backend's table of ops has no such entry, and no default fills it.
    :remedy: Choose another backend. Authors: implement the ops that are listed.
    """

    code = "E_OP"


class UnsupportedFormat(BackendError):
    """The model needs a number or cache format that the backend lacks.

    :cause: Caches or weights would be kept in a form that the backend does not know.
    :remedy: Choose another backend, or ``--no-cache-formats``.
    """

    code = "E_FORMAT"


class UnsupportedFeature(BackendError):
    """The model needs a feature that the backend lacks.

    :cause: A setting or the model needs what the backend does not claim.
    :remedy: Turn off the setting that is named, or choose another backend.
    """

    code = "E_FEATURE"


class VendorImportError(BackendError):
    """A vendor library that the backend needs cannot be imported; carries the library's own message.

    :cause: A library is not installed, not on the loader's path, or of another version.
    :remedy: Install it or source its environment, then run ``deepinfer doctor NAME``.
    """

    code = "E_VENDOR"


class LimitError(BackendError):
    """A size exceeds a limit of the backend.

    :cause: The model or a setting asks for more than the kernels are made for.
    :remedy: Lower the size that is named, or choose another backend.
    """

    code = "E_LIMIT"


class ShapeContractError(BackendError):
    """An op argument violates its contract: names op, argument, expected and got.

    :cause: A fault of the model plugin or of the engine: it calls an op with what the op does not take.
    :remedy: Report it, with the op and the shapes that are named.
    """

    code = "E_SHAPE"
    exit_status = EXIT_INTERNAL


class DeviceLost(BackendError):
    """The device failed under the backend: what is on it is gone, and the engine stops.

    :cause: A kernel wrote where it may not, or the device, its driver or its connection failed.
    :remedy: Start a new process. Where it comes back, report it with the op that is named.
    """

    code = "E_DEVICE"


class NanFound(BackendError):
    """An op gave a NaN, and the backend was asked to look for them: names op, layer and rows.

    :cause: Weights or activations leave the range of their format, or a kernel is wrong.
    :remedy: Check the checkpoint, run the numeric mode ``exact`` beside it, and report an op that is wrong.
    """

    code = "E_NAN"
    exit_status = EXIT_INTERNAL


class HiddenSync(BackendError):
    """A plugin waits for the device where a step is launched (setting ``sync_guard``).

    :cause: Code of a plugin reads a value of the device on the host, so that steps cannot overlap.
    :remedy: Authors: keep the value on the device until the step is committed. Users: leave ``sync_guard`` off.
    """

    code = "E_SYNC"


class GraphCaptureError(BackendError):
    """A decode step cannot be recorded as a graph of the device (setting ``graphs``).

    :cause: The model or an op waits for the device, or launches what depends on its values.
    :remedy: ``--no-graphs`` launches each step op by op. Authors: keep the values on the device, or do not declare
        ``static_decode``.
    """

    code = "E_GRAPH"
