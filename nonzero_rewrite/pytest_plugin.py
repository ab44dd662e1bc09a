"""The pytest plugin: a fixture ``assert_parity``. Imports nothing until a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nonzero_rewrite.verification import Verification


@pytest.fixture(name="assert_parity", scope="session")
def _assert_parity() -> Callable[..., Verification]:
    """``nonzero_rewrite.testing.assert_parity``: fails unless two models compute the same."""
    from nonzero_rewrite.testing import assert_parity

    return assert_parity
