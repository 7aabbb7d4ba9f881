"""Downloads over https, checked as a whole before anything is written."""

import http.client
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from urllib.error import HTTPError

from bilevel.atomic_files import write

from .files import DataError

BLOCK = 64 * 1024
LARGEST = 64 * 1024 * 1024
PATIENCE_SECONDS = 30.0  # without a single byte
DEADLINE_SECONDS = 600.0  # for one file from one address, even if it sends something


def https_only() -> urllib.request.OpenerDirector:
    """Return an opener for https only, also after a redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def download(urls: Sequence[str], destination: Path, check: Callable[[bytes, str], object]) -> None:
    """Store the content of the first of `urls` that passes `check(content, url)` at `destination`.

    `check` raises a `DataError` for other content than expected. `destination` appears complete or not at all.
    """
    failures: list[str] = []
    for url in urls:
        try:
            content = fetch(url)
            check(content, url)
        except DataError as error:
            failures.append(str(error))
            continue
        try:
            write(destination, content)
        except OSError as error:
            raise DataError(
                f"{destination}: cannot be written ({error.strerror or error}); "
                "set BILEVEL_CACHE to a folder that can"
            ) from error
        return
    raise DataError(
        f"{destination.name} could not be downloaded; nothing was stored. {'; '.join(failures)}. "
        "Get the file by other means and name its folder (directory=... or BILEVEL_DATA)."
    )


def fetch(url: str) -> bytes:
    """Return the content at `url`, with a progress bar on a terminal, or raise after `DEADLINE_SECONDS`."""
    from rich import progress as bars
    from rich.console import Console

    screen = Console(stderr=True)
    columns = "{task.description}", bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn()
    drawn = bars.Progress(
        *columns, bars.TimeRemainingColumn(), console=screen, disable=not screen.is_terminal
    )
    transfer, deadline = Transfer(url), time.monotonic() + DEADLINE_SECONDS
    threading.Thread(target=transfer.run, daemon=True).start()
    try:
        with drawn as bar:
            task = bar.add_task(url.rsplit("/", 1)[-1], total=None)
            ended = False
            while not ended:
                ended = bool(wait([transfer.ended], min(0.1, max(0.0, deadline - time.monotonic()))).done)
                bar.update(task, completed=len(transfer.content), total=transfer.announced)
                if not ended and time.monotonic() >= deadline:
                    got = f"with {len(transfer.content)} bytes received"
                    raise DataError(f"{url}: gave up after {DEADLINE_SECONDS:g} seconds, {got}")
    finally:
        transfer.unwanted.set()
    return transfer.ended.result()


class Transfer:
    """Download in a separate thread, so that the caller can stop waiting at any moment.

    The timeout of a socket restarts with every byte, and does not cover the address lookup or the headers.
    """

    def __init__(self, url: str):
        self.url, self.content = url, bytearray()
        self.announced: int | None = None
        self.unwanted = threading.Event()
        self.ended: Future[bytes] = Future()

    def run(self) -> None:
        try:
            self.ended.set_result(self._received())
        except Exception as error:
            self.ended.set_exception(error)

    def _received(self) -> bytes:
        try:
            with https_only().open(self.url, timeout=PATIENCE_SECONDS) as response:
                size = response.headers.get("Content-Length", "")
                self.announced = int(size) if size.isdecimal() else None
                while not self.unwanted.is_set() and (block := response.read1(BLOCK)):
                    self.content += block
                    if len(self.content) > LARGEST:
                        excess = f"sends more than {LARGEST} bytes"
                        raise DataError(f"{self.url}: {excess}; this is not the expected file")
        except HTTPError as error:
            error.close()
            raise DataError(f"{self.url}: the server answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"{self.url}: cannot be fetched ({error})") from error
        if self.announced is not None and len(self.content) != self.announced:
            amount = f"{len(self.content)} of {self.announced} bytes"
            raise DataError(f"{self.url}: the connection ended after {amount}")
        return bytes(self.content)
