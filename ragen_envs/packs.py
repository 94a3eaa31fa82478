"""Level packs: finite, content-addressed lists of levels, so that a reset takes one from a list.

A pack belongs to a *request*: a game, the arguments that decide which levels it samples, and a number of levels. The
levels are those of one generator whose seed is a digest of the request, so a pack has the same content wherever it is
built. Games whose generator repeats itself by chance may drop repetitions (by canonical key) or keep the generator's
distribution. Splits are the project's: a function of a level's content.

A file is a magic line, one line of JSON (the header) and the compressed records of the levels, all of one length: what
the game writes, then the eight bytes of the level's canonical key, which takes long to work out. The file's
name carries the digest of the request and that of the content, header and uncompressed records; the latter is checked
on loading, and then the levels are not checked again.

``python -m ragen_envs.packs build`` writes the packs that ship with the project, ``build ID`` the pack of one id, and
``show FILE`` prints a pack's header and how hard its levels are.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.resources
import json
import os
import shlex
import sys
import tempfile
import time
import warnings
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np

from ragen_envs.game import Game, L, S, digest
from ragen_envs.splits import SPLITS, split_of

VERSION = 2
"""Of the format. It is part of the header, so another version gives other digests."""
KEY = 8
"""Bytes of a level's key in its record."""
LEVELS = 10_000
"""Levels of a pack, all splits together, if nobody says otherwise."""
BARREN = 2_000
"""Draws in a row without a new level after which a pack is taken to be complete."""
_MAGIC = b"ragen level pack\n"
_SUFFIX = ".pack"
_SHIPPED = importlib.resources.files("ragen_envs") / "data"


class OtherVersion(ValueError):
    """A pack of another version of the format."""


def _class(name: str) -> type:
    """The class ``module:Class``."""
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no game {name!r}: {error}") from None
    if not isinstance(kind, type):
        raise ValueError(f"{name} is not a class")
    return kind


class Request(NamedTuple):
    """What a pack holds. Hashable, so that it can stand for its pack where that would be too big."""

    game: str
    """``module:Class``."""
    arguments: str
    """The game's arguments that decide which levels it samples, as JSON."""
    levels: int = LEVELS

    @property
    def key(self) -> str:
        """Digest, 16 hex characters."""
        return digest("pack request", *self)

    def new_game(self) -> PackedGame[Any, Any]:
        """The game, making new levels.

        Raises:
            ValueError: there is no such game, or it has no packs. Files name games, so nothing else is ever called.
        """
        kind = _class(self.game)
        if not issubclass(kind, PackedGame):
            raise ValueError(f"{self.game} is not a game with level packs")
        return kind(**json.loads(self.arguments) | {"levels": "generated"})


class Rows(Sequence[L]):
    """The levels of one split; each is made when it is first asked for, and kept."""

    def __init__(self, records: np.ndarray, read: Callable[[bytes, str], L]) -> None:
        self._records, self._read = records, read
        self._made: list[L | None] = [None] * len(records)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, i: int) -> L: ...
    @overload
    def __getitem__(self, i: slice) -> list[L]: ...
    def __getitem__(self, i: int | slice) -> L | list[L]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        level = self._made[i]
        if level is None:
            record = self._records[i].tobytes()
            level = self._made[i] = self._read(record[:-KEY], record[-KEY:].hex())
        return level


@dataclass(frozen=True, eq=False)
class Pack:
    """Levels by split."""

    arguments: dict[str, Any]
    """The game's arguments that describe them."""
    splits: Mapping[str, Sequence[Any]]


