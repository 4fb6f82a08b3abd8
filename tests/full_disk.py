"""A disk that takes no more, by the system's own limit on the size of a file."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Within the block every write beyond `limit_bytes` of a file fails, as on a full disk.

    The limit is the whole process's. The system's error is "file too large" (EFBIG).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
