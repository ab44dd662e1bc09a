"""The folder of compiled kernels, which all processes of one user share.

An entry's name is the digest of everything the result depends on, its content carries its own
digest, and it is written under a temporary name and renamed: an entry that cannot be read back
whole is compiled again. ``NONZERO_REWRITE_CACHE_DIR`` moves the folder; set to nothing or ``0`` it
disables it.

Machine code is run unseen, so a folder is used only when no other user can write to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
import tempfile
from pathlib import Path

from nonzero_plugin.places import words

CACHE_VARIABLE = "NONZERO_REWRITE_CACHE_DIR"
_MAGIC = b"nonzero-cubin\n"
_DIGEST_BYTES = hashlib.sha256().digest_size

log = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """The folder of compiled kernels, made if missing; None where it is disabled or not usable.

    A folder that belongs to somebody else, or that others can write to, is not used: a warning
    says so and the kernel is compiled in each process instead.
    """
    setting = os.environ.get(CACHE_VARIABLE)
    if setting in ("", "0"):
        return None
    folder = Path(setting).expanduser() if setting else _default_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        distrust = _why_not_trusted(folder)
    except (OSError, RuntimeError) as err:
        distrust = words(err)
    if distrust:
        log.warning(
            "compiled kernels are not kept in %s: %s; set %s to a folder of your own, or to 0",
            folder,
            distrust,
            CACHE_VARIABLE,
        )
        return None
    return folder


def _default_folder() -> Path:
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "nonzero-rewrite" / "kernels"


def _why_not_trusted(path: Path) -> str | None:
    """Why somebody else could have put machine code there; None when nobody could.

    Windows folders inherit the profile's access list, which keeps other users out.
    """
    if sys.platform == "win32":
        return None
    status = path.stat()
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, not to this one"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to {path}"
    return None


def read_entry(folder: Path, key: str) -> bytes | None:
    """The image kept under ``key``; None when there is none, or none that is whole and ours."""
    path = folder / key
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or _why_not_trusted(path):
            return None  # a link or a pipe is none that we wrote
        content = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    image = content[start:]
    if content[:start] != _MAGIC + _digest(key, image):
        log.info("kernel cache entry %s is damaged; compiling again", path)
        return None
    return image


def _digest(key: str, image: bytes) -> bytes:
    """Of an entry: under another key the same image is damaged."""
    return hashlib.sha256(key.encode() + b"\0" + image).digest()


def write_entry(folder: Path, key: str, image: bytes) -> None:
    """Keep an image; where that is not possible, it is compiled again next time."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{key[:16]}-", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _digest(key, image) + image)
        Path(temporary).replace(folder / key)
    except OSError as err:  # a full disk or a read-only folder costs a compile, not the engine
        log.info("kernel cache entry cannot be written to %s: %s", folder, err)
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
