"""Standard error whose reader is slow, gone or a full disk, over real pipes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.telemetry.stderr import LineWriter
from tests.server_process import END_S, wait_until


@dataclass
class Pipe:
    """Both ends of a pipe."""

    reader: int
    writer: int

    def fill(self) -> int:
        """Fills the pipe; returns its size."""
        os.set_blocking(self.writer, False)
        size = 0
        try:
            while True:
                size += os.write(self.writer, bytes(4096))
        except BlockingIOError:
            os.set_blocking(self.writer, True)
            return size

    def read(self, size: int) -> bytes:
        """Exactly this number of bytes."""
        received = b""
        while len(received) < size:
            received += os.read(self.reader, size - len(received))
        return received


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    yield pipe
    for end in (pipe.reader, pipe.writer):
        with contextlib.suppress(OSError):
            os.close(end)


def test_lines_arrive_whole_and_in_order(pipe: Pipe) -> None:
    stream = LineWriter(pipe.writer, "ascii")
    print("one", "zwölf", file=stream)
    stream.write("two\nthr")
    stream.write("ee")
    stream.drain()
    expected = b"one zw\\xf6lf\ntwo\nthree"
    assert pipe.read(len(expected)) == expected
    assert (stream.dropped, stream.isatty(), stream.fileno()) == (0, False, pipe.writer)


def test_lines_without_room_are_dropped_whole_and_counted_while_nobody_reads(pipe: Pipe) -> None:
    size = pipe.fill()
    stream = LineWriter(pipe.writer, max_pending_bytes=100)
    for _ in range(30):
        stream.write("123456789\n")  # neither waits nor fails
    stream.drain(timeout_s=0)
    assert stream.dropped == 20
    pipe.read(size)
    assert pipe.read(100) == b"123456789\n" * 10
    stream.drain()
    stream.write("later\n")
    assert pipe.read(6) == b"later\n"


@pytest.mark.parametrize("fault", ["gone", "closed", "full"])
def test_lines_that_cannot_be_written_are_dropped_and_counted(pipe: Pipe, fault: str) -> None:
    descriptor = pipe.writer
    if fault == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        os.close(pipe.reader if fault == "gone" else pipe.writer)
    stream = LineWriter(descriptor)
    print("one\ntwo", file=stream)
    stream.drain(END_S)
    assert stream.dropped == 2
    if fault == "full":
        os.close(descriptor)


def test_a_descriptor_that_another_process_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    size = pipe.fill()
    os.set_blocking(pipe.writer, False)
    stream = LineWriter(pipe.writer)
    stream.write("line\n")
    pipe.read(size)
    assert pipe.read(5) == b"line\n"
    assert stream.dropped == 0


PROTECTED = """
import os, socket, sys
from service.telemetry.stderr import dropped_lines, protect_stderr
protect_stderr()
print("one", file=sys.stderr)
with open(sys.argv[1], "w") as file, socket.socket() as opened:
    print(opened.fileno() > 2, file=file)
    sys.stderr.drain()
    print(dropped_lines(), file=file)
raise SystemExit("last words")
"""


@pytest.mark.parametrize(
    ("redirection", "dropped", "shown"),
    [("", "0", "one\nlast words\n"), ("2>&-", "1", ""), ("<&- >&- 2>&-", "1", ""),
     ("2>/dev/full", "1", "")],
)  # fmt: skip
def test_closed_descriptors_are_not_those_of_sockets_and_the_last_line_is_written(
    tmp_path: Path, redirection: str, dropped: str, shown: str
) -> None:
    command = [sys.executable, "-c", PROTECTED, str(tmp_path / "seen")]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, shown)
    assert (tmp_path / "seen").read_text() == f"True\n{dropped}\n"


def test_a_terminal_is_still_one() -> None:
    terminal, other_end = os.openpty()
    assert LineWriter(other_end).isatty()
    for end in (terminal, other_end):
        os.close(end)


def test_a_stream_without_a_file_is_left_alone() -> None:
    code = "import io, sys; from service.telemetry.stderr import protect_stderr; "
    code += "sys.stderr = stream = io.StringIO(); protect_stderr(); assert sys.stderr is stream"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_thread_survives_a_reader_that_returns(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    stream = LineWriter(os.open(fifo, os.O_WRONLY))
    os.close(reader)
    stream.write("lost\n")
    wait_until(lambda: stream.dropped == 1, END_S)
    reader = os.open(fifo, os.O_RDONLY)
    stream.write("read\n")
    assert os.read(reader, 100) == b"read\n"
    os.close(reader)
    os.close(stream.fileno())
