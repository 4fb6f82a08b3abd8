"""Reports of answers that a client sends back: written in a process of their own, one at a time."""

import asyncio
import math
import sys
from asyncio.subprocess import PIPE, Process

from fastapi import Request

from eulerlora_client.contract.problems import (
    BodyTooLarge,
    DeadlinePassed,
    MalformedBody,
    Overloaded,
    UnsupportedMedia,
)
from eulerlora_client.contract.queries import ReportFormat
from eulerlora_client.policy.policy import Policy
from eulerlora_client.report import submitted
from eulerlora_client.report.submitted import INVALID_REQUEST, ReportJob
from service.http.disconnect import while_connected
from service.scheduling.clients import client_of
from service.settings import ServiceSettings

MEDIA_TYPE = "application/json"
MAX_WAITING = 8
RETRY_AFTER_S = 2.0


class ReportWriter:
    """Writes reports, each in a new process, so that predictions do not wait for them.

    policy: that of the service. A client may have one report at a time.
    """

    def __init__(self, policy: Policy, settings: ServiceSettings) -> None:
        self._policy = policy
        self._deadline_s = settings.deadline_s
        self._turn = asyncio.Lock()
        self._clients: set[str] = set()

    async def report(self, request: Request, report_format: ReportFormat) -> bytes:
        """Returns the report of the request's body, a `ReportRequest` in JSON.

        Raises Problem and ClientDisconnect.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != MEDIA_TYPE:
            raise UnsupportedMedia(f"expected the content type {MEDIA_TYPE}")
        content = await request.body()
        client = client_of(request.scope)
        if client in self._clients or len(self._clients) == MAX_WAITING:
            raise Overloaded("other reports are being written", RETRY_AFTER_S)
        self._clients.add(client)
        try:
            async with while_connected(request), asyncio.timeout(self._deadline_s), self._turn:
                return await self._written(content, report_format)
        except TimeoutError as error:
            raise DeadlinePassed("the report was not written by the deadline") from error
        finally:
            self._clients.discard(client)

    async def _written(self, content: bytes, report_format: ReportFormat) -> bytes:
        cpu_s = math.ceil(self._deadline_s)
        job = ReportJob(format=report_format, policy=self._policy, cpu_s=cpu_s)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            submitted.__name__,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # an interrupt from the terminal ends the service, not it
        )
        try:
            sent = job.model_dump_json().encode() + b"\n" + content
            report, reason = await process.communicate(sent)
        finally:
            _end(process)
        if process.returncode == INVALID_REQUEST:
            raise MalformedBody(reason.decode())
        if process.returncode != 0:  # ended by a limit on its resources
            raise BodyTooLarge("the report takes too much time or memory; expected fewer images")
        return report


def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
