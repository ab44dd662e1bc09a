"""The kernel compiles for every architecture of NVRTC, and its cache cannot be fooled. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from nonzero_plugin import compile as compiler
from nonzero_plugin.compile import compile_kernel, supported_architectures
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import KernelCompileError
from nonzero_plugin.kernel_cache import CACHE_VARIABLE, cache_folder
from nonzero_plugin.launch import kernel_defines

DEFINES = kernel_defines(DType.FLOAT, NonZeroConfig(), wide=False)
KERNELS = tuple(
    f"nonzero_{name}".encode()
    for name in ("small", "select_small", "select_large", "flag", "write")
)
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")


TINY = b'extern "C" __global__ void tiny(int *x) { *x = INDEX_BYTES; }'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, no memory of earlier compilations, and a source of one line."""
    path = tmp_path / "kernels"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    monkeypatch.setattr(compiler, "_compiled", {})
    monkeypatch.setattr(compiler, "kernel_source", lambda: TINY)
    yield path


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    monkeypatch.setattr(compiler, "_compiled", {})


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = compiler._compile

    def counted(target: str, options: tuple[str, ...]) -> bytes:
        seen.append(target)
        return real(target, options)

    monkeypatch.setattr(compiler, "_compile", counted)
    return seen


def again(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(compiler, "_compiled", {})
    return compile_kernel("sm_90", DEFINES)


# Every compilation on one architecture, and one of them in turn on each of the others.
ALL = [
    (dtype, 4 + 4 * (index % 2), wide)
    for index, (dtype, wide) in enumerate(
        product((DType.BOOL, DType.FLOAT16, DType.FLOAT, DType.INT64), (False, True))
    )
]
CASES = [(90, *case) for case in ALL] + [
    (arch, *ALL[i % len(ALL)]) for i, arch in enumerate(supported_architectures()) if arch != 90
]


@pytest.mark.parametrize(("arch", "dtype", "index_bytes", "wide"), CASES)
def test_compiles_for_every_architecture(
    arch: int, dtype: DType, index_bytes: int, wide: bool, uncached: None
) -> None:
    assert arch >= 75
    defines = kernel_defines(dtype, NonZeroConfig(), wide=wide)
    image = compile_kernel(f"sm_{arch}", {**defines, "INDEX_BYTES": index_bytes})
    assert image.startswith(b"\x7fELF") and all(name in image for name in KERNELS)


def test_an_entry_is_read_instead_of_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_compilations(monkeypatch)
    first = compile_kernel("sm_90", DEFINES)
    assert again(monkeypatch) == first and seen == ["sm_90"]
    assert [path.name.startswith(".") for path in folder.iterdir()] == [False]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: content.replace(b"nonzero-cubin", b"nonzero-cubiN", 1),
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
        lambda content: content + b"x",
    ],
)
def test_a_damaged_entry_is_compiled_and_written_again(
    damage: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_compilations(monkeypatch)
    first = compile_kernel("sm_90", DEFINES)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))  # type: ignore[operator]
    assert again(monkeypatch) == first and seen == ["sm_90"] * 2
    assert entry.read_bytes() == whole


def test_the_key_holds_source_defines_target_and_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_kernel("sm_90", DEFINES)
    compile_kernel("sm_80", DEFINES)
    compile_kernel("sm_90", {**DEFINES, "INDEX_BYTES": 4})
    assert len(list(folder.iterdir())) == 3
    source = compiler.kernel_source()
    monkeypatch.setattr(compiler, "kernel_source", lambda: source + b"\n")
    compile_kernel("sm_90", DEFINES)
    version = compiler.nvrtc_version()
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (version[0], version[1] + 1))
    compile_kernel("sm_90", DEFINES)
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize("setting", ["", "0"])
def test_the_cache_can_be_switched_off(
    setting: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, setting)
    monkeypatch.chdir(folder.parent)
    assert compile_kernel("sm_90", DEFINES).startswith(b"\x7fELF")
    assert not list(folder.parent.iterdir())


def test_a_folder_that_cannot_be_made_costs_only_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "kernels"))
    assert compile_kernel("sm_90", DEFINES).startswith(b"\x7fELF")
    assert "are not kept in" in caplog.text and CACHE_VARIABLE in caplog.text


def test_a_failed_write_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert compile_kernel("sm_90", DEFINES).startswith(b"\x7fELF")
    assert not list(folder.iterdir())


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_others_can_write_to_is_not_used(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    assert compile_kernel("sm_90", DEFINES).startswith(b"\x7fELF")
    assert "other users can write to" in caplog.text and not list(folder.iterdir())


@posix
def test_an_entry_others_can_write_to_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_compilations(monkeypatch)
    compile_kernel("sm_90", DEFINES)
    (entry,) = folder.iterdir()
    entry.chmod(0o666)
    again(monkeypatch)
    assert len(seen) == 2 and entry.stat().st_mode & 0o022 == 0


@posix
def test_another_users_folder_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    compile_kernel("sm_90", DEFINES)
    assert f"belongs to user {user}, not to this one" in caplog.text and not list(folder.iterdir())


@posix
def test_a_new_folder_is_its_owners_alone(folder: Path) -> None:
    compile_kernel("sm_90", DEFINES)
    (entry,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and entry.stat().st_mode & 0o077 == 0


def test_processes_can_share_the_folder(folder: Path) -> None:
    code = (
        "from nonzero_plugin import compile as compiler\n"
        f"compiler.kernel_source = lambda: {TINY!r}\n"
        "compile_kernel = compiler.compile_kernel\n"
        f"import hashlib; print(hashlib.sha256(compile_kernel('sm_90', {DEFINES})).hexdigest())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    digests = {process.communicate(timeout=120)[0] for process in running}
    assert len(digests) == 1 and "" not in digests
    assert len(list(folder.iterdir())) == 1


def test_a_refused_source_shows_the_compilers_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "kernel_source", lambda: b"not C at all\n")
    with pytest.raises(
        KernelCompileError, match=r"nonzero\.cu for sm_90: nonzero\.cu\(1\)"
    ) as info:
        compile_kernel("sm_90", DEFINES)
    assert "--gpu-architecture=sm_90" in info.value.options and "error" in info.value.log
    assert not list(folder.iterdir())


def test_a_newer_device_gets_code_its_driver_can_compile() -> None:
    known = supported_architectures()
    assert compiler.target_for(known[0]) == f"sm_{known[0]}"
    assert compiler.target_for(known[-1] + 30) == f"compute_{known[-1]}"
    with pytest.raises(KernelCompileError, match=r"this device has 5\.2; the plugin runs on 7\.5"):
        compiler.target_for(52)


def test_a_device_that_nvrtc_has_dropped_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "supported_architectures", lambda: (90, 100))
    with pytest.raises(KernelCompileError, match=r"8\.9; install an older NVRTC"):
        compiler.target_for(89)


def test_the_folder_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert cache_folder() == tmp_path / "nonzero-rewrite" / "kernels"


def test_the_benchmarks_kernels_compile() -> None:
    from nonzero_plugin.bench_measure import compile_peers

    image = compile_peers("sm_90")
    assert all(name in image for name in (b"fill_words", b"spin", b"atomic_rows"))


def test_the_kernel_includes_nothing() -> None:
    assert b"#include" not in compiler.kernel_source()
