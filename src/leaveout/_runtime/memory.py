"""Memory that a call is about to take, compared with what is free before anything is computed."""

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
STATM = Path("/proc/self/statm")
ASKED_FROM = 2**20  # bytes


def require_memory(caller: str, size: float, content: str, advice: str) -> None:
    """Raise MemoryError if `size` bytes are more than this process can still take.

    The system is asked from `ASKED_FROM` on, as it takes longer to answer than less takes to
    compute.
    """
    if size < ASKED_FROM:
        return
    free = free_memory()
    if size > free:
        raise MemoryError(
            f"{caller}: {content} take {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; {advice}."
        )


def free_memory() -> float:
    """Bytes that this process can still take on Linux, by the machine, its container and its own
    limit; elsewhere infinity.
    """
    if not MEMINFO.exists():
        return float("inf")
    import resource

    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    machine = sum(
        1024 * int(words[1]) for words in lines if words[0] in ("MemAvailable:", "SwapFree:")
    )
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0] % 2**64  # -1 is no limit
    resident_bytes = int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return float(min(machine, allowed - resident_bytes, _free_of_group()))


def _free_of_group() -> float:
    """Bytes below the limit of the container.

    Its page cache that is not in use makes room on demand.
    """
    try:
        limit, used, parts = (
            (GROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat")
        )
        return int(limit) - int(used) + int(parts.partition("inactive_file ")[2].split()[0])
    except (OSError, ValueError):  # no such file, or no limit, which is the word "max"
        return float("inf")
