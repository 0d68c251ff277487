"""Memory that a call is about to take, compared with what is free before anything is computed."""

import os
from pathlib import Path

MEMINFO, GROUP, STATM = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max"), Path("/proc/self/statm")


def require_memory(caller: str, size: float, content: str, advice: str) -> None:
    """Raise MemoryError if `size` bytes are more than this process can still take."""
    free = free_memory()
    if size > free:
        raise MemoryError(f"{caller}: {content} take {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; {advice}.")


def free_memory() -> float:
    """Bytes that this process can still take on Linux, by the machine, its container and its own limit; elsewhere infinity."""
    if not MEMINFO.exists():
        return float("inf")
    import resource

    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    machine = sum(1024 * int(words[1]) for words in lines if words[0] in ("MemAvailable:", "SwapFree:"))
    group = GROUP.read_text().strip() if GROUP.exists() else ""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0] % 2**64  # -1 is no limit
    taken = int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return float(min(machine, allowed - taken, int(group) if group.isdigit() else machine))
