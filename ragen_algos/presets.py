"""Names for algorithms with some options set: control arms, and what others have published.

``make("seeupo-theory")`` is ``make("seeupo", m_mode="exact", ...)``: a result records the algorithm and all its
options, so a name here can change nothing behind a reader's back. This file imports no torch, so that names can be
listed quickly.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    # As many updates as SeeUPO, all turns together: what its extra optimiser steps are worth without the rest.
    "grpo-step-matched": ("grpo", {"minibatches": "turns"}),
    "seeupo-paper": ("seeupo", {}),
    "seeupo-official-code": (
        "seeupo",
        {"m_mode": "code", "anchor": "turn", "adv_clamp": 3.0, "m_clip": (0.8, 1.2)},
    ),
    "seeupo-theory": ("seeupo", {"m_mode": "exact", "ratio": "seq_prod", "scale": "none"}),
    # Turn by turn, but every turn with the plain advantage: what M is worth.
    "seeupo-without-m": ("seeupo", {"m_mode": "none"}),
    "starpo-s-50": ("starpo-s", {"filter_value": 0.5}),
}
