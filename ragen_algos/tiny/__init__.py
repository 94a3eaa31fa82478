"""The embedded default model: small enough to learn in minutes on a laptop, real enough to be a Qwen2.

``tiny-mid`` is where reinforcement learning starts, ``tiny-full`` is the same recipe trained for longer.
``python -m ragen_algos.tiny.build`` rebuilds both; ``CARD.md`` says how they were made and how well they play.
"""
