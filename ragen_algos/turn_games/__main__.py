"""``python -m ragen_algos.turn_games``: who improves, who reaches the optimum, in how many sweeps."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from ragen_algos.turn_games.tables import EXPLANATION, GAMES, SEED, Table, tables

BEGIN = "<!-- begin: written by the command -->"
END = "<!-- end: written by the command -->"


def plain(table: Table) -> str:
    """A table for the terminal."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([table.title.upper(), textwrap.fill(table.note, 120), "", *lines])


def markdown(found: list[Table], n: int, seed: int) -> str:
    """The part of the page between its markers."""
    options = "".join(f" --{name} {x}" for name, x, usual in (("games", n, GAMES), ("seed", seed, SEED)) if x != usual)
    lines = [f"Written by `python -m ragen_algos.turn_games{options} --write docs/turn_games.md`."]
    for table in found:
        lines += ["", f"## {table.title}", "", textwrap.fill(table.note, 120), ""]
        lines += [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
        lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Put ``text`` between the markers of a page.

    Raises:
        ValueError: the page lacks a marker.
    """
    old = page.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}, between which the tables go")
    head, _, rest = old.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen_algos.turn_games",
        description="Exact small games that show what the order of the turns and the correction M of SeeUPO do.",
    )
    parser.add_argument("--games", type=int, default=GAMES, metavar="N", help=f"games per random family ({GAMES})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of the random games ({SEED})")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    output.add_argument(
        "--write", type=Path, metavar="PAGE", help="renew the tables of a page, e.g. docs/turn_games.md"
    )
    arguments = parser.parse_args(argv)
    if arguments.games < 1:
        parser.error("--games must be at least 1")
    if arguments.seed < 0:
        parser.error("--seed must not be negative")
    found = tables(arguments.games, arguments.seed)
    if arguments.write:
        try:
            write(arguments.write, markdown(found, arguments.games, arguments.seed))
        except (OSError, ValueError) as error:
            parser.error(str(error))
        print(f"written: {arguments.write}")
    elif arguments.markdown:
        print(markdown(found, arguments.games, arguments.seed))
    else:
        print(EXPLANATION)
        for table in found:
            print(f"\n\n{plain(table)}")


if __name__ == "__main__":
    main()
