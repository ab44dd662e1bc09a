from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.fake_tensorrt import make_fake_tensorrt
from nonzero_plugin import _tensorrt
from nonzero_plugin.errors import TensorRTUnavailableError


@pytest.fixture
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_tensorrt.ENV_RTX, raising=False)
    for name in _tensorrt.FLAVOURS:
        monkeypatch.delitem(sys.modules, name, raising=False)


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(
        _tensorrt.importlib.util, "find_spec", lambda name: name if name in names else None
    )


@pytest.mark.usefixtures("nothing_imported")
def test_argument_then_environment_then_imported_then_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, "tensorrt", "tensorrt_rtx")
    assert _tensorrt.choose_flavour() == _tensorrt.choose_flavour("auto") == "tensorrt"
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", types.ModuleType("tensorrt_rtx"))
    assert _tensorrt.choose_flavour() == "tensorrt_rtx"
    monkeypatch.setitem(sys.modules, "tensorrt", types.ModuleType("tensorrt"))
    assert _tensorrt.choose_flavour() == "tensorrt"
    monkeypatch.setenv(_tensorrt.ENV_RTX, "1")
    assert _tensorrt.choose_flavour() == "tensorrt_rtx"
    assert _tensorrt.choose_flavour("tensorrt") == "tensorrt"
    monkeypatch.setenv(_tensorrt.ENV_RTX, "0")
    assert _tensorrt.choose_flavour() == "tensorrt"


@pytest.mark.usefixtures("nothing_imported")
def test_b46_missing_tensorrt_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(TensorRTUnavailableError, match=r"pip install 'nonzero-rewrite\[rtx\]'"):
        _tensorrt.choose_flavour()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(TensorRTUnavailableError, match="tensorrt cannot be imported"):
        _tensorrt.load_tensorrt("tensorrt")
    with pytest.raises(TensorRTUnavailableError, match="'trt8' is unknown; choose one of auto"):
        _tensorrt.load_tensorrt("trt8")


def test_b18_a_tensorrt_without_ipluginv3_is_refused_early() -> None:
    old = types.ModuleType("tensorrt")
    old.__version__ = "8.6.1"  # type: ignore[attr-defined]
    with pytest.raises(TensorRTUnavailableError) as caught:
        _tensorrt.load_tensorrt(old)
    text = str(caught.value)
    assert "8.6.1" in text and "IPluginV3" in text and "10.3 or newer" in text


def test_modules_of_the_family_are_told_apart() -> None:
    for name, flavour in (
        ("tensorrt", "tensorrt"),
        ("tensorrt_rtx", "tensorrt_rtx"),
        ("tensorrt_lean_bindings", "tensorrt_lean"),
    ):
        module = make_fake_tensorrt(name, "10.6.0.post1")
        assert _tensorrt.load_tensorrt(module) is module
        assert _tensorrt.flavour_of(module) == flavour
        assert _tensorrt.version_tuple(module) == (10, 6, 0)


def test_importing_the_packages_loads_nothing_heavy() -> None:
    code = """
        import sys, nonzero_plugin, nonzero_rewrite
        heavy = {"tensorrt", "tensorrt_rtx", "cuda", "cupy", "torch", "onnxruntime", "numpy"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


PARSE = """
    import sys
    from nonzero_plugin import register
    trt = register("tensorrt_rtx")
    import pathlib
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, builder.logger)
    print(parser.parse(pathlib.Path(sys.argv[1]).read_bytes()), network.num_layers)
"""


@pytest.mark.rtx
@pytest.mark.skipif(sys.platform != "linux", reason="the trap is the Linux wheel's")
@pytest.mark.parametrize("home", ["writable", "not writable"])
def test_rtx_parses_a_plugin_from_many_processes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    from helpers.patched import save, single

    model = save(single(), tmp_path / "m.onnx")
    cache = tmp_path / "cache"
    if home == "not writable":
        cache.write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    command = [sys.executable, "-c", textwrap.dedent(PARSE), str(model)]
    with ThreadPoolExecutor(4) as pool:
        done = list(
            pool.map(
                lambda _: subprocess.run(command, capture_output=True, text=True, check=False),
                range(4),
            )
        )
    assert [run.stdout.split() for run in done] == [["True", "1"]] * 4, done
    if home == "writable":
        (folder,) = (cache / "nonzero-rewrite").iterdir()
        names = {path.name for path in folder.iterdir()}
        assert "libtensorrt_rtx.so" in names and all(path.is_symlink() for path in folder.iterdir())


LATE = """
    import logging, sys
    logging.basicConfig(format="%(message)s")
    import tensorrt_rtx
    from nonzero_plugin import register
    register(tensorrt_rtx)
    register("tensorrt_rtx")
"""


@pytest.mark.rtx
@pytest.mark.skipif(sys.platform != "linux", reason="the trap is the Linux wheel's")
def test_importing_rtx_first_is_told_before_its_parser_can_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    command = [sys.executable, "-c", textwrap.dedent(LATE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (folder,) = (tmp_path / "nonzero-rewrite").iterdir()
    assert "tensorrt_rtx was imported before" in done.stderr
    assert f"LD_LIBRARY_PATH={folder}" in done.stderr
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
