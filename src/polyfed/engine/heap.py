"""Where the memory of a step comes from: glibc gives it back to the system after every step and fetches it again."""

import contextlib
import ctypes

TRIM, MMAP = -1, -3  # mallopt's names for the two limits
KEPT, LARGE = 1 << 29, 1 << 25  # bytes: free memory a process keeps; from here on a block is mapped on its own


def keep_freed_memory() -> None:
    """Let this process reuse the memory that it frees, up to a limit; without glibc this does nothing."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP, LARGE)
        libc.mallopt(TRIM, KEPT)
