"""Where the commands print: a console as wide as what reads it."""

import os
import sys

from rich.console import Console

WIDTH = 150  # of a file or a pipe, which has no width of its own


def console() -> Console:
    """A console of the width that COLUMNS or the terminal says, else WIDTH. Characters that the output's encoding
    lacks are written as "?"."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    own_width = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    return Console(width=None if own_width else WIDTH)
