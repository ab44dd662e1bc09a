"""For ``--trt-config-script``: registers the plugin, then configures as Polygraphy does.

Needed only where Polygraphy does not see this package's extension, for example in a program that
embeds Polygraphy's tools. Polygraphy ignores its other configuration options beside such a script,
so shapes come from the environment:

    NONZERO_PROFILE   NAME=MIN:OPT:MAX;... for example 'x=1x3x64x64:4x3x64x64:8x3x64x64'

Polygraphy imports TensorRT before this file. For TensorRT for RTX's Linux wheel that is too early:
its libraries must be loaded from where its parser finds all of them. There, start Polygraphy with

    LD_LIBRARY_PATH="$(python -m nonzero_rewrite.scripts rtx_libraries)"
"""

from __future__ import annotations

import os
from typing import Any

from nonzero_plugin import NonZeroPluginError, register
from nonzero_plugin._tensorrt import _finds_unversioned_name, prepare_rtx_libraries, wants_rtx
from nonzero_plugin.profiles import parse_profile
from polygraphy.logger import G_LOGGER

from nonzero_rewrite.polygraphy_gate import polygraphy_flavour


def _register() -> None:
    """At import: Polygraphy imports this file, twice, before it parses the model."""
    if wants_rtx():
        folder = prepare_rtx_libraries()
        if folder is not None and not _finds_unversioned_name(folder):
            # Going on would end the process at the first plugin, without a word.
            G_LOGGER.critical(
                "TensorRT for RTX was loaded from a wheel that lacks a library name which its "
                f"parser opens; start this command with LD_LIBRARY_PATH={folder}"
            )
    try:
        register(polygraphy_flavour())
    except NonZeroPluginError as err:
        G_LOGGER.critical(str(err))


_register()


def load_config(builder: Any, network: Any) -> Any:
    """The builder configuration; Polygraphy calls this with ``network`` None for the parser."""
    if network is None:
        return builder.create_builder_config()
    from polygraphy.backend.trt import Profile

    if wants_rtx():
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX as CreateConfig
    else:
        from polygraphy.backend.trt import CreateConfig

    profile, text = Profile(), os.environ.get("NONZERO_PROFILE")
    try:
        shapes = parse_profile(text) if text else {}
    except NonZeroPluginError as err:
        G_LOGGER.critical(f"NONZERO_PROFILE: {err}")
    for name, each in shapes.items():
        profile.add(name, min=each.min, opt=each.opt, max=each.max)
    return CreateConfig(profiles=[profile] if shapes else None)(builder, network)
