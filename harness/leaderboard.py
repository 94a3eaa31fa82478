"""The leaderboard: derived from the jobs of a results folder, never written by hand.

    python -m harness.leaderboard build DIR     derive runs, iterations, episodes and leaderboard .parquet
    python -m harness.leaderboard show DIR      print it

One row is one configuration (all its seeds together), split and mode. A configuration none of whose seeds finished has
a row without scores: "could not run" is not 0.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

TABLES = ("runs", "iterations", "episodes")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A results folder.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=(__doc__ or "").splitlines()[0])


def collect(out: Path) -> dict[str, pa.Table]:
    """``runs`` (all that ended), ``iterations`` and ``episodes`` (of those that are done) of a results folder."""
    from harness import store

    ended = [p.parent for p in sorted((out / "jobs").glob("*/run.parquet"))]
    runs = store.read([f / "run.parquet" for f in ended], store.SCHEMAS["runs"])
    order = [(c, "ascending") for c in ("suite", "environment", "kind", "entry", "policy", "seed", "run_id")]
    runs = runs.sort_by(order)
    done = [
        store.job_folder(out, id)
        for id, status in zip(runs["run_id"].to_pylist(), runs["status"].to_pylist(), strict=True)
        if status == "done"
    ]
    tables = {"runs": runs}
    for name in TABLES[1:]:
        paths = [f / f"{name}.parquet" for f in done]
        tables[name] = store.read([p for p in paths if p.is_file()], store.SCHEMAS[name])
    return tables


def derive(tables: dict[str, pa.Table]) -> pa.Table:
    """The leaderboard of ``collect``'s tables."""
    from harness import store

    episodes: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    skip = {"texts", "actions", "rewards", "statuses", "state_keys", "turn_tokens"}
    slim = tables["episodes"].select([c for c in store.SCHEMAS["episodes"].names if c not in skip])
    for row in slim.to_pylist():
        episodes[row["run_id"], row["split"], row["mode"]].append(row)
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in tables["runs"].to_pylist():
        groups[run["config_id"]].append(run)
    starts = {
        _start_key(run): run["run_id"]
        for run in tables["runs"].to_pylist()
        if run["kind"] == "start" and run["status"] == "done"
    }
    rows = []
    for runs in groups.values():
        config = json.loads(runs[0]["config"])
        for split in config["environment"]["splits"]:
            modes = config["evaluation"]["modes"] if runs[0]["kind"] != "scripted" else ["sampled"]
            for mode in modes:
                start = episodes.get((starts.get(_start_key(runs[0]), ""), split, mode))
                rows.append(_row(runs, split, mode, episodes, start))
    rows.sort(
        key=lambda r: (
            *(r[c] for c in ("suite", "suite_version", "environment")),
            not r["headline"],
            r["split"],
            r["mode"] != "sampled",
            -r.get("success", -1.0),
            r["entry"],
            r["policy"],
            r["config_id"],
        )
    )
    return store.to_table(rows, "leaderboard")


def build(out: Path) -> pa.Table:
    """Write the derived tables of a results folder.

    Returns:
        The leaderboard.
    """
    from harness import store

    store.sweep(out)
    tables = collect(out)
    tables["leaderboard"] = derive(tables)
    for name, table in tables.items():
        store.write(table, out / f"{name}.parquet", name)
    return tables["leaderboard"]


def _start_key(run: dict[str, Any]) -> str:
    """What an untrained and a trained run must have in common to be compared."""
    from harness.suite import canonical_json

    config = json.loads(run["config"])
    return canonical_json([config[k] for k in ("suite", "suite_version", "environment", "policy", "evaluation")])


