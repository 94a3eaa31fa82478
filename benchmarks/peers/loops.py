"""Measuring loops that several peers share. Standard library only."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.timing import finished_per_cpu_second, per_cpu_second

ROOMS = {
    # figure: (height and width, boxes, CPU-seconds of the window)
    "rooms_6x6_1": (6, 1, 1.5),
    "rooms_8x8_2": (8, 2, 4.0),
    "rooms_10x10_4": (10, 4, 12.0),
}


def choices(of: Sequence[Any], n: int = 4096) -> list[Any]:
    """``n`` random items, the same in every process."""
    return random.Random(0).choices(of, k=n)


def gymnasium_steps(env: Any, *, look: Callable[[], object] | None = None) -> float:
    """Random steps per CPU-second of a Gymnasium environment with discrete actions, resets included.

    Args:
        env: the environment.
        look: called after every step, to get a rendering that ``step`` does not return.
    """
    actions = choices(range(int(env.action_space.n)))
    env.reset(seed=0)

    def play(n: int) -> None:
        for i in range(n):
            _, _, terminated, truncated, _ = env.step(actions[i & 4095])
            if look is not None:
                look()
            if terminated or truncated:
                env.reset()

    return per_cpu_second(play)


def batched_steps(step: Callable[[Any], object], batches: Any, size: int) -> float:
    """Steps of single environments per CPU-second, where ``step(batches[i])`` steps ``size`` of them."""

    def play(n: int) -> None:
        for i in range(n):
            step(batches[i % len(batches)])

    return per_cpu_second(play) * size


def rooms(generate_room: Callable[..., object], figure: str, *, seeded: bool) -> float:
    """Rooms per CPU-second of a generator of the gym-sokoban family; attempts that fail count as time.

    Args:
        generate_room: the peer's function.
        figure: key of :data:`ROOMS`.
        seeded: it takes a seed (gym-sokoban's uses the global generators, which its module has seeded).
    """
    side, boxes, seconds = ROOMS[figure]
    attempt = 0

    def one(_: int) -> None:
        nonlocal attempt
        while True:
            attempt += 1
            extra = {"seed": attempt} if seeded else {"second_player": False}
            try:
                # The length of the walk that carves the room is the peers' own default, 1.7 times the sides.
                generate_room(dim=(side, side), num_steps=int(1.7 * 2 * side), num_boxes=boxes, **extra)
                return
            except (RuntimeError, RuntimeWarning):  # their way to say that an attempt gave no room
                continue

    with contextlib.redirect_stdout(io.StringIO()):  # some of them print as they work
        return finished_per_cpu_second(one, seconds=seconds)
