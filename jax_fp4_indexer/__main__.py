"""Starts the command line, as `jax-fp4-indexer` and as `python -m jax_fp4_indexer`."""

import importlib.util
import os
import sys

LIBRARIES = ("click", "rich", "matplotlib")  # of the extra `cli`


def main() -> int:
    """Runs the command that `sys.argv` names and returns its exit status. 2, with a sentence that says what to
    install, where a library is missing."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"jax-fp4-indexer: the command line needs {', '.join(missing)}, which this Python does not have; "
            'install the extra: pip install "jax-fp4-indexer[cli]"',
            file=sys.stderr,
        )
        return 2
    from jax_fp4_indexer.cli.main import main as command

    module = os.path.basename(sys.argv[0]) == "__main__.py"
    try:
        command(prog_name="python -m jax_fp4_indexer" if module else "jax-fp4-indexer")
    except SystemExit as end:
        status = end.code
    except OSError as error:
        return _unwritable(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        return _unwritable(error)
    return status if isinstance(status, int) else 0 if status is None else 1


def _unwritable(error):
    """Says that an output could not be written, and keeps Python from trying again when it ends. Returns the exit
    status 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    where = error.filename or "the output"
    print(
        f"jax-fp4-indexer: {where} cannot be written: {error.strerror or error}. "
        "Free some space, or write somewhere else.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
