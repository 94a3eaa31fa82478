"""Why training collapses, seen while it does.

========================  =================================================================================
:mod:`.text`              what the episodes of an iteration look like, as numbers
:mod:`.echo_trap`         :class:`EchoTrapMonitor`: does this run still learn, or does it repeat itself?
:mod:`.template`          :func:`template_metrics`: do thoughts still depend on prompts?
:mod:`.gradients`         :func:`gradient_buckets`: who moves the weights, the task or the regularisers?
========================  =================================================================================

Nothing here changes training: all of it reads, and says.
"""

from ragen_algos.diagnostics.echo_trap import EchoTrapMonitor, Signal, Thresholds, Verdict
from ragen_algos.diagnostics.gradients import GradientBucket, gradient_buckets
from ragen_algos.diagnostics.template import (
    CrossScores,
    TemplateCollapse,
    cross_scores,
    template_collapse,
    template_metrics,
)
from ragen_algos.diagnostics.text import describe, repetition, thought_length, unique_thoughts

__all__ = [
    "CrossScores",
    "EchoTrapMonitor",
    "GradientBucket",
    "Signal",
    "TemplateCollapse",
    "Thresholds",
    "Verdict",
    "cross_scores",
    "describe",
    "gradient_buckets",
    "repetition",
    "template_collapse",
    "template_metrics",
    "thought_length",
    "unique_thoughts",
]
