"""The benchmarks' bookkeeping, on made-up numbers: nothing here is timed."""

from __future__ import annotations

import ast
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import lines, registry, results, run, timing
from benchmarks.lines import Line
from benchmarks.peers import PEERS, ROOT
from benchmarks.registry import BY_NAME, FIGURES, Figure, Target
from benchmarks.results import Results

RUNNER = CliRunner(env={"RAGEN_LEVELS": None})
FACTS = {
    "code_version": "1.2.3+gabc",
    "python": "3.11.7",
    "packages": '{"gymnasium": "1.4.0", "numba": "0.68.1"}',
    "platform": "Linux x86_64",
    "cpu_model": "Some CPU",
    "cpu_cores": 2,
}
SPEED = Figure("speed", "steps of a thing", "benchmarks.one", "its own name", Target(">=", 100, 5), also=("turns",))
DELAY = Figure("delay", "start of a thing", "benchmarks.two", target=Target("<=", 1.0))
FILES = Figure("files", "needs what is not there", "benchmarks.two", target=Target("=", 3), needs="Boxoban files")


def measured() -> Results:
    """A run in which a peer is missing, a value is missing, and one thing was measured twice."""
    found = Results()
    found.add_ours("benchmarks.one", [Line("its own name", 900, "steps/s")])
    found.add_ours("benchmarks.one", [Line("its own name", 1200, "steps/s"), Line("by the way", 7, "things/s")])
    found.add_ours("benchmarks.two", [Line("delay", 0.5, "s")])
    found.add_ours("benchmarks.two", [Line("delay", 0.75, "s")])
    found.add_peer("slow", [Line("speed", 60, "steps/s", "0.1", "no resets")])
    found.add_peer("slow", [Line("speed", 50, "steps/s", "0.1", "no resets"), Line("delay", 2.0, "s", "0.1")])
    found.add_peer("quick", [Line("turns", 200, "turns/s", "2.0", "a|b"), Line("other game", 9999, "steps/s", "2.0")])
    found.skipped["absent"] = "not installed (python -m benchmarks.peers install absent)"
    return found


def test_best_of_rounds_best_peer_and_ratio() -> None:
    speed, delay, files = results.rows(measured(), [SPEED, DELAY, FILES])
    assert speed.ours is not None
    assert speed.ours.value == 1200
    assert (speed.best_peer, speed.ratio, speed.met) == ("quick", 6.0, True)
    assert delay.ours is not None
    assert delay.ours.value == 0.5
    assert (delay.best_peer, delay.ratio, delay.met) == ("slow", 4.0, True)
    assert (files.ours, files.ratio, files.met) == (None, None, None)


@pytest.mark.parametrize(
    ("relation", "value", "times", "ours", "peer", "met"),
    [
        (">=", 100, None, 100, None, True),
        (">=", 100, None, 99, None, False),
        ("<=", 1, None, 1.1, None, False),
        ("=", 1743, None, 1743, None, True),
        ("=", 1743, None, 1744, None, False),
        (">=", 100, 5, 500, 100, True),
        (">=", 100, 5, 499, 100, False),
        (">=", 100, 5, 99, None, False),  # whatever the peers do
        (">=", 100, 5, 500, None, None),  # nobody to compare with: cannot be said
        (">=", 100, 5, 500, 0, None),
    ],
)
def test_targets(
    relation: str, value: float, times: float | None, ours: float, peer: float | None, met: object
) -> None:
    found = Results()
    found.add_ours("m", [Line("f", ours, "steps/s")])
    if peer is not None:
        found.add_peer("p", [Line("f", peer, "steps/s")])
    assert results.rows(found, [Figure("f", "", "m", target=Target(relation, value, times))])[0].met is met


def test_page() -> None:
    page = results.markdown(measured(), [SPEED, DELAY, FILES], date="2001-02-03", facts=FACTS, rounds=3)
    assert "on 2001-02-03" in page
    assert "Some CPU, 2 cores, Linux x86_64" in page
    assert "gymnasium 1.4.0, numba 0.68.1" in page
    assert "python -m benchmarks.run --only FIGURE" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    by_first = {row.split(" | ")[0].strip("| "): row for row in rows}
    assert "1,200 steps/s | at least 100 and 5x the best peer | yes | quick: 200 turns/s" in by_first["`speed`"]
    assert by_first["`speed`"].endswith("| 6x |")
    assert "not measured | exactly 3 | ? |" in page
    assert "| `files` | needs Boxoban files |" in rows
    assert "| `absent` | not installed (python -m benchmarks.peers install absent) |" in rows
    assert "| `benchmarks.one` | by the way | 7 things/s |" in rows
    assert "| quick | 2.0 | `other game` |  | 9,999 steps/s |" in rows
    # A bar inside a cell must not make another cell.
    widths = {row.replace("\\|", "").count("|") for row in rows}
    assert widths == {8, 4, 6, 3}
    assert str(ROOT) not in page
    # What was not measured in this run stands apart, and says so.
    assert "RAGEN" not in page.partition("## RAGEN")[0]
    assert "Measured elsewhere" in page.partition("## RAGEN")[2]


