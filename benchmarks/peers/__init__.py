"""Other people's environments, measured beside ours.

Each peer is a module of this package that runs in a virtual environment of its own, because their requirements exclude
each other (``python -m benchmarks.peers install`` makes them under ``.peers/``, from the pinned versions in
``requirements/``). A module imports its peer inside functions only, so that what it can measure is known without it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lines import Measurement

ROOT = Path(__file__).parents[2]
_REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True)
class Peer:
    """One peer."""

    name: str
    about: str
    ours: bool = False
    """Runs in the environment of this project, which has it anyway."""

    @property
    def module(self) -> str:
        """Module that measures it."""
        return f"benchmarks.peers.{self.name.replace('-', '_')}"

    @property
    def measurements(self) -> list[Measurement]:
        """What can be measured."""
        found: list[Measurement] = importlib.import_module(self.module).MEASUREMENTS
        return found

    @property
    def requirements(self) -> Path:
        """Its pinned versions."""
        return _REQUIREMENTS / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        """Its virtual environment."""
        return ROOT / ".peers" / self.name

    @property
    def python(self) -> str:
        """The interpreter that has it."""
        return sys.executable if self.ours else str(self.folder / "bin" / "python")

    @property
    def _stamp(self) -> Path:
        return self.folder / "installed.txt"

    @property
    def missing(self) -> str:
        """Why it cannot be measured now; empty if it can."""
        if self.ours or (self._stamp.exists() and self._stamp.read_text() == self.requirements.read_text()):
            return ""
        return f"not installed (python -m benchmarks.peers install {self.name})"

    def install(self) -> None:
        """Make its virtual environment; nothing to do if the pinned versions are installed.

        Raises:
            subprocess.CalledProcessError: pip failed; it has printed why.
        """
        if not self.missing:
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(self.requirements)], check=True)
        self._stamp.write_text(self.requirements.read_text())


PEERS = (
    Peer("gymnasium", "FrozenLake of Gymnasium, the library that all others build on", ours=True),
    Peer("gym-sokoban", "the Sokoban that RAGEN, GEM and TextArena took their generator from"),
    Peer("gem", "GEM (gem-llm): text environments for language-model agents"),
    Peer("textarena", "TextArena: text games for language models"),
    Peer("envpool", "EnvPool: environments in C++, batched"),
    Peer("minigrid", "MiniGrid: small grid worlds in Python; another game, for scale"),
    Peer("jumanji", "Jumanji: environments in JAX, compiled and batched"),
)
