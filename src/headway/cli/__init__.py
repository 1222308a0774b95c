"""The ``headway`` command. Heavy imports wait inside the commands, so that ``headway --help`` answers at once."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TextIO


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2, never a traceback."""
    from headway.cli import studies  # noqa: F401  registers its commands
    from headway.cli.commands import app
    from headway.errors import HeadwayError

    warnings.showwarning = _show_warning
    try:
        app()
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # A full disk, a missing permission: the system's word, and which file.
        where = f" ({error.filename})" if error.filename else ""
        advice = "check the path, its permissions and the free space"
        print(f"headway: {error.strerror or error}{where}: {advice}.", file=sys.stderr)
        sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Headway's own warnings as sentences for people; others as Python shows them."""
    # By the package's own folder: a checkout or environment may be called headway too.
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        print(f"headway: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)
