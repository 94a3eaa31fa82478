"""Where the level files of other people are, which tests may read and the project never ships."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("RAGEN_LEVELS") or Path(__file__).resolve().parents[2].parent / "shared" / "levels")
"""``RAGEN_LEVELS``, else ``../shared/levels`` beside the checkout."""


def level_file(name: str) -> Path:
    """The path of a level file; skips the test where it is absent."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER}: set RAGEN_LEVELS to the folder of the level files")
    return path
