"""Train and evaluation protocols, a results store, and leaderboards; see ``python -m harness.run --help``."""

from importlib.util import find_spec

for _name in ("typer", "rich", "pydantic", "pyarrow", "joblib", "torch"):
    if find_spec(_name) is None:
        raise ModuleNotFoundError(f"the harness needs {_name}: pip install 'ragen-bench[harness]'", name=_name)
