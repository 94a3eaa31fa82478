"""``TextVectorEnv``: many text environments stepped together, equal step for step to ``SyncVectorEnv`` of ``TextEnv``.

What ``gymnasium.make_vec`` gives for every registered id. The class itself holds what all vector environments share:
checks, seeds, the three autoreset modes. The plays behind it come in two kinds. ``CompiledPlays`` plays games that
have a :class:`~ragen_envs.batch.GameBatch` in compiled code, and builds infos only as they are asked for.
:class:`_Singles` is a list of :class:`TextEnv` for everything else: other games, conversations (``messages``), and
info from the oracle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ragen_envs.compiled_plays import CompiledPlays
from ragen_envs.game import Game
from ragen_envs.text_env import TextEnv


class TextVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """``num_envs`` copies of one text environment.

    Observations are a fresh ``int8`` array ``[num_envs, *shape]`` (``grid``) or a tuple of one text, or conversation,
    per environment. Discrete actions are ``num_envs`` whole numbers; texts a list, tuple or array of ``str``.

    ``infos`` is a ``dict`` as ``SyncVectorEnv`` makes it: for each key an array and, as ``_key``, a mask. Columns are
    computed when they are first looked at, of the step they belong to, so keys that nobody reads cost nothing.

    Args:
        game: As for :class:`TextEnv`.
        num_envs: Number of environments.
        autoreset_mode: What happens after the end of an episode, a value of ``gymnasium.vector.AutoresetMode``.
        max_episode_steps: Steps after which an episode is truncated whatever its own budgets say, as by Gymnasium's
            ``TimeLimit``; None or -1 for no such limit.
        kwargs: Everything else that :class:`TextEnv` takes.

    Raises:
        ValueError: an argument is outside its values.
        TypeError: an argument is known neither here nor to :class:`TextEnv` and the game.
    """

    def __init__(
        self,
        game: Game[Any, Any] | str,
        *,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name, count in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
            off = name == "max_episode_steps" and count in (None, -1)
            if not off and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        single = TextEnv(game, **kwargs)
        self._single = single
        self.metadata = {**single.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = single.render_mode
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)

        batch = None
        if single.observation_mode != "messages" and not single.oracle_info and _rules_are_compiled(single.game):
            batch = single.game.batch(_listed_levels(single), num_envs)
        self._plays: _PlayMany = (
            _Singles(single, num_envs, self._add_info) if batch is None else CompiledPlays(single, batch, num_envs)
        )
        self._limit = None if max_episode_steps == -1 else max_episode_steps
        self._steps = np.zeros(num_envs, np.int64)
        self._all = np.ones(num_envs, bool)
        self._done = np.zeros(num_envs, bool)
        self._started = False

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # one per environment, as SyncVectorEnv
        """The seed of each environment's ``np_random``; None before its first reset."""
        return tuple(self._plays.seeds)

    # --- Gymnasium ------------------------------------------------------------------------------------------------

    def reset(  # type: ignore[override]  # VectorEnv narrows seed to int; SyncVectorEnv takes these
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in some.

        Args:
            seed: ``s`` gives the environments the seeds ``s``, ``s + 1``, ...; or a list with a seed or None for each.
                Without a seed, an environment goes on with its own ``np_random``.
            options: Those of :meth:`TextEnv.reset`, for all environments alike; ``dynamics_seed`` may also be a list
                with a number for each. ``reset_mask`` (``bool [num_envs]``): which environments to reset; the others
                keep their episode and their last observation. The dict is not changed.

        Raises:
            TypeError: ``reset_mask`` is not an array of bools.
            ValueError: an option or its length is wrong. Nothing has changed then.
            gymnasium.error.Error: a seed is not a whole number of at least 0.
        """
        options = dict(options or {})
        rows = self._reset_rows(options.pop("reset_mask", None))
        seeds = self._one_for_each("seed", [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed)
        for one in seeds or ():
            if one is not None and (not isinstance(one, int) or one < 0):
                seeding.np_random(one)  # raises, in Gymnasium's words
        luck = options.pop("dynamics_seed", None)
        if luck is not None and not isinstance(luck, Sequence | np.ndarray):
            luck = [luck] * self.num_envs
        lucks = self._one_for_each("dynamics_seed", luck)
        level = options.pop("level", None)
        self._single._own_luck_and_level({**options, "level": level})
        for one in lucks or ():
            self._single._own_luck_and_level({"dynamics_seed": one})
        self._plays.begin(rows, seeds, lucks, level)
        self._started = True
        self._steps[rows], self._done[rows] = 0, False
        return self._plays.observations(), self._plays.infos(self._plays.now, rows)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One turn (or, with discrete actions, one primitive action) in every environment.

        Raises:
            gymnasium.error.ResetNeeded: not reset yet.
            ValueError: actions of a wrong number or type, or a discrete one outside the space.
            AssertionError: with autoreset disabled, an episode is over and was not reset. In all three cases nothing
                has changed.
        """
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        if self.autoreset_mode == AutoresetMode.DISABLED and self._done.any():
            raise AssertionError(
                f"the episodes of environments {np.flatnonzero(self._done).tolist()} are over: with autoreset "
                'disabled, reset them first, by reset(options={"reset_mask": ...})'
            )
        # The environments that only begin anew in this step; their actions are ignored.
        beginning = self._done if self.autoreset_mode == AutoresetMode.NEXT_STEP and self._done.any() else None
        active = self._all if beginning is None else ~beginning
        rewards, terminated, truncated = self._plays.step(self._checked(actions, active), active)
        if self._limit is not None:
            self._steps += active
            truncated |= active & (self._steps >= self._limit)
        done = terminated | truncated
        ended = None
        if self.autoreset_mode == AutoresetMode.SAME_STEP and done.any():
            beginning, ended = done, self._plays.now
        if beginning is not None:
            self._plays.begin(beginning, None, None, None)
            if self._limit is not None:
                self._steps[beginning] = 0
        infos = self._plays.infos(self._plays.now, self._all)
        if ended is not None:
            self._plays.add_final(infos, ended, done)
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._done = done
        return self._plays.observations(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """What :meth:`TextEnv.render` gives, for each environment."""
        if self.render_mode is None:
            self._single.render()  # warns
            return (None,) * self.num_envs
        return self._plays.render()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _reset_rows(self, mask: Any) -> np.ndarray:
        if mask is None:
            return self._all
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a numpy array of bools, got {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] needs shape ({self.num_envs},) and at least one True, got {mask!r}"
            )
        if not self._started:
            raise ValueError("the first reset must be one of all environments: leave reset_mask out")
        return mask.copy()

    def _one_for_each(self, name: str, values: Any) -> list[Any] | None:
        values = None if values is None else list(values)
        if values is not None and len(values) != self.num_envs:
            raise ValueError(f"a list of {name} needs {self.num_envs} entries, one per environment, not {len(values)}")
        return values

    def _checked(self, actions: Any, active: np.ndarray) -> Any:
        """Discrete actions as ``int64 [n]``, texts as a list of ``str`` (what is not text counts as empty)."""
        n = self.num_envs
        if self._single.action_mode == "discrete":
            array = np.asarray(actions)
            if array.dtype.kind not in "iu" or array.shape != (n,):
                raise ValueError(
                    f"discrete actions are {n} whole numbers, one per environment, got {array.dtype} {array.shape}"
                )
            array = array.astype(np.int64, copy=False)
            if array.view(np.uint64).max() >= self._single.game.n_actions:
                wrong = active & ((array < 0) | (array >= self._single.game.n_actions))
                if wrong.any():  # the action of an environment that only begins anew is not looked at
                    i = int(wrong.argmax())
                    top = self._single.game.n_actions - 1
                    raise ValueError(f"discrete actions are 0 to {top}, got {array[i]} for environment {i}")
                array = np.where(active, array, 0)
            return array
        if isinstance(actions, str) or not isinstance(actions, Sequence | np.ndarray) or len(actions) != n:
            raise ValueError(f"text actions are a list of {n} strings, one per environment, got {actions!r:.80}")
        return [str(action) if isinstance(action, str) else "" for action in actions]


class _PlayMany(Protocol):
    """What stands behind a :class:`TextVectorEnv`."""

    @property
    def seeds(self) -> list[int | None]:
        """The seed of each ``np_random``."""

    @property
    def now(self) -> Any:
        """The plays of this moment. It stays as it is when they go on."""

    def begin(self, rows: np.ndarray, seeds: list[int | None] | None, lucks: list[Any] | None, level: Any) -> None:
        """Start episodes in the chosen rows. The rest is for each row as in ``TextEnv.reset``, None if not given."""

    def step(self, actions: Any, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A step of the active rows: rewards, terminated, truncated, with zeros in the others."""

    def observations(self) -> Any:
        """What every play shows now."""

    def infos(self, moment: Any, rows: np.ndarray) -> dict[str, Any]:
        """The infos of the chosen rows at a moment."""

    def add_final(self, infos: dict[str, Any], moment: Any, rows: np.ndarray) -> None:
        """Add ``final_obs`` and ``final_info`` of the chosen rows at a moment."""

    def render(self) -> tuple[Any, ...]:
        """A picture or text for every play."""


# --- plays one by one -----------------------------------------------------------------------------------------------


class _Singles:
    """A list of :class:`TextEnv`; for any game, at its speed."""

    def __init__(self, single: TextEnv, n: int, add_info: Callable[[dict[str, Any], dict[str, Any], int], Any]) -> None:
        self._envs = [single, *(single.sibling() for _ in range(n - 1))]
        self._add_info = add_info
        self._observations: list[Any] = [None] * n
        self._infos: list[dict[str, Any]] = [{}] * n

    @property
    def seeds(self) -> list[int | None]:
        return [env.np_random_seed for env in self._envs]

    @property
    def now(self) -> tuple[list[Any], list[dict[str, Any]]]:
        return list(self._observations), list(self._infos)

    def begin(self, rows: np.ndarray, seeds: list[int | None] | None, lucks: list[Any] | None, level: Any) -> None:
        for i in np.flatnonzero(rows).tolist():
            options = {"dynamics_seed": None if lucks is None else lucks[i], "level": level}
            seed = None if seeds is None else seeds[i]
            self._observations[i], self._infos[i] = self._envs[i].reset(seed=seed, options=options)

    def step(self, actions: Any, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = len(self._envs)
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        for i in np.flatnonzero(active):
            result = self._envs[i].step(actions[i])
            self._observations[i], rewards[i], terminated[i], truncated[i], self._infos[i] = result
        return rewards, terminated, truncated

    def observations(self) -> Any:
        if self._envs[0].observation_mode == "grid":
            return np.stack(self._observations)
        return copy.deepcopy(tuple(self._observations))

    def infos(self, moment: Any, rows: np.ndarray) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i in np.flatnonzero(rows):
            infos = self._add_info(infos, moment[1][i], int(i))
        return infos

    def add_final(self, infos: dict[str, Any], moment: Any, rows: np.ndarray) -> None:
        for i in np.flatnonzero(rows):
            self._add_info(infos, {"final_obs": moment[0][i], "final_info": moment[1][i]}, int(i))

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self._envs)


# What the compiled plays do without asking the game.
_RULES = {
    "initial",
    "step",
    "legal_actions",
    "action_names",
    "n_actions",
    "parse_answer",
    "describe",
    "grid",
    "grid_spec",
}


def _rules_are_compiled(game: Game[Any, Any]) -> bool:
    """No class below the one that brings ``batch`` has changed a rule that its compiled code knows."""
    classes = type(game).__mro__
    owner = next(i for i, one in enumerate(classes) if "batch" in vars(one))
    return not any(_RULES & vars(one).keys() for one in classes[:owner])


def _listed_levels(single: TextEnv) -> Sequence[Any]:
    """The levels from which ``Game.draw_level`` picks by seed; empty if it does anything else."""
    game = single.game
    if type(game).draw_level is not Game.draw_level:
        return ()
    return [game.fixed_level] if game.fixed_level is not None else game.levels(single.split) or ()
