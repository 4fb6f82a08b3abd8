"""Follows the blocks in the scans of a JPEG, without computing their pixels.

Decoders fill missing blocks with gray and skip bytes that belong to no block, often without a
report. This module reads the Huffman codes of sequential and progressive scans, with any sampling
factors (ITU-T T.81, annexes F and G). It takes about 0.5 s for a megabyte, much longer than a
decoder, and is for the few files of which a decoder does not report enough.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from itertools import count, cycle, islice

import numpy as np
import numpy.typing as npt
from PIL import Image

from eulerlora_contract.image_formats import JPEG_START, PROGRESSIVE, START_OF_SCAN, jpeg_segments

_SEQUENTIAL = (0xC0, 0xC1)
_HUFFMAN_TABLES, _RESTART_INTERVAL = 0xC4, 0xDD
_RESTART = re.compile(rb"\xff+([\xd0-\xd7])")
_FIRST_RESTART, _RESTARTS = 0xD0, 8
_AC_TABLE = 0x10
_LAST_COEFFICIENT = 63
_END_OF_BLOCK, _NO_CODE = 1000, 100
"""Numbers of coefficients to advance by, which lead behind the last one."""
_PADDING_BYTES = 8

_Words = memoryview
"""The 32 bits from every byte on."""
_WINDOW = 16
"""Bits of the longest code."""
_Codes = npt.NDArray[np.int64]
"""By the next 16 bits: length of the first code, plus 256 times its value; 0 for no code."""
_Steps = Sequence[int]
"""By the next 16 bits: length of the first code with the bits of its coefficient, plus 256 times
the number of coefficients to advance by.
"""


@dataclass(frozen=True)
class _Component:
    """The number of blocks in an MCU, and in a scan of this component alone.

    Of a progressive frame, `nonzero` has the coefficients so far of every block, as bits, and
    `missing_bits` their lowest bits that are not in a scan yet.
    """

    blocks_per_mcu: int
    blocks: int
    nonzero: list[int]
    missing_bits: dict[int, int]


@dataclass(frozen=True)
class _Frame:
    is_progressive: bool
    components: Mapping[int, _Component]
    mcus: int


@dataclass(frozen=True)
class _Scan:
    """The number of blocks, and a reader: (words, first block, last block) -> their ends in bits.

    The last block is not included; a reader may continue behind it.
    """

    mcus: int
    blocks_per_mcu: int
    read: Callable[[_Words, int, int], Iterator[int]]


def without_stray_bytes(jpeg: bytes) -> bytes:
    """Removes what is behind the last block of a scan or restart interval, without any effect.

    Raises:
        ValueError: A block is missing or damaged, or further blocks are behind the last one: damage
            has changed their number.
    """
    frame, restart_interval, tables = None, 0, dict[int, _Codes]()
    parts = [JPEG_START]
    try:
        for segment in jpeg_segments(jpeg):
            payload = jpeg[segment.start + 2 : segment.end]
            parts.append(jpeg[segment.start - 2 : segment.end])
            if segment.marker in (*_SEQUENTIAL, PROGRESSIVE):
                frame = _frame(payload, segment.marker == PROGRESSIVE)
            elif segment.marker == _HUFFMAN_TABLES:
                tables.update(_huffman_tables(payload))
            elif segment.marker == _RESTART_INTERVAL:
                restart_interval = int.from_bytes(payload)
            elif segment.marker == START_OF_SCAN and frame is not None:
                scan = _scan(payload, frame, tables or _standard_tables())
                data = jpeg[segment.end : segment.scan_end]
                parts.append(_blocks(data, scan, restart_interval))
    except (IndexError, KeyError, ValueError) as error:  # also the end of data, a missing table
        raise ValueError("the scans of the JPEG are damaged or incomplete") from error
    return b"".join(parts)


def _blocks(data: bytes, scan: _Scan, restart_interval: int) -> bytes:
    """The data of a scan without stray bytes. Raises ValueError and IndexError."""
    parts = _RESTART.split(data)
    intervals, markers = parts[::2], b"".join(parts[1::2])
    mcus = restart_interval or scan.mcus
    expected = math.ceil(scan.mcus / mcus)
    if len(intervals) == expected + 1 and not intervals[-1]:  # a marker behind the last block
        intervals, markers = intervals[:-1], markers[:-1]
    numbers = bytes(_FIRST_RESTART + number % _RESTARTS for number in range(expected - 1))
    if len(intervals) != expected or markers != numbers:
        raise ValueError("a restart interval is missing")
    whole = bytearray()
    for number, interval in enumerate(intervals):
        first = number * mcus * scan.blocks_per_mcu
        last = min((number + 1) * mcus, scan.mcus) * scan.blocks_per_mcu
        whole += _interval(interval, scan, first, last)
        whole += b"\xff" + markers[number : number + 1] if number < len(markers) else b""
    return bytes(whole)


def _interval(data: bytes, scan: _Scan, first: int, last: int) -> bytes:
    """The bytes of some blocks. Raises ValueError and IndexError."""
    coded = data.rstrip(b"\xff")  # fill bytes before a marker; in the data a zero would follow
    plain = coded.replace(b"\xff\0", b"\xff")
    octets = np.frombuffer(plain + bytes(_PADDING_BYTES), np.uint8).astype(np.uint32)
    words = octets[:-3] << 24 | octets[1:-2] << 16 | octets[2:-1] << 8 | octets[3:]
    ends = scan.read(words.data, first, last)
    position = next(islice(ends, last - first - 1, None))
    length = math.ceil(position / 8)
    blocks = plain[:length].replace(b"\xff", b"\xff\0")
    if length > len(plain) or not coded.startswith(blocks):
        raise ValueError("blocks are missing")
    if length < len(plain) and not (
        _is_padded(plain, position, [0, 1])  # some encoders write zeros
        and _are_stray(plain, ends)
    ):
        raise ValueError("there are more blocks than in the header")
    return blocks


def _is_padded(data: bytes, position: int, bits: Sequence[int]) -> bool:
    """True if the rest of the byte at a position in bits has only zeros or only ones."""
    mask = (1 << -position % 8) - 1
    return not mask or data[position // 8] & mask in [mask * bit for bit in bits]


def _are_stray(data: bytes, ends: Iterator[int]) -> bool:
    """False if the data is blocks to its end, with a padding of 1-bits (T.81, F.1.2.3)."""
    try:
        for position in ends:
            if position > 8 * len(data) - 8:
                return position > 8 * len(data) or not _is_padded(data, position, [1])
    except (IndexError, ValueError):
        pass
    return True


def _frame(payload: bytes, is_progressive: bool) -> _Frame:
    """T.81, A.2 and B.2.2."""
    height, width = int.from_bytes(payload[1:3]), int.from_bytes(payload[3:5])
    entries = [payload[at : at + 2] for at in range(6, 6 + 3 * payload[5], 3)]
    factors = {number: (sampling >> 4, sampling & 15) for number, sampling in entries}
    if not all(1 <= factor <= 4 for pair in factors.values() for factor in pair):
        raise ValueError("a sampling factor is not one of 1 to 4")
    most_h, most_v = (max(values) for values in zip(*factors.values(), strict=True))
    components = {}
    for number, (h, v) in factors.items():
        blocks = math.ceil(math.ceil(width * h / most_h) / 8)
        blocks *= math.ceil(math.ceil(height * v / most_v) / 8)
        components[number] = _Component(h * v, blocks, [0] * (blocks if is_progressive else 0), {})
    mcus = math.ceil(width / (8 * most_h)) * math.ceil(height / (8 * most_v))
    return _Frame(is_progressive, components, mcus)


def _huffman_tables(payload: bytes) -> Iterator[tuple[int, _Codes]]:
    """Yields class and number in one byte, and the codes (T.81, B.2.4.2 and C.2)."""
    while payload:
        counts = payload[1:17]
        end = 17 + sum(counts)
        lengths = np.repeat(np.arange(1, 1 + _WINDOW), list(counts))
        entries = lengths + 256 * np.frombuffer(payload[17:end], np.uint8).astype(np.int64)
        codes = np.repeat(entries, 1 << (_WINDOW - lengths))[: 1 << _WINDOW]
        yield payload[0], np.pad(codes, (0, (1 << _WINDOW) - len(codes)))
        payload = payload[end:]


@cache
def _standard_tables() -> Mapping[int, _Codes]:
    """The tables of files without any, such as frames of Motion JPEG (T.81, K.3)."""
    file = BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    jpeg = file.getvalue()
    return {
        number: codes
        for segment in jpeg_segments(jpeg)
        if segment.marker == _HUFFMAN_TABLES
        for number, codes in _huffman_tables(jpeg[segment.start + 2 : segment.end])
    }


def _scan(payload: bytes, frame: _Frame, tables: Mapping[int, _Codes]) -> _Scan:
    """T.81, B.2.3 and G.1.1.1."""
    end = 1 + 2 * payload[0]
    start, stop, bits = payload[end : end + 3]
    is_refinement = frame.is_progressive and bits >> 4 > 0
    entries = [
        (frame.components[payload[at]], *divmod(payload[at + 1], 16)) for at in range(1, end, 2)
    ]
    component, _, ac_number = entries[0]
    if frame.is_progressive:
        for part, _, _ in entries:
            if any(part.missing_bits.get(at, 0) != bits >> 4 for at in range(start, stop + 1)):
                raise ValueError("a scan is missing")
            part.missing_bits.update(dict.fromkeys(range(start, stop + 1), bits & 15))
    if frame.is_progressive and start > 0:
        reader = _refined_coefficients if is_refinement else _first_coefficients
        codes, band = tables[_AC_TABLE | ac_number].tolist(), range(start, stop + 1)
        return _Scan(component.blocks, 1, partial(reader, codes, band, component.nonzero))
    is_interleaved = len(entries) > 1
    steps = list[tuple[_Steps, _Steps]]()
    for part, dc_number, ac_number in entries:
        dc: _Steps = []
        ac: _Steps = []
        if not is_refinement:
            dc, ac = _dc_steps(tables[dc_number]), [256 * _END_OF_BLOCK] * (1 << _WINDOW)
        if not frame.is_progressive:
            ac = _ac_steps(tables[_AC_TABLE | ac_number])
        steps += [(dc, ac)] * (part.blocks_per_mcu if is_interleaved else 1)
    mcus = frame.mcus if is_interleaved else component.blocks
    return _Scan(mcus, len(steps), _refined_dc if is_refinement else partial(_whole_blocks, steps))


def _dc_steps(codes: _Codes) -> _Steps:
    """T.81, F.1.2.1."""
    return list(np.where(codes > 0, (codes & 0xFF) + (codes >> 8), 256 * _NO_CODE).tolist())


def _ac_steps(codes: _Codes) -> _Steps:
    """T.81, F.1.2.2."""
    lengths, runs, sizes = codes & 0xFF, codes >> 12, codes >> 8 & 15
    advance = np.where(sizes > 0, runs + 1, np.where(runs == 15, 16, _END_OF_BLOCK))
    steps = np.where(codes > 0, lengths + sizes + 256 * advance, 256 * _NO_CODE)
    return list(steps.tolist())


def _whole_blocks(
    steps: Sequence[tuple[_Steps, _Steps]], words: _Words, _first: int, _last: int
) -> Iterator[int]:
    """Of a sequential scan, or the DC coefficients of a progressive one; endless."""
    position = 0
    for dc, ac in cycle(steps):
        step = dc[words[position >> 3] >> (16 - (position & 7)) & 0xFFFF]
        position += step & 0xFF
        coefficient = step >> 8
        while coefficient < _LAST_COEFFICIENT:
            step = ac[words[position >> 3] >> (16 - (position & 7)) & 0xFFFF]
            position += step & 0xFF
            coefficient += step >> 8
        if _LAST_COEFFICIENT < coefficient < _END_OF_BLOCK:
            raise ValueError("a code does not exist")
        yield position


def _refined_dc(_words: _Words, _first: int, _last: int) -> Iterator[int]:
    """One bit for each block (T.81, G.1.2.1.1); endless."""
    return count(1)


def _first_coefficients(
    codes: _Codes, band: range, nonzero: list[int], words: _Words, first: int, last: int
) -> Iterator[int]:
    """T.81, G.1.2.2."""
    position = run_of_blocks = 0
    for block in range(first, last):
        if run_of_blocks:
            run_of_blocks -= 1
            yield position
            continue
        coefficient = band.start
        while coefficient < band.stop:
            code = codes[words[position >> 3] >> (16 - (position & 7)) & 0xFFFF]
            position += code & 0xFF
            run, size = code >> 12, code >> 8 & 15
            if not code:
                raise ValueError("a code does not exist")
            if size:
                coefficient += run
                position += size
                nonzero[block] |= 1 << coefficient
            elif run < 15:
                run_of_blocks = _run_of_blocks(words, position, run) - 1
                position += run
                break
            else:
                coefficient += 15
            coefficient += 1
        if coefficient > band.stop or block + run_of_blocks >= last:
            raise ValueError("coefficients are outside of the block or band")
        yield position


def _refined_coefficients(
    codes: _Codes, band: range, nonzero: list[int], words: _Words, first: int, last: int
) -> Iterator[int]:
    """T.81, G.1.2.3."""
    position = run_of_blocks = 0
    for block in range(first, last):
        known, coefficient = nonzero[block], band.start
        while not run_of_blocks and coefficient < band.stop:
            code = codes[words[position >> 3] >> (16 - (position & 7)) & 0xFFFF]
            position += code & 0xFF
            run, size = code >> 12, code >> 8 & 15
            if not code or size > 1:
                raise ValueError("a code does not exist")
            if not size and run < 15:
                run_of_blocks = _run_of_blocks(words, position, run)
                position += run
                break
            position += size
            while coefficient < band.stop and (known >> coefficient & 1 or run):
                if known >> coefficient & 1:
                    position += 1
                else:
                    run -= 1
                coefficient += 1
            if size:
                nonzero[block] |= 1 << coefficient
            coefficient += 1
        if run_of_blocks:
            rest = known >> coefficient & (1 << (band.stop - coefficient)) - 1
            position += rest.bit_count()
            run_of_blocks -= 1
        if coefficient > band.stop or block + run_of_blocks >= last:
            raise ValueError("coefficients are outside of the block or band")
        yield position


def _run_of_blocks(words: _Words, position: int, bits: int) -> int:
    """The length of a run of blocks without further coefficients (T.81, G.1.2.2)."""
    following = words[position >> 3] >> (16 - (position & 7)) & 0xFFFF
    return (1 << bits) + (int(following) >> (16 - bits))
