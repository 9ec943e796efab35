"""Where compiled things are kept, outside of what git tracks."""

import contextlib
import fcntl
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def folder():
    """JFI_PTXSIM_CACHE, or build/ptxsim of this checkout; created by whoever writes first."""
    return pathlib.Path(os.environ.get("JFI_PTXSIM_CACHE") or HERE.parents[1] / "build" / "ptxsim")


@contextlib.contextmanager
def locked(name):
    """One process at a time, of all that use this cache."""
    path = folder() / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def replace(path, write):
    """Let `write` make a file beside `path`, then put it in place: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    os.replace(temporary, path)
