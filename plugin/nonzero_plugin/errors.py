"""The exceptions of the plugin that a user can act on. Imports nothing."""

from __future__ import annotations


class NonZeroPluginError(Exception):
    """Root of everything a user of the plugin can fix; its text is one sentence for that user.

    Broken invariants of this package never derive from it, so they keep their traceback.
    """


class ContractError(NonZeroPluginError):
    """A node, a field or an argument breaks the contract of the NonZeroPlugin operator."""


class BackendUnavailableError(NonZeroPluginError):
    """The package behind a backend cannot be imported; the text names the extra to install."""


class KernelCompileError(NonZeroPluginError):
    """NVRTC refused the kernel; carries the options and the whole compiler log."""

    def __init__(self, message: str, *, options: tuple[str, ...] = (), log: str = "") -> None:
        super().__init__(message)
        self.options = options
        self.log = log


class CudaError(NonZeroPluginError):
    """A CUDA call failed; carries the API function, the code, its name and its explanation."""

    def __init__(self, api: str, code: int, name: str, explanation: str) -> None:
        super().__init__(f"{api} failed with {name} ({code}): {explanation}")
        self.api = api
        self.code = code
        self.name = name
        self.explanation = explanation


class PluginRegistrationError(NonZeroPluginError):
    """Another plugin holds our name, version and namespace in the registry."""


class TensorRTUnavailableError(NonZeroPluginError):
    """No TensorRT module, or one without what the plugin needs (IPluginV3)."""


class EngineBuildError(NonZeroPluginError):
    """TensorRT could not parse or build the model; carries its last messages.

    ``messages`` are TensorRT's own words, most recent last; ``phase`` is one of ``"import"``,
    ``"options"``, ``"parse"``, ``"build"``, ``"abort"`` and ``"write"``; ``node`` is the ONNX node
    TensorRT named, where it named one.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: str = "build",
        messages: tuple[str, ...] = (),
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.messages = messages
        self.node = node


class EngineLoadError(NonZeroPluginError):
    """TensorRT could not deserialize the engine or create a context; carries its own words."""


class EngineRunError(NonZeroPluginError):
    """A loaded engine could not run, or was asked for something it cannot do."""
