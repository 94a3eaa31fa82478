"""``njit`` with an on-disk cache where one can be written, and without one where not.

numba raises at import time if it finds no writable place for its cache (a read-only install without a home folder).
Compiling afresh in every process is slower but right, so that is the fallback, with one warning.

Functions that call each other must live in one file: numba does not notice that a cached function's helper changed in
another file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
_warned = False


def njit(function: F) -> F:
    """Compile ``function`` with numba."""
    global _warned
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:
        if not _warned:
            warnings.warn("numba found no writable cache folder: compiling in this process only", stacklevel=2)
            _warned = True
        return cast(F, numba.njit(function))
