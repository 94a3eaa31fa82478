"""Which split a level belongs to: a function of its content.

80 % of all possible levels are train, 10 % val, 10 % test, by the hash of the level's canonical key. Whatever seeds are
used, a level that was trained on cannot turn up in a test, nor can a rotated or mirrored copy of it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

SPLITS = ("train", "val", "test")


@lru_cache(maxsize=1 << 16)  # asked for at every reset
def split_of(level_key: str) -> str:
    """The split of a level key (any text)."""
    bucket = int.from_bytes(hashlib.blake2b(level_key.encode(), digest_size=8, person=b"ragen-split").digest()) % 10
    return "test" if bucket == 9 else "val" if bucket == 8 else "train"
