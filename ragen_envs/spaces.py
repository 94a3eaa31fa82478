"""``FreeText``: a text space for language models.

``gymnasium.spaces.Text`` checks every character against a charset, which is slow and rejects most real text. Here any
``str`` of allowed length is a member.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

SAMPLE_EXTRA = 256
_SAMPLED = string.ascii_letters + string.digits + string.punctuation + " \n\t"


class FreeText(Text):
    """Any ``str`` whose length lies between ``min_length`` and ``max_length``.

    Samples are printable ASCII, newline and tab, from an ordered set, so that seeds reproduce in every process. They
    are short: at most ``SAMPLE_EXTRA`` characters more than ``min_length``, however long a member may be.
    ``AsyncVectorEnv`` with shared memory refuses this space: it would return garbage (pass ``shared_memory=False``).
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=min_length, charset=_SAMPLED, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random member; ``mask`` and ``probability`` as for ``gymnasium.spaces.Text``."""
        if mask is None and probability is None:
            longest = min(self.max_length, self.min_length + SAMPLE_EXTRA)
            mask = (self.np_random.integers(self.min_length, longest + 1), None)
        return super().sample(mask, probability)

    def contains(self, x: Any) -> bool:
        """Membership, in constant time."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"FreeText({self.min_length}, {self.max_length})"

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, FreeText)
            and (self.min_length, self.max_length) == (other.min_length, other.max_length)
        )

    __hash__ = None  # type: ignore[assignment]


@create_shared_memory.register(FreeText)
def _no_shared_memory(space: FreeText, n: int = 1, ctx: Any = None) -> Any:
    raise CustomSpaceError(
        "text has no fixed size and cannot live in shared memory: use AsyncVectorEnv(..., shared_memory=False)"
    )