def test_a_missed_target_is_said() -> None:
    found = measured()
    found.ours["benchmarks.two", "delay"] = Line("delay", 1.5, "s")
    assert "| 1.5 s | at most 1 | **no** |" in results.markdown(found, [DELAY], date="d", facts=FACTS, rounds=1)


def test_names_are_unique_and_each_only_resolves() -> None:
    assert len(BY_NAME) == len(FIGURES)
    assert len({(figure.module, figure.source_name) for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        steps = run.plan([figure], PEERS, everything=False)
        assert steps[0].command == (sys.executable, "-m", "benchmarks.lines", figure.module, figure.source_name)
        assert {step.name for step in steps[1:]} <= {figure.module, *(peer.name for peer in PEERS)}


def test_every_figure_of_the_goals_is_registered() -> None:
    """The figures that the project promises, with their bounds."""
    bounds = {figure.name: (figure.target.relation, figure.target.value) for figure in FIGURES if figure.target}
    assert bounds == {
        "sokoban_discrete": (">=", 300_000),
        "sokoban_turns": (">=", 100_000),
        "frozenlake_discrete": (">=", 300_000),
        "vector_sokoban_grid_1024": (">=", 20_000_000),
        "vector_sokoban_text_1024": (">=", 2_000_000),
        "rooms_6x6_1": (">=", 20_000),
        "rooms_8x8_2": (">=", 5_000),
        "rooms_10x10_4": (">=", 500),
        "boxoban_hard_all": ("<=", 1.0),
        "boxoban_hard_all_pushes": ("=", 59_404),
        "boxoban_unfiltered_test_100_pushes": ("=", 1164),
        "boxoban_medium_100_pushes": ("=", 1592),
        "boxoban_hard_100_pushes": ("=", 1743),
        "microban_any": ("=", 155),
        "microban_optimal": (">=", 152),
        "startup": ("<=", 1.0),
    }
    assert {figure.name for figure in FIGURES if figure.target and figure.target.times_best_peer == 5} == {
        "sokoban_discrete",
        "vector_sokoban_grid_1024",
    }


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.target and f.target.times_best_peer], ids=lambda f: f.name)
def test_who_must_beat_peers_is_compared_with_some(figure: Figure) -> None:
    assert any(one.figure in figure.compared_with for peer in PEERS for one in peer.measurements)


def test_ours_and_the_peers_take_turns() -> None:
    steps = run.plan([BY_NAME["rooms_6x6_1"], BY_NAME["startup_harness_help"]], PEERS, everything=False)
    turn = ["benchmarks.generation", "gym-sokoban", "gem", "textarena"]
    assert [step.name for step in steps] == turn * run.ROUNDS + ["benchmarks.startup"]
    assert steps[1].command[-1] == "rooms_6x6_1"  # and no other figure of that peer


def test_the_whole_run_measures_everything_of_every_peer() -> None:
    steps = run.plan(FIGURES, PEERS, everything=True)
    asked = {(step.name, figure) for step in steps for figure in step.command[3:]}
    for peer in PEERS:
        assert {(peer.name, one.figure) for one in peer.measurements} <= asked


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peers(peer) -> None:
    """Their modules can be read without the peer, which is imported inside functions only, and their pins are exact."""
    path = ROOT / "benchmarks" / "peers" / f"{peer.module.rpartition('.')[2]}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert all(name.split(".")[0] in {*sys.stdlib_module_names, "benchmarks"} for name in top)
    labels = [(one.figure, one.note) for one in peer.measurements]
    assert labels
    assert len(set(labels)) == len(labels)
    if not peer.ours:
        pins = [line for line in peer.requirements.read_text().splitlines() if not line.startswith("#")]
        assert pins
        assert all("==" in pin and "/" not in pin for pin in pins)


def test_a_peer_counts_as_installed_only_with_the_pinned_versions(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.peers.ROOT", tmp_path)
    peer = next(peer for peer in PEERS if peer.name == "minigrid")
    assert peer.missing == "not installed (python -m benchmarks.peers install minigrid)"
    peer.folder.mkdir(parents=True)
    (peer.folder / "installed.txt").write_text("minigrid==0.0.1\n")
    assert peer.missing
    (peer.folder / "installed.txt").write_text(peer.requirements.read_text())
    assert not peer.missing


def test_lines_survive_the_way_through_a_process_and_noise_does_not(capsys) -> None:
    print("some library says hello")
    print('{"progress": 0.5}')
    print("[1, 2]")
    lines.report("gymnasium", [lines.Measurement("f", "steps/s", "how", lambda: 2.5)], wanted=["f"])
    lines.report("gymnasium", [lines.Measurement("g", "steps/s", "how", lambda: 1 / 0)], wanted=["f"])
    (line,) = lines.parse(capsys.readouterr().out)
    assert (line.figure, line.value, line.unit, line.note) == ("f", 2.5, "steps/s", "how")
    assert line.version[0].isdigit()


def test_a_module_is_left_when_the_wanted_figures_are_measured(tmp_path, monkeypatch, capsys) -> None:
    source = "def figures():\n    yield 'a', 1, 's'\n    yield 'b', 2, 's'\n    yield 'c', 1 / 0, 's'\n"
    (tmp_path / "some_figures.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lines", "some_figures", "b"])
    lines.main()
    assert lines.parse(capsys.readouterr().out) == [Line("b", 2.0, "s")]
    monkeypatch.setattr(sys, "argv", ["lines", "some_figures"])
    with pytest.raises(ZeroDivisionError):
        lines.main()
    assert lines.parse(capsys.readouterr().out) == [Line("a", 1.0, "s"), Line("b", 2.0, "s")]