class PackedGame(Game[L, S]):
    """A game whose levels may come from a pack.

    The constructor of a subclass takes ``levels`` and calls :meth:`choose_levels` with it last:

    * ``auto``: the pack that ships for exactly the arguments in ``level_arguments``, if there is one, else new levels.
    * ``generated``: always new levels.
    * ``pack``: the pack of these arguments: the shipped one, or one that is built on first use and kept in a cache.
    * a path: a pack file, or what ``read_levels`` reads. The arguments (attributes) then become those of its levels.
    """

    level_arguments: ClassVar[tuple[str, ...]]
    """Names of the arguments (attributes, too) that decide which levels are sampled."""
    distinct_levels: ClassVar[bool]
    """A pack holds no two levels of one canonical key."""
    _source: Request | tuple[str, str] | None = None
    _pack: Pack | None = None
    """Kept here once it is opened; copies and pickles of a game hold no levels, only the source, which is small."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pack": None}

    @abstractmethod
    def to_record(self, level: L) -> bytes:
        """The level and what is known of it, in equally many bytes for all levels of a request."""

    @abstractmethod
    def from_record(self, record: bytes, key: str) -> L:
        """The level of :meth:`to_record` and its ``level_key``, without checking them.

        Uses no more of ``self`` than ``level_arguments``.
        """

    def read_levels(self, path: Path) -> tuple[list[L], dict[str, Any]]:
        """The levels of a file or folder in another notation, and the ``level_arguments`` that hold for them.

        Raises:
            ValueError: what is wrong, with file and line.
        """
        raise ValueError(f"{path} is not a level pack, and {self.name} reads no other files")

    def choose_levels(self, levels: str) -> None:
        """Decide where levels come from; see the class.

        Raises:
            ValueError: the file of a path is damaged, of another game, or holds invalid levels.
            OSError: it cannot be read.
        """
        if not isinstance(levels, str) or not levels:
            raise ValueError(f"levels must be 'auto', 'generated', 'pack' or a path: {levels!r}")
        self.levels_from = levels
        if levels == "generated":
            return
        if levels in ("auto", "pack"):
            request = request_of(self)
            if levels == "pack" or _shipped_name(request.key) is not None:
                self._source = request
            return
        path = Path(levels)
        if not path.exists():
            raise ValueError(f"levels must be 'auto', 'generated', 'pack' or a path; there is no file {levels!r}")
        self._source = (str(path.absolute()), _fingerprint(path))
        for name, value in _opened(self._source, type(self)).arguments.items():
            setattr(self, name, value)

    def sample_listed(self, rng: np.random.Generator) -> L:
        """A level of the file that levels come from, uniformly over all splits."""
        levels = [listed for listed in map(self.levels, SPLITS) if listed is not None]
        i = int(rng.integers(sum(map(len, levels))))
        for some in levels:
            if i < len(some):
                break
            i -= len(some)
        return some[i]

    def levels(self, split: str) -> Sequence[L] | None:
        """The levels of a split if they come from a pack, else None."""
        if self._pack is None:
            if self._source is None:
                return None
            self._pack = _opened(self._source, type(self))
        return self._pack.splits[split]

    @property
    def from_file(self) -> bool:
        """Levels come from a path that the user named."""
        return self._source is not None and not isinstance(self._source, Request)


# --- where packs come from --------------------------------------------------------------------------------------------


def request_of(game: PackedGame[Any, Any], levels: int = LEVELS) -> Request:
    """The request of a game as it is configured."""
    arguments = {name: getattr(game, name) for name in game.level_arguments}
    kind = type(game)
    return Request(f"{kind.__module__}:{kind.__qualname__}", json.dumps(arguments, sort_keys=True), levels)


@lru_cache(maxsize=64)
def _opened(source: Request | tuple[str, str], kind: type[PackedGame[Any, Any]]) -> Pack:
    if isinstance(source, Request):
        return _find(source)
    path, fingerprint = source
    if _fingerprint(Path(path)) != fingerprint:
        raise ValueError(f"{path} has changed since this environment was made")
    return _open_path(Path(path), kind)


def _find(request: Request) -> Pack:
    """The shipped pack, else the cached one, else one built now and put into the cache."""
    name = _shipped_name(request.key)
    if name is not None:
        return decode((_SHIPPED / name).read_bytes(), name)[1]
    folder = cache_folder()
    if folder is not None and folder.is_dir():
        for path in sorted(folder.glob(f"*-{request.key}-*{_SUFFIX}")):
            try:
                header, pack = load(path)
            except OtherVersion:  # built by another release, which may still want it
                continue
            if Request(header["game"], json.dumps(header["arguments"], sort_keys=True), header["levels"]) == request:
                return pack
            warnings.warn(f"{path} holds other levels than its name says and is not used: delete it", stacklevel=2)
    name, content = build(request)
    try:
        if folder is None:
            raise OSError("there is no home folder")
        write(folder / name, content)
    except OSError as error:
        warnings.warn(
            f"the level pack {name} is kept in memory only ({error}): set RAGEN_CACHE to a folder that can be written",
            stacklevel=2,
        )
    return decode(content, name)[1]


@lru_cache(maxsize=1)
def _shipped() -> dict[str, str]:
    if not _SHIPPED.is_dir():
        return {}
    return {file.name.split("-")[-2]: file.name for file in _SHIPPED.iterdir() if file.name.endswith(_SUFFIX)}


def _shipped_name(key: str) -> str | None:
    return _shipped().get(key)


def cache_folder() -> Path | None:
    """``RAGEN_CACHE``, else ``ragen-bench`` in the platform's cache folder; None if there is no home folder."""
    chosen = os.environ.get("RAGEN_CACHE")
    if chosen:
        return Path(chosen)
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "ragen-bench"