def _row(
    runs: list[dict[str, Any]],
    split: str,
    mode: str,
    episodes: dict[tuple[str, str, str], list[dict[str, Any]]],
    start: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    import numpy as np

    from harness import stats

    first, done = runs[0], [r for r in runs if r["status"] == "done"]
    copied = ("suite", "suite_version", "overrides", "environment", "entry", "kind", "algorithm", "policy")
    row: dict[str, Any] = {key: first[key] for key in (*copied, "policy_digest", "config_id")}
    row |= {
        "env_kwargs": (done or runs)[0]["env_kwargs"],
        "split": split,
        "headline": split == first["headline"],
        "mode": mode,
        "seeds": len(done),
        "failed_seeds": len(runs) - len(done),
        "collapsed_seeds": sum(r["collapsed_at"] is not None for r in done) if first["kind"] == "trained" else None,
        "episodes": 0,
        "n_errors": 0,
        "code_version": _common([r["code_version"] for r in done or runs]),
    }
    if not done:
        return row
    per_run = [sorted(episodes[r["run_id"], split, mode], key=lambda e: e["episode"]) for r in done]
    played = [e for es in per_run for e in es]
    scored = [e for e in played if e["status"] == "done"]
    matrix = np.array([[_score(e) for e in es] for es in per_run])
    levels = np.array([e["level_key"] for e in per_run[0]])
    row |= {"episodes": len(played), "levels": len(set(levels.tolist())), "n_errors": len(played) - len(scored)}
    rate = stats.success_rate(matrix, levels)
    if rate is not None:
        row |= {"success": rate.mean, "success_low": rate.low, "success_high": rate.high, "interval": rate.method}
        row["mean_return"] = _mean(scored, "total_return")
        for key in ("random_success", "optimal_success", "random_return", "optimal_return"):
            row[key] = _mean(scored, key)
        if row["random_success"] is not None and row["optimal_success"] is not None:
            row["normalised"] = stats.normalised(rate.mean, row["random_success"], row["optimal_success"])
        turns = [ok for e in scored for ok in e["format_ok"]]
        row["well_formed"] = sum(turns) / len(turns) if turns else math.nan
    if first["kind"] == "trained" and start is not None:
        before = {(e["level_seed"], e["dynamics_seed"]): _score(e) for e in start}
        paired = np.array([before.get((e["level_seed"], e["dynamics_seed"]), math.nan) for e in per_run[0]])
        gain = stats.paired_gain(matrix, paired, levels)
        if gain is not None:
            row |= {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
    row |= {
        "iterations": done[0]["iterations"],
        "train_tokens": _mean(done, "train_tokens"),
        "eval_tokens": sum(e["tokens"] for e in played) / len(done),
        "optimizer_steps": _mean(done, "optimizer_steps"),
        "env_steps": _mean(done, "train_env_steps"),
        "cpu_seconds": _mean(done, "cpu_seconds"),
    }
    return row


def _score(episode: dict[str, Any]) -> float:
    return math.nan if episode["success"] is None else float(episode["success"])


def _common(versions: list[str]) -> str:
    return versions[0] if len(set(versions)) == 1 else "mixed"


def _mean(rows: list[dict[str, Any]], key: str) -> float | None:
    """Mean of the values that exist; None if none does."""
    values = [r[key] for r in rows if r[key] is not None]
    return math.fsum(values) / len(values) if values else None


# --- for people -----------------------------------------------------------------------------------------------------


def print_table(table: pa.Table, console: Console) -> None:
    """Print headline splits first, then the other splits."""
    rows = table.to_pylist()
    greedy = {(r["config_id"], r["split"]): r["success"] for r in rows if r["mode"] == "greedy"}
    sampled = {(r["config_id"], r["split"]) for r in rows if r["mode"] == "sampled"}
    by_suite: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["mode"] == "sampled" or (row["config_id"], row["split"]) not in sampled:
            by_suite[row["suite"], row["suite_version"], row["headline"]].append(row)
    mixed = set()
    for key in sorted(by_suite, key=lambda k: (k[0], k[1], not k[2])):
        suite, version, headline = key
        what = "headline splits" if headline else "other splits"
        learned = sorted({r["policy"] for r in by_suite[key] if r["kind"] != "scripted"})
        title = f"{suite} v{version}, {what}" + (f", policy {learned[0]}" if len(learned) == 1 else "")
        versions = {r["code_version"] or "unknown" for r in by_suite[key]}
        if len(versions) > 1 or "mixed" in versions:
            title += " **"
            mixed |= versions
        lines = [
            _cells(row, greedy.get((row["config_id"], row["split"])), name_policy=len(learned) > 1)
            for row in by_suite[key]
        ]
        console.print(_rich(title, lines, console.width))
    console.print(_LEGEND, markup=False, highlight=False)
    for overrides in sorted({r["overrides"] for r in rows if r["overrides"]}):
        console.print(f"* not the published protocol: {overrides}", markup=False, highlight=False)
    if mixed:
        versions_text = ", ".join(sorted(mixed))
        console.print(f"** not all rows come from the same code: {versions_text}", markup=False, highlight=False)


_LEGEND = (
    "success: sampled (greedy only where a row has nothing else). norm.: (success - random) / (optimal - random), both "
    "exact. gain: over the untrained start, paired. xK, F failed, C collapsed: K seeds are in the means, "
    "F others failed; training collapsed in C of the K. "
    "n: episodes per seed, and on how many levels if fewer; -e: e episodes of all seeds could not be played. Per run: "
    "steps of the optimizer, tokens sampled in training and for this row, CPU-s of training and all evaluation."
)
_DROPPED_FIRST = ("iter.", "steps", "CPU-s", "tokens", "return", "form", "gain 95 %", "n", "greedy")
"""Columns that a narrow terminal does without, in this order; the file has them all."""


def _rich(title: str, lines: list[dict[str, str]], width: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    widths = {name: max(len(line[name]) for line in lines) for name in lines[0]}
    shown = {name: max(size, len(name)) for name, size in widths.items() if size}
    for name in _DROPPED_FIRST:
        if sum(shown.values()) + 3 * len(shown) + 1 > width:
            shown.pop(name, None)
    table = Table(title=escape(title), title_justify="left")
    for name in shown:
        table.add_column(name, justify="left" if name in ("environment", "entry") else "right", no_wrap=True)
    last = ""
    for line in lines:
        place = line["environment"]
        if last and place != last:
            table.add_section()
        table.add_row(*("" if name == "environment" and place == last else escape(line[name]) for name in shown))
        last = place
    return table


def _cells(row: dict[str, Any], greedy: float | None, *, name_policy: bool) -> dict[str, str]:
    failed = f", {row['failed_seeds']} failed" if row["failed_seeds"] else ""
    if row["collapsed_seeds"]:
        failed += f", {row['collapsed_seeds']} collapsed"
    seeds = f" x{row['seeds']}{failed}" if row["seeds"] > 1 or (row["seeds"] and failed) else ""
    per_seed = row["episodes"] // max(1, row["seeds"])
    levels = f"/{row['levels']}" if row["levels"] is not None and row["levels"] < per_seed else ""
    who = f" ({row['policy']})" if name_policy and row["kind"] != "scripted" else ""
    tokens = (row["train_tokens"] or 0) + (row["eval_tokens"] or 0)
    return {
        "environment": f"{row['environment'].rpartition('/')[2]} {row['split']}",
        "entry": row["entry"] + who + seeds + (" *" if row["overrides"] else ""),
        "success": _number(row["success"], 3) if row["seeds"] else "failed",
        "95 %": "" if row["success"] is None else f"{row['success_low']:.2f}-{row['success_high']:.2f}",
        "greedy": _number(greedy, 3),
        "norm.": _number(row["normalised"], 2),
        "gain": "" if row["gain"] is None else f"{row['gain']:+.3f}",
        "gain 95 %": "" if row["gain"] is None else f"{row['gain_low']:+.2f} {row['gain_high']:+.2f}",
        "return": _number(row["mean_return"], 2),
        "form": _number(row["well_formed"], 2),
        "steps": _number(row["optimizer_steps"], 0),
        "tokens": "" if not tokens else f"{tokens:.0f}" if tokens < 10_000 else f"{tokens / 1000:.0f}k",
        "CPU-s": _number(row["cpu_seconds"], 0),
        "iter.": "" if row["iterations"] is None else str(row["iterations"]),
        "n": f"{per_seed}{levels}" + (f" -{row['n_errors']}" if row["n_errors"] else ""),
    }


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _require(out: Path) -> None:
    if not (out / "jobs").is_dir() and not (out / "leaderboard.parquet").is_file():
        typer.echo(f"error: {out} holds no results", err=True)
        raise typer.Exit(2)


@app.command("build")
def _build(folder: Folder) -> None:
    """Derive runs, iterations, episodes and leaderboard .parquet from the folder's jobs."""
    _require(folder)
    if not (folder / "jobs").is_dir():
        typer.echo(f"error: {folder} has no jobs to build from", err=True)
        raise typer.Exit(2)
    table = build(folder)
    typer.echo(f"{folder / 'leaderboard.parquet'}: {table.num_rows} rows")


@app.command("show")
def _show(folder: Folder) -> None:
    """Print the leaderboard."""
    _require(folder)
    from harness import store

    if (folder / "jobs").is_dir():  # a derived file may be older than they are
        table = derive(collect(folder))
    else:
        table = store.read([folder / "leaderboard.parquet"], store.SCHEMAS["leaderboard"])
    print_table(table, wide_console())


def wide_console() -> Console:
    """A console for tables: as wide as the terminal, and wide enough for a table where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)


if __name__ == "__main__":
    app()
