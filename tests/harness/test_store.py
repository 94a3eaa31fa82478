from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import store


def test_a_part_without_a_column_or_with_only_nulls_reads_as_null(tmp_path: Path) -> None:  # C22
    schema = pa.schema([("run", pa.string()), ("ckpt", pa.string()), ("seed", pa.int64()), ("notes", pa.string())])
    # Written by an older version, and by a writer that guessed types from the values.
    pq.write_table(pa.table({"run": ["1"], "ckpt": pa.nulls(1), "seed": [None]}), tmp_path / "1.parquet")
    new = pa.table({"run": ["2"], "ckpt": ["a"], "seed": [7], "notes": ["hello"], "unknown": [1.0]})
    pq.write_table(new, tmp_path / "2.parquet")
    table = store.read([tmp_path / "1.parquet", tmp_path / "2.parquet"], schema)
    assert table.schema == schema
    assert table.to_pylist() == [
        {"run": "1", "ckpt": None, "seed": None, "notes": None},
        {"run": "2", "ckpt": "a", "seed": 7, "notes": "hello"},
    ]


def test_files_say_their_version_and_newer_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    store.write(store.to_table([{"run_id": "a"}], "runs"), path, "runs")
    metadata = pq.read_schema(path).metadata
    assert metadata[b"schema_version"] == str(store.SCHEMA_VERSION).encode()
    assert metadata[b"table"] == b"runs"
    assert b"code_version" in metadata
    future = pq.read_table(path).replace_schema_metadata({"schema_version": str(store.SCHEMA_VERSION + 1)})
    pq.write_table(future, path)
    with pytest.raises(ValueError, match="schema version"):
        store.read([path], store.SCHEMAS["runs"])


def test_a_column_that_cannot_be_its_type_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seed": ["zero"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="column seed"):
        store.read([tmp_path / "x.parquet"], store.SCHEMAS["runs"])


def test_null_and_nan_stay_apart_and_counts_stay_whole(tmp_path: Path) -> None:
    rows = [{"seed": 1, "wall_seconds": float("nan"), "started": datetime.now(UTC)}, {"seed": None}]
    path = tmp_path / "runs.parquet"
    store.write(store.to_table(rows, "runs"), path, "runs")
    table = store.read([path], store.SCHEMAS["runs"])
    assert table["seed"].to_pylist() == [1, None]
    assert table.schema.field("seed").type == pa.int64()
    assert table["wall_seconds"].null_count == 1
    assert table["wall_seconds"][0].as_py() != table["wall_seconds"][0].as_py()
    assert not any(pa.types.is_dictionary(f.type) for s in store.SCHEMAS.values() for f in s)


def test_unknown_columns_are_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="no columns"):
        store.to_table([{"run": 1}], "runs")


_WRITER = """
import sys, numpy as np, pyarrow as pa
from pathlib import Path
from harness import store
n = 1_000_000
schema = store.SCHEMAS["leaderboard"]
rng = np.random.default_rng(0)
columns = [pa.array(rng.random(n)) if f.type == pa.float64() else pa.nulls(n, f.type) for f in schema]
table = pa.table(columns, schema=schema)
print("ready", flush=True)
store.write(table, Path(sys.argv[1]), "leaderboard")
"""


def test_a_killed_write_leaves_the_old_file(tmp_path: Path) -> None:  # C23
    path = tmp_path / "leaderboard.parquet"
    old = store.to_table([{"entry": f"e{i}"} for i in range(10)], "leaderboard")
    store.write(old, path, "leaderboard")
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    while child.poll() is None and not any(p.stat().st_size > 1_000_000 for p in tmp_path.glob(".*.part")):
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the write ended before it could be killed"
    child.stdout.close()
    assert list(tmp_path.glob(".*.part"))
    assert list(tmp_path.glob("*.parquet")) == [path]
    assert store.read([path], store.SCHEMAS["leaderboard"]).equals(old)
    living = tmp_path / f".runs.parquet.{os.getpid()}.part"
    living.touch()
    store.sweep(tmp_path)
    assert living.exists()
    living.unlink()
    assert os.listdir(tmp_path) == ["leaderboard.parquet"]


def test_messages_lose_paths_and_length() -> None:
    text = store.without_paths("no file '/home/someone/secret/x.txt'\nsee https://example.org/a/b " + "y" * 900)
    assert "home" not in text
    assert "'x.txt'" in text
    assert "https://example.org/a/b" in text
    assert len(text) <= 300
    assert "\n" not in text