def _fingerprint(path: Path) -> str:
    """Names, sizes and times of a file, or of everything below a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files]
    return digest(*(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in stats))


def _open_path(path: Path, kind: type[PackedGame[Any, Any]]) -> Pack:
    if path.is_file() and path.read_bytes()[: len(_MAGIC)] == _MAGIC:
        return load(path, f"{kind.__module__}:{kind.__qualname__}")[1]
    game = kind(levels="generated")  # type: ignore[call-arg]
    levels, arguments = game.read_levels(path)
    by_split: dict[str, dict[Any, Any]] = {split: {} for split in SPLITS}
    for i, level in enumerate(levels):
        key = game.level_key(level)
        by_split[split_of(key)].setdefault(key if game.distinct_levels else i, level)
    return Pack(arguments, {split: list(found.values()) for split, found in by_split.items()})


# --- building and files -----------------------------------------------------------------------------------------------


def build(request: Request) -> tuple[str, bytes]:
    """Draw the levels of a request.

    Fewer than asked if the arguments do not allow so many different ones.

    Returns:
        The name of the pack's file and its content.
    """
    if request.levels < 1:
        raise ValueError(f"a pack has at least one level: {request.levels}")
    game = request.new_game()
    seed = int(request.key, 16)
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    n = barren = 0
    begun = reported = time.monotonic()
    while n < request.levels and barren < BARREN:
        level = game.sample_level(rng)
        key = game.level_key(level)
        if game.distinct_levels and key in seen:
            barren += 1
            continue
        seen.add(key)
        drawn[split_of(key)].append(game.to_record(level) + bytes.fromhex(key))
        n += 1
        barren = 0
        if time.monotonic() - reported > 1.0:
            reported = time.monotonic()
            print(
                f"\rbuilding a pack of {game.name} levels: {n} of {request.levels}", end="", file=sys.stderr, flush=True
            )
    if reported > begun:
        print(file=sys.stderr)
    records = b"".join(record for split in SPLITS for record in drawn[split])
    options = ["--levels", str(request.levels)]
    for argument, value in json.loads(request.arguments).items():
        options += ["--set", f"{argument}={json.dumps(value)}"]
    header = {
        "version": VERSION,
        "game": request.game,
        "arguments": json.loads(request.arguments),
        "levels": request.levels,
        "seed": seed,
        "splits": {split: len(drawn[split]) for split in SPLITS},
        "record": len(records) // max(n, 1),
        "distinct": len(seen),
        "made by": shlex.join(["python", "-m", "ragen_envs.packs", "build", request.game, *options]),
    }
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    # By columns: what stands in one cell of all levels is more alike than the cells of one level.
    columns = np.frombuffer(records, np.uint8).reshape(n, -1).T.tobytes() if n else b""
    name = f"{game.name}-{request.key}-{_content_digest(line, records)}{_SUFFIX}"
    return name, _MAGIC + line + zlib.compress(columns, 9)


def _content_digest(header: bytes, records: bytes) -> str:
    return hashlib.blake2b(header + records, digest_size=8).hexdigest()


def decode(content: bytes, name: str, game: str | None = None) -> tuple[dict[str, Any], Pack]:
    """Header and levels in a file's content.

    Args:
        game: the game that the levels must be of; None = any. No other one is imported.

    Raises:
        ValueError: the content is not that of the digest in the name, of another version of the format, or of another
            game.
    """
    damaged = f"the level pack {name} is damaged (its content is not that of its name): delete it and build it again"
    if not content.startswith(_MAGIC):
        raise ValueError(f"{name} is not a level pack")
    line, _, packed = content[len(_MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line)
        counts, length = [header["splits"][split] for split in SPLITS], header["record"]
        columns = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(length, sum(counts))
    except (ValueError, KeyError, TypeError, zlib.error):
        raise ValueError(damaged) from None
    records = np.ascontiguousarray(columns.T)
    if _content_digest(line + b"\n", records.tobytes()) != name.removesuffix(_SUFFIX).split("-")[-1]:
        raise ValueError(damaged)
    if header["version"] != VERSION:
        raise OtherVersion(f"{name} has version {header['version']} of the pack format, this program reads {VERSION}")
    if game not in (None, header["game"]):
        raise ValueError(f"{name} is a pack of {header['game']}, not of {game}")
    read = Request(header["game"], json.dumps(header["arguments"]), header["levels"]).new_game().from_record
    ends = np.cumsum(counts).tolist()
    parts = zip(SPLITS, [0, *ends], ends, strict=False)
    splits = {split: Rows(records[begin:end], read) for split, begin, end in parts}
    return header, Pack(header["arguments"], splits)


def load(path: Path, game: str | None = None) -> tuple[dict[str, Any], Pack]:
    """Header and levels of a file; see :func:`decode` for ``game`` and errors."""
    try:
        return decode(path.read_bytes(), path.name, game)
    except OtherVersion as error:
        raise OtherVersion(f"{path.parent}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path.parent}: {error}") from None


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a reader, or a killed writer, never leaves or sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# --- command line -----------------------------------------------------------------------------------------------------


def shipped_requests() -> list[Request]:
    """The distinct requests of all registered ids."""
    from ragen_envs.registration import TABLE

    return list(dict.fromkeys(request for id in TABLE if (request := request_of_id(id)) is not None))


def request_of_id(id: str, overrides: dict[str, Any] | None = None, levels: int = LEVELS) -> Request | None:
    """The request of an id of the table (or ``module:Class``); None if its game has no packs."""
    from ragen_envs.registration import TABLE

    name, kwargs, _ = TABLE.get(id, (id, {}, ""))
    if ":" not in name:
        raise ValueError(f"{id!r} is neither an id ({', '.join(TABLE)}) nor a game 'module:Class'")
    kind = _class(name)
    if not issubclass(kind, PackedGame):
        return None
    wanted = {k: v for k, v in kwargs.items() if k in kind.level_arguments} | (overrides or {})
    return request_of(kind(**wanted | {"levels": "generated"}), levels)


def statistics(pack: Pack) -> Iterable[str]:
    """Lines on how hard the levels of each split are."""
    for split, levels in pack.splits.items():
        yield f"{split}: {len(levels)} levels"
        for name in ("optimal_steps", "optimal_pushes"):
            values = [getattr(level, name, None) for level in levels]
            known = [value for value in values if value is not None]
            if not known:
                continue
            shares = ", ".join(f"{k}: {100 * v / len(known):.1f} %" for k, v in sorted(Counter(known).items()))
            yield f"  {name}: mean {np.mean(known):.2f}, known for {len(known)}; {shares}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ragen_envs.packs", description="Build and show level packs.")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="the packs that ship with the project, or the pack of one id")
    builder.add_argument("id", nargs="?", help="an id, or a game as module:Class; without it, all that ship")
    builder.add_argument("--levels", type=int, default=LEVELS, help="levels in all (default %(default)s)")
    builder.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="another argument of the game")
    builder.add_argument("--out", type=Path, help="folder; default: the package's data, or the cache for one id")
    shower = commands.add_parser("show", help="header and difficulty of a pack file")
    shower.add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.command == "show":
            header, pack = load(given.file)
            print(json.dumps(header, indent=1))
            print("\n".join(statistics(pack)))
            return 0
        if given.id is None:
            if given.set:
                parser.error("--set needs an id")
            requests = [request._replace(levels=given.levels) for request in shipped_requests()]
            folder = given.out or Path(str(_SHIPPED))
        else:
            overrides = {}
            for item in given.set:
                name, _, value = item.partition("=")
                overrides[name] = json.loads(value)
            request = request_of_id(given.id, overrides, given.levels)
            if request is None:
                parser.error(f"{given.id} is not a game with level packs")
            requests, folder = [request], given.out or cache_folder()
            if folder is None:
                parser.error("there is no home folder: give --out")
        for request in requests:
            name, content = build(request)
            write(folder / name, content)
            for old in folder.glob(f"*-{request.key}-*{_SUFFIX}"):
                if old.name != name:
                    old.unlink()
            print(folder / name)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    from ragen_envs import packs  # under its own name: the games know that module, not this copy of it

    raise SystemExit(packs.main())
