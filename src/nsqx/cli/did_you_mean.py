"""Suggestions for names that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` with the known name that is most similar to a word, or "" if none is."""
    # Imported here, because only mistakes need it.
    from difflib import get_close_matches

    by_lower_case: dict[str, str] = {}
    for name in known:
        by_lower_case.setdefault(name.lower(), name)
    lower = word.lower()
    found = get_close_matches(lower, by_lower_case, n=1, cutoff=0.6)
    if not found and len(lower) >= 3:
        found = [name for name in by_lower_case if name.startswith(lower)][:1]
    return f"; did you mean {by_lower_case[found[0]]}?" if found else ""
