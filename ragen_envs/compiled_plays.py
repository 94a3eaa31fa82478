"""Plays of a :class:`~ragen_envs.batch.GameBatch` under the turn protocol: what is fast behind ``TextVectorEnv``.

Seeds, luck, turns, budgets and levels are arrays and compiled loops. Words are written in one place only,
:class:`~ragen_envs.text_env.TextEnv`: this module asks one for the text around a state, once for each case, and keeps
the answer. Infos are computed when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from ragen_envs import batch_seeding, protocol
from ragen_envs.batch import Frames, GameBatch, Plays
from ragen_envs.jit import njit
from ragen_envs.seeding import LUCK
from ragen_envs.text_env import TextEnv

PARSED_KEPT = 4096
"""Texts whose reading is remembered; longer ones than ``PARSED_LENGTH`` are read afresh."""
PARSED_LENGTH = 1000
NUMBERED = 1000
"""Most actions of an episode whose frames are kept by number, where the actions left alone decide on them."""
FRAMES_KEPT = 1 << 16
"""Texts around a state that are remembered before all are forgotten."""

TURN, LEFT, N_INVALID, N_WANTED, EXECUTED, DROPPED = range(6)
SUCCESS, FORMAT_OK, EFFECTIVE, OVER = range(4)


class Infos(dict[str, Any]):
    """A dict whose values are computed when they are first asked for.

    To Python code it behaves as if everything were there. (C code that reads a dict's memory sees only what has been
    computed; ``dict(infos)``, ``{**infos}``, copies and pickles are complete.)

    Args:
        pending: for each key, a function of the key that computes its value.
    """

    def __init__(self, pending: dict[str, Callable[[str], Any]]) -> None:
        super().__init__()
        self._pending = pending

    def __missing__(self, key: str) -> Any:
        if key not in self._pending:
            raise KeyError(key)
        value = self[key] = self._pending.pop(key)(key)
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._pending

    def get(self, key: str, default: Any = None) -> Any:
        """``self[key]`` if there is such a key."""
        return self[key] if key in self else default  # noqa: SIM401  (this is that method)

    def defer(self, key: str, compute: Callable[[str], Any]) -> None:
        """Add a key whose value is computed later."""
        self._pending[key] = compute

    def complete(self) -> None:
        """Compute everything."""
        for key in list(self._pending):
            self[key]
        self._pending.clear()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _complete_first(name: str) -> Any:
    def method(self: Infos, *args: Any, **kwargs: Any) -> Any:
        self.complete()
        return getattr(dict, name)(self, *args, **kwargs)

    return method


_READ_ALL = ["__eq__", "__ne__", "__iter__", "__reversed__", "__len__", "__repr__", "__or__", "__ror__", "__ior__"]
_READ_ALL += ["__delitem__", "keys", "values", "items", "copy", "pop", "popitem", "setdefault", "update", "clear"]
for _name in _READ_ALL:
    setattr(Infos, _name, _complete_first(_name))


class Moment(NamedTuple):
    """All plays after a step, with the turn that led there. Once it was shown, nothing in it is written to again."""

    plays: Plays
    counts: np.ndarray
    """``int32 [6, n]``: turn, actions left, invalid turns; actions read, executed, dropped. Turn 0: just begun."""
    flags: np.ndarray
    """``bool [4, n]``: success, form right, state changed, episode over."""
    wanted: np.ndarray
    """``int8 [n, k]``: the actions read."""
    reward: np.ndarray
    """``float64 [n]``: of the game, without the penalty for form."""
    raw: list[str] | None
    """The texts, and how they were read; None with discrete actions."""
    status: list[str] | None


class CompiledPlays:
    """Plays of a :class:`GameBatch`."""

    def __init__(self, single: TextEnv, batch: GameBatch[Any, Any], n: int) -> None:
        self._single, self._batch, self._n = single, batch, n
        self._discrete = single.action_mode == "discrete"
        self._per_turn = 1 if self._discrete else single.max_actions_per_turn
        self.seeds: list[int | None] = [None] * n
        self._unseeded, self._some_unseeded = np.ones(n, bool), True
        self._shown = False
        self._words = np.zeros((n, 4), np.uint64)
        self._generators = np.zeros((n, 4), np.uint64)
        self._luck = np.zeros((n, 4), np.uint64)
        self._numbers = np.zeros((n, self._per_turn))
        self._picked = np.zeros(n, np.int64)
        self._one_each = np.ones(n, np.int32)
        self._frames: dict[Any, tuple[str, str]] = {}
        self._numbered = Frames()
        self._openings: dict[int, tuple[str, str]] = {}
        self._named: dict[int, tuple[str, ...]] = {}
        self._now = Moment(
            batch.plays,
            np.zeros((6, n), np.int32),
            np.zeros((4, n), bool),
            np.zeros((n, self._per_turn), np.int8),
            np.zeros(n),
            None,
            None,
        )

        def parse(text: str, names: tuple[str, ...]) -> tuple[tuple[int, ...], str, bool, int]:
            return protocol.read_turn(
                text,
                lambda answer: protocol.parse_action_list(answer, names, max_actions=single.max_actions_per_turn),
                reasoning=single.reasoning,
            )[:4]

        self._parse, self._parse_again = parse, lru_cache(PARSED_KEPT)(parse)

    @property
    def now(self) -> Moment:
        self._shown = True
        return self._now

    # --- episodes and turns ---

    def begin(self, rows: np.ndarray, seeds: list[int | None] | None, lucks: list[Any] | None, level: Any) -> None:
        batch, single = self._batch, self._single
        if self._shown:
            now = self._now
            batch.plays = now.plays.copy()
            self._now = now._replace(plays=batch.plays, counts=now.counts.copy(), flags=now.flags.copy())
            self._shown = False
        own_seed = self._seed(rows, seeds)
        if level is not None:
            batch.begin_own(
                dict.fromkeys(np.flatnonzero(rows).tolist(), single._own_luck_and_level({"level": level})[1])
            )
        elif batch.n_listed:
            batch_seeding.pick_many(self._words, rows, batch.n_listed, self._picked)
            batch.begin(rows, self._picked)
        else:
            chosen = np.flatnonzero(rows).tolist()
            drawn = {i: own_seed.get(i, int(self._words[i, 0])) for i in chosen}
            batch.begin_own({i: single.game.draw_level(seed, single.split) for i, seed in drawn.items()})
        if batch.lucky:
            given: dict[int, int] = {}
            if lucks is not None and single.group_noise == "independent":
                given = {i: int(lucks[i]) for i in np.flatnonzero(rows).tolist() if lucks[i] is not None}
            words = self._words.copy()
            for i, luck in given.items():
                words[i] = batch_seeding.words_of(luck)
            batch_seeding.seed_generators(self._luck, rows, words, LUCK)
            for i, seed in {**own_seed, **given}.items():
                if seed >> 128:
                    batch_seeding.set_generator(self._luck, i, np.random.SeedSequence(seed, spawn_key=(LUCK,)))
        _clear(rows, self._now.counts, self._now.flags, single.max_actions)
        if batch.plays is not self._now.plays:
            self._now = self._now._replace(plays=batch.plays)

    def _seed(self, rows: np.ndarray, seeds: list[int | None] | None) -> dict[int, int]:
        """Fill ``_words`` with the seeds of the rows' next episodes, and return those that were given."""
        given: dict[int, int] = {}
        if seeds is not None:
            given = {i: seed for i, seed in enumerate(seeds) if seed is not None and rows[i]}
            seeded = np.zeros(self._n, bool)
            for i, seed in given.items():
                self.seeds[i], seeded[i], self._words[i] = seed, True, batch_seeding.words_of(seed)
            batch_seeding.seed_generators(self._generators, seeded, self._words, batch_seeding.PLAIN)
            for i, seed in given.items():
                if seed >> 128:
                    batch_seeding.set_generator(self._generators, i, np.random.SeedSequence(seed))
            self._unseeded &= ~seeded
            rows = rows & ~seeded
        for i in np.flatnonzero(rows & self._unseeded).tolist() if self._some_unseeded else ():
            sequence = np.random.SeedSequence()
            self.seeds[i], self._unseeded[i] = cast(int, sequence.entropy), False
            batch_seeding.set_generator(self._generators, i, sequence)
        self._some_unseeded = self._some_unseeded and bool(self._unseeded.any())
        batch_seeding.next_seeds(self._generators, rows, self._words)
        return given

    def step(self, actions: Any, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, single, batch, before = self._n, self._single, self._batch, self._now
        counts, rewards, marks = before.counts.copy(), np.zeros((2, n)), np.zeros((7, n), bool)
        reward, total = rewards
        ended, terminated, truncated = marks[4:]
        flags, status = marks[:4], None
        if self._discrete:
            wanted, n_wanted = actions.astype(np.int8).reshape(n, 1), self._one_each
        else:
            wanted, status = self._read(actions, active, counts, flags)
            n_wanted = counts[N_WANTED]
        batch.plays = before.plays.copy()
        if batch.lucky:
            batch_seeding.draw(self._luck, n_wanted, self._numbers)
        batch.step(
            active,
            wanted,
            n_wanted,
            counts[LEFT],
            self._numbers,
            reward,
            counts[EXECUTED],
            ended,
            flags[SUCCESS],
            flags[EFFECTIVE],
        )
        if self._discrete:
            _account_actions(active, counts, marks, rewards, single.max_actions)
        else:
            _account_turns(active, counts, marks, rewards, single.max_turns, single.format_penalty)
        self._now, self._shown = (
            Moment(batch.plays, counts, flags, wanted, reward, None if self._discrete else actions, status),
            False,
        )
        return total, terminated, truncated

    def _read(
        self, texts: list[str], active: np.ndarray, counts: np.ndarray, flags: np.ndarray
    ) -> tuple[np.ndarray, list[str]]:
        """Read texts: their actions and statuses; numbers of actions read and dropped, and the form, are filled in."""
        wanted = np.zeros((self._n, self._per_turn), np.int8)
        status, n_wanted, n_dropped, right = [""] * self._n, [0] * self._n, [0] * self._n, [False] * self._n
        names = self._names(self._now.plays)
        for i in np.flatnonzero(active).tolist():
            parse = self._parse_again if len(texts[i]) <= PARSED_LENGTH else self._parse
            found, status[i], right[i], n_dropped[i] = parse(texts[i], names[i])
            n_wanted[i] = len(found)
            if found:
                wanted[i, : len(found)] = found
        counts[N_WANTED], counts[DROPPED], flags[FORMAT_OK] = n_wanted, n_dropped, right
        return wanted, status

    def _names(self, plays: Plays) -> list[tuple[str, ...]]:
        """The action names of every play."""
        known, listed, names = self._named, self._batch.n_listed, []
        for i, index in enumerate(plays.level.tolist()):
            if index not in known or index >= listed:
                known[index] = self._single.game.action_names(self._batch.level(plays, i))
            names.append(known[index])
        return names

    # --- what is seen ---

    def observations(self) -> Any:
        if self._single.observation_mode == "grid":
            return self._batch.grid(self._now.plays)
        return tuple(self._texts(self._now))

    def render(self) -> tuple[Any, ...]:
        frames = []
        for i in range(self._n):
            self._single.state = self._batch.state(self._now.plays, i)
            frames.append(self._single.render())
        return tuple(frames)

    def _texts(self, moment: Moment) -> list[str]:
        turns = moment.counts[TURN]
        begun = np.flatnonzero(turns == 0)
        if len(self._frames) > FRAMES_KEPT:
            self._frames.clear()
        # With discrete actions the turn alone says how many actions are left.
        keys = 2 * turns + moment.flags[OVER]
        if self._discrete and self._single.max_actions <= NUMBERED and self._batch.draws(self._single.view):
            keys[begun] = -1
            for key in np.flatnonzero(np.bincount(keys + 1)).tolist():
                if key > len(self._numbered.lengths) or (key and self._numbered.lengths[key - 1, 0] < 0):
                    self._numbered.add(key - 1, *self._frame(moment, int((keys == key - 1).argmax())))
            texts = described = self._batch.draw_between(moment.plays, keys, self._numbered)
        else:
            described = self._batch.describe(moment.plays, self._single.view)
            frames = self._small_frames(moment, keys.tolist()) if self._discrete else self._feedback_frames(moment)
            texts = [f"{before}{text}{after}" for (before, after), text in zip(frames, described, strict=True)]
        for i, index in zip(begun.tolist(), moment.plays.level[begun].tolist(), strict=True):
            opening = self._openings.get(index)
            if opening is None:
                opening = self._opening(moment, i)
                if index < self._batch.n_listed:
                    self._openings[index] = opening
            texts[i] = f"{opening[0]}{described[i]}{opening[1]}"
        return texts

    def _opening(self, moment: Moment, i: int) -> tuple[str, str]:
        """:meth:`_frame` of a play that has just begun: the level matters only through its rules and action names."""
        game, level = self._single.game, self._batch.level(moment.plays, i)
        key: Any = "opening"
        if self._single.prompt == "full":
            key = game.instructions(level, self._single.view), game.action_names(level)
        if key not in self._frames:
            self._frames[key] = self._frame(moment, i)
        return self._frames[key]

    def _small_frames(self, moment: Moment, keys: list[int]) -> list[tuple[str, str]]:
        for key in set(keys):
            if key not in self._frames:
                self._frames[key] = self._frame(moment, keys.index(key))
        return [self._frames[key] for key in keys]

    def _feedback_frames(self, moment: Moment) -> list[tuple[str, str]]:
        names, rewards, wanted = self._names(moment.plays), moment.reward.tolist(), moment.wanted.tolist()
        turns, left, _, _, executed, _ = moment.counts.tolist()
        _, right, _, over = moment.flags.tolist()
        frames = []
        for i in range(self._n):
            if turns[i] == 0:
                frames.append(("", ""))  # the caller has the opening instead
                continue
            done, status = tuple(wanted[i][: executed[i]]), cast(list[str], moment.status)[i]
            key = (names[i], done, status, rewards[i], turns[i], left[i], right[i], over[i])
            frame = self._frames.get(key)
            if frame is None:
                frame = self._frames[key] = self._frame(moment, i)
            frames.append(frame)
        return frames

    def _frame(self, moment: Moment, i: int) -> tuple[str, str]:
        """What a :class:`TextEnv` writes before and after the description of play ``i``'s state."""
        single = self._single
        single._turn = int(moment.counts[TURN, i])
        single._actions_used = single.max_actions - int(moment.counts[LEFT, i])
        single._over = bool(moment.flags[OVER, i])
        single._play_level(self._batch.level(moment.plays, i), self._batch.state(moment.plays, i))
        if single._turn == 0:
            text = "\n\n".join(filter(None, (single._rules(), single._state_text())))
        elif moment.status is None:
            text = single._state_text()
        else:
            right = bool(moment.flags[FORMAT_OK, i])
            names = single.game.action_names(single.level)
            done = [names[a] for a in moment.wanted[i, : moment.counts[EXECUTED, i]].tolist()]
            text = single._feedback(
                f" {protocol.SEPARATOR} ".join(done),
                moment.status[i],
                right,
                float(moment.reward[i]),
                0.0 if right else single.format_penalty,
            )
        before, _, after = text.rpartition(single.game.describe(single.state, single.view))
        return before, after

    def infos(self, moment: Moment, rows: np.ndarray) -> dict[str, Any]:
        def column(key: str) -> np.ndarray:
            return rows.copy() if key.startswith("_") else self._column(moment, rows, key)

        return Infos(dict.fromkeys(_COLUMNS, column))

    def add_final(self, infos: dict[str, Any], moment: Moment, rows: np.ndarray) -> None:
        def observations(_: str) -> np.ndarray:
            seen = self._batch.grid(moment.plays) if self._single.observation_mode == "grid" else self._texts(moment)
            return self._objects(rows, lambda i: seen[i].copy() if isinstance(seen, np.ndarray) else seen[i])

        rows = rows.copy()
        assert isinstance(infos, Infos)
        infos.defer("final_obs", observations)
        infos.defer("_final_obs", lambda _: rows.copy())
        infos.defer("final_info", lambda _: self.infos(moment, rows))
        infos.defer("_final_info", lambda _: rows.copy())

    def _objects(self, rows: np.ndarray, value: Callable[[int], Any]) -> np.ndarray:
        column = np.full(self._n, None, object)
        for i in np.flatnonzero(rows).tolist():
            column[i] = value(i)
        return column

    def _whole(self, rows: np.ndarray, numbers: np.ndarray | int) -> np.ndarray:
        return np.where(rows, numbers, 0).astype(np.int64)

    def _column(self, moment: Moment, rows: np.ndarray, key: str) -> np.ndarray:
        """A column as ``SyncVectorEnv`` builds it: zeros, or None, in rows that are not meant."""
        counts, flags, game, plays = moment.counts, moment.flags, self._single.game, moment.plays
        played = rows & (counts[TURN] > 0)

        def level(i: int) -> Any:
            return self._batch.level(plays, i)

        def status(i: int) -> str:
            return "" if not played[i] else "ok" if moment.status is None else moment.status[i]

        def joined(i: int, n: int) -> str:
            names = game.action_names(level(i))
            return f" {protocol.SEPARATOR} ".join(names[a] for a in moment.wanted[i, : counts[n, i]].tolist())

        match key:
            case "success":
                return flags[SUCCESS] & rows
            case "score":
                return (flags[SUCCESS] & rows).astype(np.float64)
            case "turn":
                return self._whole(rows, counts[TURN])
            case "actions_left":
                return self._whole(rows, counts[LEFT])
            case "action_raw":
                raw = moment.raw
                return self._objects(rows, lambda i: raw[i] if raw is not None and played[i] else "")
            case "action_parsed":
                return self._objects(rows, lambda i: joined(i, N_WANTED))
            case "action_executed":
                return self._objects(rows, lambda i: joined(i, EXECUTED))
            case "action_status":
                return self._objects(rows, status)
            case "format_ok":
                return flags[FORMAT_OK] & rows
            case "action_valid":
                known = [status(i) != "unknown_action" for i in range(self._n)]
                return rows & (counts[N_WANTED] > 0) & np.array(known)
            case "action_effective":
                return flags[EFFECTIVE] & rows
            case "n_dropped":
                return self._whole(rows, counts[DROPPED])
            case "n_invalid":
                return self._whole(rows, counts[N_INVALID])
            case "valid_actions":
                return self._objects(rows, lambda i: [] if flags[OVER, i] else list(game.action_names(level(i))))
            case "level_hash":
                return self._objects(rows, lambda i: game.level_key(level(i)))
            case "state_hash":
                return self._objects(rows, lambda i: game.state_key(self._batch.state(plays, i)))
            case "split":
                return self._objects(rows, lambda i: game.split_of(level(i)))
            case "optimal_steps":
                return self._whole(rows, -1)
            case "deadlock":
                return np.zeros(self._n, bool)
        raise KeyError(key)


_COLUMNS = {name: None for key in TextEnv.info_keys() for name in (key, f"_{key}")}


@njit
def _clear(rows, counts, flags, max_actions):  # type: ignore[no-untyped-def]
    """The counts and flags of episodes that just began."""
    for i in range(len(rows)):
        if rows[i]:
            for k in range(len(counts)):
                counts[k, i] = 0
            for k in range(len(flags)):
                flags[k, i] = False
            counts[1, i] = max_actions


@njit
def _account_actions(active, counts, marks, rewards, max_actions):  # type: ignore[no-untyped-def]
    """The protocol of discrete actions after the game's step: each is well-formed, and counted. As ``TextEnv._act``.

    One short loop for each array: those the compiler turns into vector instructions, a long one it does not.
    """
    n = len(active)
    for i in range(n):
        counts[0, i] += active[i]
    for i in range(n):
        counts[1, i] -= active[i]
    for i in range(n):
        counts[3, i] = active[i]
    for i in range(n):
        marks[1, i] = active[i]
    for i in range(n):
        rewards[1, i] = rewards[0, i]
    if max_actions == 1:
        for i in range(n):
            marks[5, i] = active[i]
    else:
        for i in range(n):
            marks[5, i] = marks[4, i]
        for i in range(n):
            marks[6, i] = active[i] & (counts[1, i] <= 0)
    for i in range(n):
        marks[3, i] = marks[5, i] | marks[6, i]


@njit
def _account_turns(active, counts, marks, rewards, max_turns, format_penalty):  # type: ignore[no-untyped-def]
    """The turn protocol after the game's step: budgets, penalty, the end of the episode; as ``TextEnv._play_turn``."""
    turns, lefts, n_invalid, n_wanted, executed, dropped = counts
    _, format_ok, _, over, ended, terminated, truncated = marks
    reward, total = rewards
    for i in range(len(active)):
        if not active[i]:
            continue
        turn, left = turns[i] + 1, lefts[i] - executed[i]
        if not ended[i]:
            dropped[i] += n_wanted[i] - executed[i]
        right = format_ok[i]
        total[i] = reward[i] + (0.0 if right else format_penalty)
        terminated[i] = ended[i]
        truncated[i] = left <= 0 or turn >= max_turns
        if max_turns == 1:
            terminated[i], truncated[i] = True, False
        turns[i], lefts[i] = turn, left
        if not right:
            n_invalid[i] += 1
        over[i] = terminated[i] or truncated[i]
