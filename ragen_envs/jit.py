"""``njit`` that leaves numba alone until a compiled function is called, and caches on disk where it can.

Importing numba takes longer than everything else that an environment needs, and many uses of one need nothing compiled:
so a function is handed to numba at its first call. numba raises then if it finds no writable place for its cache (a
read-only install without a home folder). Compiling afresh in every process is slower but right, so that is the
fallback, with one warning.

Functions that call each other must live in one file: numba does not notice that a cached function's helper changed in
another file, and only helpers of the same file are handed over together.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_warned = False


class _Later:
    """A function that numba gets to see when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            # numba compiles calls between compiled functions, so all functions of the file are handed over: from here
            # on the file itself uses numba's own objects, and other files go through this one.
            names = self.function.__globals__
            for name, value in list(names.items()):
                if isinstance(value, _Later) and value.function.__globals__ is names:
                    value.compiled = value.compiled or _compile(value.function)
                    names[name] = value.compiled
            self.compiled = self.compiled or _compile(self.function)
        return self.compiled(*args)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    global _warned
    try:
        return cast(Callable[..., Any], numba.njit(cache=True)(function))
    except RuntimeError:
        if not _warned:
            warnings.warn("numba found no writable cache folder: compiling in this process only", stacklevel=3)
            _warned = True
        return cast(Callable[..., Any], numba.njit(function))


def njit(function: F) -> F:
    """Compile ``function`` with numba when it is first called."""
    return cast(F, _Later(function))