def test_a_failing_process_keeps_what_it_said_and_says_why() -> None:
    said = '{"figure": "f", "value": 1.0, "unit": "s", "version": "", "note": ""}'
    program = f"print('{said}', flush=True); raise OSError('no file /home/somebody/secret/levels.xsb')"
    found, problem = run.measure((sys.executable, "-c", program), {})
    assert found == [Line("f", 1.0, "s")]
    assert "levels.xsb" in problem
    assert "/home" not in problem
    assert run.measure((str(ROOT / "no-such-program"),), {}) == ([], "No such file or directory")


def test_a_failure_is_a_line_and_is_not_repeated(tmp_path) -> None:
    """A module that fails every time: named once in the results, and the rest goes on."""
    log = tmp_path / "log"
    bad = (sys.executable, "-c", f"open({str(log)!r}, 'a').write('x'); raise SystemExit('it broke')")
    good = (sys.executable, "-m", "benchmarks.lines", "tests.no_such_module")
    found = Results()
    steps = [run.Step("bad", bad, lambda r, ls: None), run.Step("good", good, lambda r, ls: None)] * 2
    run.measure_all(steps, found, {}, Console(quiet=True))
    assert log.read_text() == "x"
    assert found.skipped["bad"] == "it broke"
    assert "no_such_module" in found.skipped["good"]


def test_the_whole_run_writes_its_page_and_a_part_does_not(tmp_path, monkeypatch) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("earlier")
    monkeypatch.setattr(run, "PAGE", page)
    monkeypatch.setattr(run, "measure_all", lambda steps, found, environment, console: None)
    assert RUNNER.invoke(run.app, ["--only", "startup"]).exit_code == 0
    assert page.read_text() == "earlier"
    assert RUNNER.invoke(run.app, []).exit_code == 0
    text = page.read_text()
    assert text.startswith("# Speed")
    for figure in FIGURES:
        assert f"| `{figure.name}` |" in text
    assert str(ROOT) not in text
    assert list(tmp_path.iterdir()) == [page]


def test_wrong_names_are_answered() -> None:
    wrong = RUNNER.invoke(run.app, ["--only", "sped"])
    assert wrong.exit_code == 2
    assert "no such figure: sped" in wrong.output
    listed = RUNNER.invoke(run.app, ["--list"])
    assert [row.split()[0] for row in listed.output.splitlines()] == list(BY_NAME)


def test_levels_reach_the_measuring_processes(tmp_path, monkeypatch) -> None:
    seen = {}
    monkeypatch.setattr(run, "measure_all", lambda steps, found, environment, console: seen.update(environment))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "xsb").mkdir()
    assert RUNNER.invoke(run.app, ["--only", "boxoban_hard_all", "--levels", "xsb"]).exit_code == 0
    assert seen == {"RAGEN_LEVELS": str(tmp_path / "xsb")}  # absolute: processes run elsewhere


def endless(i: int) -> None:
    """Ends at once for 0 and 1, and never for others, although it catches Exception."""
    while i > 1:
        try:
            while True:
                pass
        except Exception:
            continue


def test_a_window_counts_only_what_ends_in_it() -> None:
    rate = timing.finished_per_cpu_second(endless, seconds=0.05)
    assert 2 / 0.5 < rate <= 2 / 0.05 * 1.1  # two calls in about 0.05 s


def test_a_window_waits_for_its_first_call_but_not_for_ever() -> None:
    assert timing.finished_per_cpu_second(lambda i: endless(2), seconds=0.02, patience=0.1) == 0

    def slow(i: int) -> None:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    assert 1 / 2.0 < timing.finished_per_cpu_second(slow, seconds=0.02) <= 1 / 0.1


def test_amounts() -> None:
    shown = {0: "0", 0.0714: "0.0714", 2.5: "2.5", 3.0: "3", 99.95: "100", 1743: "1,743", 20e6: "20,000,000"}
    assert {value: timing.amount(value) for value in shown} == shown


@pytest.mark.parametrize("module", sorted({registry.GENERATION, registry.ORACLE, registry.STARTUP}))
def test_our_modules_compile_and_have_figures(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {module} as m; assert callable(m.figures) and callable(m.main)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_no_absolute_path_in_the_benchmarks() -> None:
    for path in (ROOT / "benchmarks").rglob("*"):
        if path.suffix in (".py", ".txt", ".md"):
            text = path.read_text(encoding="utf-8")
            assert str(ROOT) not in text
