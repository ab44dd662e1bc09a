from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fake_tensorrt import make_fake_tensorrt
from nonzero_plugin import build_config
from nonzero_plugin.build import BuildOptions, _Child, _how_it_ended, build_engine
from nonzero_plugin.errors import EngineBuildError
from nonzero_plugin.network import add_nonzero


def full_trt(*flags: str, version: str = "10.9.0") -> Any:
    """A fake of full TensorRT with the given builder flags."""
    trt = make_fake_tensorrt("tensorrt", version)
    trt.BuilderFlag = SimpleNamespace(**{flag: flag for flag in flags})
    trt.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    trt.HardwareCompatibilityLevel = SimpleNamespace(AMPERE_PLUS="ampere+")
    trt.ProfilingVerbosity = SimpleNamespace(DETAILED="detailed")
    return trt


def test_options_survive_the_way_to_the_child() -> None:
    options = BuildOptions(
        profiles=("x=1", "x=2"),
        timing_cache=Path("a/b"),
        compute_capabilities=("8.9",),
        max_nonzero={"*": 3},
        original=Path("o.onnx"),
        fp16=True,
    )
    assert BuildOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compute_capabilities": ("8.9",)}, "belongs to TensorRT for RTX"),
        ({"unpatched": True}, "--unpatched works on TensorRT for RTX only"),
        ({"bf16": True}, "--bf16 does not exist"),
    ],
)
def test_full_tensorrt_refuses_what_is_rtx_s(options: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineBuildError, match=says):
        build_config.check(full_trt("FP16"), BuildOptions(**options))


def test_full_tensorrt_gets_its_flags_and_strong_typing_where_nothing_else_is_asked() -> None:
    trt = full_trt("FP16", "BF16", "VERSION_COMPATIBLE")
    assert build_config.network_flags(trt, BuildOptions()) == 1 << 1
    weak = BuildOptions(fp16=True, version_compatible=True, hardware_compatible=True)
    build_config.check(trt, weak)
    assert build_config.network_flags(trt, weak) == 0
    config = SimpleNamespace(flags=[])
    config.set_flag = config.flags.append
    build_config.apply(trt, config, weak, lambda text: None)
    assert config.flags == ["FP16", "VERSION_COMPATIBLE"]
    assert config.hardware_compatibility_level == "ampere+"


def test_versions_of_rtx_that_cannot_or_only_half() -> None:
    with pytest.raises(EngineBuildError, match=r"1\.5\.0.*install TensorRT for RTX 1\.7"):
        build_config.check(make_fake_tensorrt("tensorrt_rtx", "1.5.0"), BuildOptions())
    for name, version, half in (
        ("tensorrt_rtx", "1.6.1.120", True),
        ("tensorrt_rtx", "1.7.1", False),
        ("tensorrt", "10.9.0", False),
    ):
        assert build_config.serves_functions_only(make_fake_tensorrt(name, version)) is half


def test_a_timing_cache_that_does_not_fit_is_said_and_started_anew(tmp_path: Path) -> None:
    cache = tmp_path / "t.cache"
    cache.write_bytes(b"old")
    kept = []
    config = SimpleNamespace(
        create_timing_cache=lambda data: data,
        set_timing_cache=lambda data, ignore_mismatch: kept.append(data) or data != b"old",
        get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"new"),
    )
    notes: list[str] = []
    options = BuildOptions(timing_cache=cache)
    build_config.apply(full_trt(), config, options, notes.append)
    assert kept == [b"old", b""] and "does not fit tensorrt 10.9.0" in notes[0]
    build_config.save_timing_cache(config, options, notes.append)
    assert cache.read_bytes() == b"new" and list(tmp_path.iterdir()) == [cache]


def test_an_engine_is_worth_having_without_its_timing_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache = tmp_path / "t.cache"
    cache.write_bytes(b"old")
    config = SimpleNamespace(
        create_timing_cache=lambda data: data,
        set_timing_cache=lambda data, ignore_mismatch: True,
        get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"new"),
    )
    notes: list[str] = []
    options = BuildOptions(timing_cache=cache)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    build_config.apply(full_trt(), config, options, notes.append)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "write_bytes", refuse)
    build_config.save_timing_cache(config, options, notes.append)
    assert notes == [
        f"timing cache {cache} cannot be read: No space left on device; starting anew",
        f"the timing cache was not kept: {cache}: cannot be written: No space left on device; "
        "choose another place or make room",
    ]
    assert cache.read_bytes() == b"old" and list(tmp_path.iterdir()) == [cache]


def test_a_temporary_that_cannot_be_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    def fail(self: object) -> None:
        raise EngineBuildError("TensorRT could not")

    (tmp_path / "m.onnx").write_bytes(b"model")
    monkeypatch.setattr(_Child, "run", fail)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(EngineBuildError, match="TensorRT could not"):
        build_engine(tmp_path / "m.onnx", tmp_path / "e")


def test_how_a_child_ended() -> None:
    assert _how_it_ended(-6) == "SIGABRT" and _how_it_ended(-11) == "SIGSEGV"
    assert _how_it_ended(0xC0000005) == "status 0xC0000005"
    assert _how_it_ended(3) == "exit code 3"


def test_add_nonzero_on_a_network_that_has_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    trt = make_fake_tensorrt("tensorrt")
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    added = []

    class Network(trt.INetworkDefinition):  # type: ignore[misc, name-defined]
        def add_plugin_v3(self, inputs: Any, shapes: Any, plugin: Any) -> Any:
            added.append((inputs, shapes, plugin.config))
            return SimpleNamespace(get_output=lambda index: f"output {index}")

    Network.__module__ = "tensorrt"
    outputs = add_nonzero(Network(), "tensor", layout="rank_last", backend="torch", max_nonzero=9)
    assert outputs == ("output 0", "output 1")
    ((inputs, shapes, config),) = added
    assert (inputs, shapes) == (["tensor"], [])
    assert (config.backend, config.perm, config.max_nonzero) == ("torch", (1, 0), 9)
    assert len(trt.registry.all_creators) == 1
