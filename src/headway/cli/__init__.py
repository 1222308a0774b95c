"""The ``headway`` command. Heavy imports wait inside the commands, so that ``headway --help`` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2, never a traceback."""
    from headway.cli.commands import app
    from headway.errors import HeadwayError

    try:
        app()
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # A full disk, a missing permission: the system's word, and which file.
        where = f" ({error.filename})" if error.filename else ""
        print(f"headway: {error.strerror or error}{where}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("headway: interrupted.", file=sys.stderr)
        sys.exit(130)
