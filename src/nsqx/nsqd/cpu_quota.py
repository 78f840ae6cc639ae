"""How many cores this process may use: those it may run on, less if its container is given less time."""

from __future__ import annotations

import os

CGROUP_LIMIT = "/sys/fs/cgroup/cpu.max"


def usable_cpus(limit_path: str = CGROUP_LIMIT) -> float:
    """Cores, in parts too: a container may have half of one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(limit_path, encoding="ascii") as stream:
            # Microseconds of CPU in a period, or "max"; then the period.
            quota, period = stream.read().split()
            return min(cores, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
