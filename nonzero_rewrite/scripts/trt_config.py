"""For ``--trt-config-script``: registers the plugin, then configures as Polygraphy does.

Needed only where Polygraphy does not see this package's extension, for example in a program that
embeds Polygraphy's tools. Polygraphy ignores its other configuration options beside such a script,
so shapes come from the environment:

    NONZERO_PROFILE   NAME=MIN:OPT:MAX;... for example 'x=1x3x64x64:4x3x64x64:8x3x64x64'
"""

from __future__ import annotations

import os
from typing import Any

from nonzero_plugin import register
from nonzero_plugin.profiles import parse_profile

from nonzero_rewrite.polygraphy_gate import polygraphy_flavour

register(polygraphy_flavour())  # at import: Polygraphy imports this file before it parses the model


def load_config(builder: Any, network: Any) -> Any:
    """The builder configuration; Polygraphy calls this with ``network`` None for the parser."""
    if network is None:
        return builder.create_builder_config()
    from polygraphy.backend.trt import Profile

    if polygraphy_flavour() == "tensorrt_rtx":
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX as CreateConfig
    else:
        from polygraphy.backend.trt import CreateConfig

    profiles = []
    for text in filter(None, [os.environ.get("NONZERO_PROFILE")]):
        profile = Profile()
        for name, shapes in parse_profile(text).items():
            profile.add(name, min=shapes.min, opt=shapes.opt, max=shapes.max)
        profiles.append(profile)
    return CreateConfig(profiles=profiles or None)(builder, network)
