"""The folder of compiled kernels against what is found in shared places; needs no NVRTC.

tests/kernel/test_compile.py has the rest: permissions, owners, damaged entries, processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nonzero_plugin.kernel_cache import CACHE_VARIABLE, cache_folder, read_entry, write_entry

KEY, OTHER = "a" * 64, "b" * 64
IMAGE = b"\x7fELF" + bytes(range(256))
posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kernels"))
    found = cache_folder()
    assert found is not None
    return found


def test_an_entry_comes_back_as_it_was(folder: Path) -> None:
    write_entry(folder, KEY, IMAGE)
    assert read_entry(folder, KEY) == IMAGE
    assert [path.name for path in folder.iterdir()] == [KEY]


@pytest.mark.parametrize("seconds", [-40 * 365 * 86400, 10 * 365 * 86400])
def test_a_clock_that_is_wrong_changes_nothing(folder: Path, seconds: int) -> None:
    write_entry(folder, KEY, IMAGE)
    when = time.time() + seconds
    os.utime(folder / KEY, (when, when))
    assert read_entry(folder, KEY) == IMAGE


def test_an_entry_under_the_key_of_another_kernel_is_not_run(folder: Path) -> None:
    write_entry(folder, KEY, IMAGE)
    (folder / KEY).replace(folder / OTHER)
    assert read_entry(folder, OTHER) is None


@pytest.mark.parametrize("length", [0, 5, 13, 14, 45, 46, 47, 100])
def test_an_entry_that_is_cut_off_is_not_run(folder: Path, length: int) -> None:
    write_entry(folder, KEY, IMAGE)
    (folder / KEY).write_bytes((folder / KEY).read_bytes()[:length])
    assert read_entry(folder, KEY) is None
    write_entry(folder, KEY, IMAGE)
    assert read_entry(folder, KEY) == IMAGE


@posix
def test_a_link_in_the_place_of_an_entry_is_neither_read_nor_written_through(
    folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_entry(tmp_path, KEY, IMAGE)
    (tmp_path / KEY).replace(elsewhere)
    before = elsewhere.read_bytes()
    (folder / KEY).symlink_to(elsewhere)
    assert read_entry(folder, KEY) is None
    write_entry(folder, KEY, IMAGE[::-1])
    assert elsewhere.read_bytes() == before
    assert not (folder / KEY).is_symlink()
    assert read_entry(folder, KEY) == IMAGE[::-1]


@posix
@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "ring of links"])
def test_what_is_no_file_costs_only_time(folder: Path, kind: str) -> None:
    place = folder / KEY
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("nowhere" if kind == "dangling link" else place.name)
    assert read_entry(folder, KEY) is None
    write_entry(folder, KEY, IMAGE)
    assert read_entry(folder, KEY) == (None if kind == "folder" else IMAGE)
    assert [path.name for path in folder.iterdir()] == [KEY]


@posix
@pytest.mark.parametrize("kind", ["file", "dangling link", "link to a folder of others"])
def test_a_folder_that_is_none_of_ours_is_not_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "kernels"
    if kind == "file":
        place.write_bytes(b"precious")
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        place.symlink_to(tmp_path / "open")
    monkeypatch.setenv(CACHE_VARIABLE, str(place))
    assert cache_folder() is None
    assert "compiled kernels are not kept in" in caplog.text
    assert CACHE_VARIABLE in caplog.text
    if kind == "file":
        assert place.read_bytes() == b"precious"


WRITER = """
import sys
from pathlib import Path
from nonzero_plugin.kernel_cache import read_entry, write_entry
folder, key = Path(sys.argv[1]), sys.argv[2]
for number in range(200):
    image = bytes([number]) * 40_000
    write_entry(folder, key, image)
    read = read_entry(folder, key)
    assert read is not None and len(set(read)) == 1 and len(read) == 40_000, "half an entry"
"""


def test_writers_at_the_same_time_never_show_half_an_entry(folder: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, folder, KEY], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=120)[1] for process in running] == [b""] * 3
    assert [path.name for path in folder.iterdir()] == [KEY]


@posix
def test_a_killed_writer_leaves_no_entry(folder: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from nonzero_plugin.kernel_cache import read_entry, write_entry;"
        "Path.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL);"
        "write_entry(Path(sys.argv[1]), sys.argv[2], b'x' * 1000)"
    )
    subprocess.run([sys.executable, "-c", script, folder, KEY], check=False)
    assert read_entry(folder, KEY) is None
    assert all(path.name.startswith(".") for path in folder.iterdir())
    write_entry(folder, KEY, IMAGE)
    assert read_entry(folder, KEY) == IMAGE
