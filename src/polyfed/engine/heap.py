"""Where the memory of a step comes from: glibc gives it back to the system after every step and fetches it again."""

import contextlib
import ctypes

TRIM, MMAP = -1, -3  # mallopt's names for the two limits
KEPT, LARGE = 1 << 29, 1 << 25  # bytes: free memory a process keeps; from here on a block is mapped on its own


def keep_freed_memory() -> None:
    """What this process frees it uses again, up to a limit; does nothing where there is no glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP, LARGE)
        libc.mallopt(TRIM, KEPT)
