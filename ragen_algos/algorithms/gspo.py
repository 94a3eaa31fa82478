"""GSPO: the advantages of GRPO under one clipped ratio per episode, normalised by its length.

Objective
    L = mean_i max(-A_i s_i, -A_i clip(s_i, 1 - clip_low, 1 + clip_high)). A_i = (R_i - mu) / s.

Symbols
    s_i: exp(mean of logp - old_logp over the sampled tokens of episode i), the geometric mean of its token ratios.
    R_i: undiscounted episode return. mu: mean of the group. s: ``scale``, the Bessel standard deviation of the group
    plus 1e-6 (``group``), one constant per batch (``batch``) or 1 (``none``).

Source
    arXiv 2507.18071. One sequence is the whole multi-turn episode here.

Defaults
    clip 3e-4 / 4e-4 as in the paper (a mean over tokens moves far less than a token), seq-mean-token-mean, one epoch of
    one minibatch, no KL, lr 3e-4 (tiny model). ``scale="batch"`` is our default as for GRPO; **"group" is the setting
    of the paper**.

Known weaknesses
    A single step per batch has ratio 1, and then this is GRPO; the narrow clip matters with ``minibatches`` or
    ``epochs`` above 1, where it stops whole episodes at once. Every token gets the credit of the whole episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ragen_algos.algorithms.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """Group sequence policy optimisation: GRPO's credit; formulas in the docstring of this file."""

    name: ClassVar[str] = "gspo"
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    @property
    def clipped_ratio(self) -> str:
        """The geometric mean over the sequence."""
        return "seq_geo"
