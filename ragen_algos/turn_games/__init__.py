"""Turn games: games so small that what an algorithm does to a policy can be computed exactly.

An agent's ``T`` turns are ``T`` agents; one return at the end belongs to all of them. In which order may they learn
from one batch, and what must a turn know of those that have moved before it? Here the answers are exact, to 1e-12.

========================  ==============================================================================
``games.py``              the games: returns as a table, and what the agents see
``updates.py``            exact updates: best response, clipped surrogate, gradient; in any order, with M
``batch.py``              one such sweep on sampled trajectories, and its book-keeping
``tables.py``             who improves, who reaches the optimum, in how many sweeps
========================  ==============================================================================

``python -m ragen_algos.turn_games`` prints those tables; docs/turn_games.md explains them. No torch.
"""

from ragen_algos.turn_games.games import Policies, TurnGame
from ragen_algos.turn_games.updates import best_response, clipped_argmax, gradient_step, improve, sweep, telescope

__all__ = [
    "Policies",
    "TurnGame",
    "best_response",
    "clipped_argmax",
    "gradient_step",
    "improve",
    "sweep",
    "telescope",
]
