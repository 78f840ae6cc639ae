"""The confirmation of a change that cannot be undone: a question on a terminal, elsewhere ``--yes``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nsqx.flags import BOOL, Flag
from nsqx.tools.utility import UtilityFailed

if TYPE_CHECKING:
    import asyncio

YES_FLAG = Flag("yes", BOOL, False, "do not ask for a confirmation", config_key="is_confirmed")


async def require_confirmation(question: str, undone: str, stopping: asyncio.Event) -> None:
    """Ask on the terminal; raises UtilityFailed with ``undone`` unless the answer is yes."""
    if not sys.stdin.isatty():
        raise UtilityFailed(f"{undone}: add --yes to confirm")
    # Imported here, because only a terminal needs it.
    from nsqx.tools.confirm import confirm

    if not await confirm(question, stopping):
        raise UtilityFailed(undone)
