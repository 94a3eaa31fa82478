"""The results store: Parquet tables with explicit, versioned schemas.

Layout of a results folder::

    jobs/<run id>/config.json                          the resolved configuration
                  run.parquet                          one row; written last, so that it says: this job is finished
                  iterations.parquet episodes.parquet  what the job measured
                  policy/                              the trained policy
                  start/                               the policy before training, from which KL is measured
                  checkpoint/ usage.json progress.json lock traceback.txt     work in progress, and what went wrong
    runs.parquet iterations.parquet episodes.parquet leaderboard.parquet      derived from jobs/

Jobs write their own files and nothing is appended to a shared one. File names come from hashes and from this list,
never from names that users choose. A file appears whole or not at all. ``start/`` is kept of policies that do not come
with the package; the embedded ones are the same again by their name, which ``policy_digest`` in ``runs`` confirms.

Two kinds of nothing: **null** means that there is no such value (it was not run, an episode failed to play, the game
has no oracle); **NaN** means that it was computed and is undefined (0/0) or a bug.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 2
"""Grows when a column is added or changes. Files of an older version are read with nulls for what they lack."""

_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TIME = pa.timestamp("us", tz="UTC")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


SCHEMAS: dict[str, pa.Schema] = {
    # One row per job.
    "runs": _schema(
        run_id=_TEXT,  # hash of config
        config_id=_TEXT,  # hash of config without the seed
        suite=_TEXT,
        suite_version=_INT,
        overrides=_TEXT,  # what --set changed, separated by spaces; empty for the protocol as published
        environment=_TEXT,
        env_kwargs=_TEXT,  # JSON: the arguments played with, except split; enough to replay the episodes
        headline=_TEXT,  # split that tables show first
        entry=_TEXT,  # label of the row
        kind=_TEXT,  # trained, start, scripted
        algorithm=_TEXT,  # null where nothing is trained
        algorithm_kwargs=_TEXT,  # JSON, every option
        policy=_TEXT,  # raw name
        policy_digest=_TEXT,  # of its files; null if it has none
        seed=_INT,
        config=_TEXT,  # JSON, the whole resolved configuration
        status=_TEXT,  # done, error
        error=_TEXT,
        iterations=_INT,
        collapsed_at=_INT,  # first iteration in which the echo-trap monitor said so; null if it never did
        stopped=_TEXT,  # why training ended before its last iteration; null if it did not
        train_tokens=_INT,  # sampled while training
        eval_tokens=_INT,  # sampled while evaluating, all splits and modes
        optimizer_steps=_INT,
        train_env_steps=_INT,
        eval_env_steps=_INT,  # primitive actions
        episodes=_INT,  # evaluated, errors included
        n_errors=_INT,  # episodes that could not be played
        started=_TIME,  # of the attempt that finished
        finished=_TIME,
        wall_seconds=_REAL,  # of that attempt
        cpu_seconds=_REAL,  # of all work that was kept, over all attempts
        checkpoint=_TEXT,  # trained policy, relative to the results folder
        device=_TEXT,
        code_version=_TEXT,
        python=_TEXT,
        packages=_TEXT,  # JSON: name -> version
        platform=_TEXT,
        cpu_model=_TEXT,
        cpu_cores=_INT,
    ),
    # One row per training iteration and run.
    "iterations": _schema(
        run_id=_TEXT,
        suite=_TEXT,
        environment=_TEXT,
        entry=_TEXT,
        policy=_TEXT,
        seed=_INT,
        iteration=_INT,
        success=_REAL,
        mean_return=_REAL,
        in_group_std=_REAL,
        entropy=_REAL,
        grad_norm=_REAL,
        kl_to_start=_REAL,
        clip_fraction=_REAL,
        response_tokens=_REAL,
        format_ok=_REAL,
        unique_thoughts=_REAL,
        sampled_tokens=_INT,  # so far
        optimizer_steps=_INT,  # so far
        env_steps=_INT,  # so far
        zero_groups=_INT,  # groups whose returns are all equal
        verdict=_TEXT,  # of the echo-trap monitor: healthy, warning, collapsed
        signals=pa.list_(_TEXT),  # its rules that fired in this iteration
        alarm=_TEXT,  # what it says in words; null while healthy
        rollout_seconds=_REAL,
        update_seconds=_REAL,
        cpu_seconds=_REAL,
        extra=pa.map_(_TEXT, _REAL),  # every other metric
    ),
    # One row per evaluated episode. Lists have one item per turn.
    "episodes": _schema(
        run_id=_TEXT,
        suite=_TEXT,
        environment=_TEXT,
        entry=_TEXT,
        policy=_TEXT,
        seed=_INT,  # training seed
        split=_TEXT,
        mode=_TEXT,  # sampled, greedy
        episode=_INT,  # the same number is the same level and luck for everyone under one evaluation setting
        level_seed=_INT,
        dynamics_seed=_INT,
        sampling_seed=_INT,
        level_key=_TEXT,
        status=_TEXT,  # done, error
        error=_TEXT,
        texts=pa.list_(_TEXT),
        actions=pa.list_(_TEXT),  # executed, names joined by " || "
        rewards=pa.list_(_REAL),
        statuses=pa.list_(_TEXT),
        format_ok=pa.list_(_FLAG),
        state_keys=pa.list_(_TEXT),  # after the turn
        turn_tokens=pa.list_(_INT),
        terminated=_FLAG,
        truncated=_FLAG,
        success=_FLAG,
        total_return=_REAL,
        tokens=_INT,
        env_steps=_INT,
        optimal_return=_REAL,  # exact expectations on this level, format penalties apart
        optimal_success=_REAL,
        random_return=_REAL,
        random_success=_REAL,
    ),
    # One row per configuration (seeds averaged), split and mode. Derived from the others.
    "leaderboard": _schema(
        suite=_TEXT,
        suite_version=_INT,
        overrides=_TEXT,
        environment=_TEXT,
        env_kwargs=_TEXT,
        split=_TEXT,
        headline=_FLAG,
        mode=_TEXT,
        entry=_TEXT,
        kind=_TEXT,
        algorithm=_TEXT,
        policy=_TEXT,
        policy_digest=_TEXT,
        config_id=_TEXT,
        seeds=_INT,  # finished
        failed_seeds=_INT,
        collapsed_seeds=_INT,  # finished, but training collapsed on the way; null where nothing is trained
        episodes=_INT,  # all seeds, errors included
        levels=_INT,  # distinct ones among the episodes of one seed
        n_errors=_INT,  # episodes without a score; they are in no mean
        success=_REAL,
        success_low=_REAL,  # 95 % interval
        success_high=_REAL,
        interval=_TEXT,  # how it was computed
        normalised=_REAL,  # (success - random_success) / (optimal_success - random_success)
        gain=_REAL,  # success minus that of the untrained start, on the same levels and luck
        gain_low=_REAL,
        gain_high=_REAL,
        mean_return=_REAL,
        random_success=_REAL,
        optimal_success=_REAL,
        random_return=_REAL,
        optimal_return=_REAL,
        well_formed=_REAL,  # share of turns
        iterations=_INT,  # of each run
        train_tokens=_REAL,  # from here on: means per run
        eval_tokens=_REAL,  # of this split and mode
        optimizer_steps=_REAL,
        env_steps=_REAL,  # training
        cpu_seconds=_REAL,  # training and all evaluation
        code_version=_TEXT,  # of all finished seeds, or "mixed"
    ),
}


def to_table(rows: Iterable[dict[str, Any]], name: str) -> pa.Table:
    """Rows as a table of the schema ``name``; keys that a row lacks become null.

    Raises:
        ValueError: a row has a key that the schema does not know.
    """
    rows, schema = list(rows), SCHEMAS[name]
    known = set(schema.names)
    for row in rows:
        if not known.issuperset(row):
            raise ValueError(f"table {name} has no columns {sorted(set(row) - known)}")
    return pa.Table.from_pylist(rows, schema=schema)


def write(table: pa.Table, path: Path, name: str) -> None:
    """Write a table atomically, with schema version and provenance in the file's metadata.

    Until the moment it is complete and on disk, the file has a name that no ``*.parquet`` pattern matches.
    """
    metadata = {"schema_version": str(SCHEMA_VERSION), "table": name, "code_version": code_version()}
    table = table.replace_schema_metadata(metadata)

    def fill(part: Path) -> None:
        pq.write_table(table, part, compression="zstd")

    _replace(path, fill)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically."""
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"), durable=durable)


