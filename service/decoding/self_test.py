"""The decode of a test image, which readiness depends on."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from io import BytesIO

from PIL import Image

from eulerlora.settings import Preprocessing
from eulerlora_client.contract.problems import Problem
from service.decoding.decode import Declared
from service.decoding.worker import DecodeJob
from service.settings import ImageLimits

SIDE_PX = 1024  # takes as much memory as a small photograph
INPUT = Preprocessing(size=32)

logger = logging.getLogger(__name__)


class SelfTest:
    """Decodes a test image, at the start and while no other image is decoded.

    decode: decodes an image; raises Problem. decoded: the number of images decoded so far.
    timeout_s: of the test image. interval_s: between two test images.
    """

    def __init__(
        self,
        limits: ImageLimits,
        decode: Callable[[DecodeJob], Awaitable[object]],
        decoded: Callable[[], int],
        timeout_s: float,
        interval_s: float,
    ) -> None:
        self._limits = limits
        self._decode = decode
        self._decoded = decoded
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._passed = False

    @property
    def passed(self) -> bool:
        """True if the last test image, or another one at that time, was decoded."""
        return self._passed

    async def run_forever(self) -> None:
        """Runs the test after each interval in which no image was decoded."""
        while True:
            decoded = self._decoded()
            await asyncio.sleep(self._interval_s)
            if self._decoded() == decoded:
                await self.run()

    async def run(self) -> None:
        """Runs the test and logs a change of its result."""
        job = DecodeJob(encoded_image(self._limits), Declared(), INPUT, "")
        decoded, fault = self._decoded(), ""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._decode(job)
        except TimeoutError:
            fault = "no result in time"
        except Problem as problem:
            fault = problem.detail
        had_passed, self._passed = self._passed, self._decoded() > decoded
        if not self._passed:
            logger.error("the image decoder does not work: %s", fault)
        elif not had_passed:
            logger.info("the image decoder works")


def encoded_image(limits: ImageLimits) -> bytes:
    """Returns a PNG of about a megapixel, or of the largest size within the limits."""
    largest = min(SIDE_PX, limits.max_side, math.isqrt(limits.max_pixels))
    side = max(limits.min_side, largest)
    gray = Image.linear_gradient("L").resize((side, side))
    file = BytesIO()
    Image.merge("RGB", (gray, gray.rotate(90), gray.rotate(180))).save(
        file, "PNG", compress_level=1
    )
    return file.getvalue()
