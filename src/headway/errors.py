"""Errors for people: one sentence that says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadwayError(ValueError):
    """A mistake in what the user gave. The command line prints it without a traceback and exits with code 2."""


def suggest(word: str, choices: Iterable[str], likeness: float = 0.5) -> str:
    """The nearest right name as a sentence to append, or "" when none has that likeness (0 to 1)."""
    names = list(choices)
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=likeness)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""


def unknown(kind: str, given: object, choices: Iterable[str]) -> HeadwayError:
    """The error for a name that does not exist: names what was given, what exists, and the nearest right one."""
    names = list(choices)
    return HeadwayError(f"Unknown {kind} {given!r}: expected one of {', '.join(names)}.{suggest(str(given), names)}")


def refuse_unknown_options(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first of the ``given`` option names that ``owner`` (for people: "weight 'p2'") does not have."""
    names = list(known)
    for option in given:
        if not names:
            raise HeadwayError(f"The {owner} has no options, got {option!r}; leave it out.")
        if option not in names:
            raise HeadwayError(
                f"The {owner} has no option {option!r}: it has {', '.join(names)}.{suggest(option, names)}"
            )