def _replace(path: Path, fill: Any, *, durable: bool = True) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fill(part)
        if durable:
            _sync(part)
        os.replace(part, path)
        if durable:
            _sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written; a living one may still be writing."""
    for part in folder.glob(".*.part"):
        if not _alive(part.name.split(".")[-2]):
            part.unlink(missing_ok=True)


def _alive(pid: str) -> bool:
    """Whether a process of this machine has that number (see ``_replace`` for the names)."""
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def read(paths: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """Part files as one table of exactly this schema: columns that a part lacks become null there.

    Raises:
        ValueError: a part was written by a newer version, or a column cannot be read as its type.
    """
    parts = []
    for path in paths:
        file = pq.ParquetFile(path)
        version = int((file.schema_arrow.metadata or {}).get(b"schema_version", b"0"))
        if version > SCHEMA_VERSION:
            raise ValueError(f"{path.name} has schema version {version}; this code reads up to {SCHEMA_VERSION}")
        part = file.read()
        columns = []
        for field in schema:
            if field.name not in part.column_names or pa.types.is_null(part.schema.field(field.name).type):
                columns.append(pa.nulls(part.num_rows, field.type))
                continue
            try:
                columns.append(part[field.name].cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(f"{path.name}, column {field.name}: {error}") from None
        parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def job_folder(out: Path, run_id: str) -> Path:
    """Where a job's files are."""
    return out / "jobs" / run_id


