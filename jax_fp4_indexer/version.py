"""The version of the installed distribution; its one place is pyproject.toml."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("jax-fp4-indexer")
except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
    __version__ = "0+not.installed"
