"""``python -m benchmarks.peers install [NAME...]`` and ``python -m benchmarks.peers list``."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from benchmarks.peers import PEERS

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def install(names: Annotated[list[str] | None, typer.Argument(help="Peers; by default all.")] = None) -> None:
    """Make the peers' virtual environments under .peers/ (about 3 GB for all of them)."""
    known = {peer.name: peer for peer in PEERS}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise typer.BadParameter(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}")
    failed = False
    for name in names or known:
        try:
            known[name].install()
            typer.echo(f"{name}: installed")
        except subprocess.CalledProcessError as error:
            failed = True
            typer.echo(f"{name}: not installed, pip ended with {error.returncode}; the others go on", err=True)
    raise typer.Exit(1 if failed else 0)


@app.command("list")
def list_() -> None:
    """The peers, and whether they are installed."""
    for peer in PEERS:
        typer.echo(f"{peer.name:12} {peer.missing or 'installed':12} {peer.about}")


if __name__ == "__main__":
    app()