def run_row(out: Path, run_id: str) -> dict[str, Any] | None:
    """The ``runs`` row of a job that has ended, one way or the other; else None."""
    path = job_folder(out, run_id) / "run.parquet"
    if not path.is_file():
        return None
    row: dict[str, Any] = read([path], SCHEMAS["runs"]).to_pylist()[0]
    return row


# --- provenance -----------------------------------------------------------------------------------------------------

_PACKAGES = (
    "gymnasium",
    "joblib",
    "numba",
    "numpy",
    "pettingzoo",
    "pyarrow",
    "ragen-bench",
    "tokenizers",
    "torch",
    "transformers",
)


@functools.cache
def code_version() -> str:
    """Version of the package; in a git checkout also the commit, and ``.dirty`` if files differ from it."""
    version = _version("ragen-bench") or "0"
    here = Path(__file__)
    if _git("ls-files", "--error-unmatch", here.name) is None:  # installed, perhaps inside someone else's checkout
        return version
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return version
    dirty = ".dirty" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{version}+g{commit}{dirty}"


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def environment_facts() -> dict[str, Any]:
    """The columns of ``runs`` about code and machine. No host names, no paths."""
    packages = {name: _version(name) for name in _PACKAGES}
    return {
        "code_version": code_version(),
        "python": platform.python_version(),
        "packages": json.dumps({k: v for k, v in packages.items() if v}, sort_keys=True),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_model": _cpu_model(),
        "cpu_cores": os.cpu_count(),
    }


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or None


def without_paths(text: str, *, limit: int = 300) -> str:
    """A message for a results row: one line, shortened, absolute paths cut to their last part."""
    text = re.sub(r"(?<![\w.:/])/(?:[^\s/'\":,]+/)+", "", " ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"
