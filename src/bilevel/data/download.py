"""Downloads over https, checked as a whole before anything is written."""

import http.client
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import HTTPError

from bilevel.atomic_files import write

from .errors import DataError

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
    with transfer, drawn as bar:
        task = bar.add_task(url.rsplit("/", 1)[-1], total=None)
        ended = False
        while not ended:
            ended = transfer.ended.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            bar.update(task, completed=len(transfer.content), total=transfer.announced)
            if not ended and time.monotonic() >= deadline:
                raise DataError(
                    f"{url}: gave up after {DEADLINE_SECONDS:g} seconds, with {len(transfer.content)} bytes received"
                )
    return transfer.result()


class Transfer:
    """Download in a separate thread, so that the caller can stop waiting at any moment.

    The timeout of a socket restarts with every byte, and does not cover the address lookup or the headers.
    """

    def __init__(self, url: str):
        self.url, self.content = url, bytearray()
        self.announced: int | None = None
        self.ended, self._unwanted = threading.Event(), threading.Event()
        self._error: Exception | None = None

    def __enter__(self) -> "Transfer":
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._unwanted.set()

    def result(self) -> bytes:
        """Return the content after the end, or raise the error of the thread."""
        match self._error:
            case None:
                return bytes(self.content)
            case HTTPError(code=code, reason=reason):
                raise DataError(f"{self.url}: the server answers {code} {reason}") from self._error
            case OSError() | http.client.HTTPException():
                raise DataError(f"{self.url}: cannot be fetched ({self._error})") from self._error
            case _:
                raise self._error

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:
            if isinstance(error, HTTPError):
                error.close()
            self._error = error
        finally:
            self.ended.set()

    def _receive(self) -> None:
        with https_only().open(self.url, timeout=PATIENCE_SECONDS) as response:
            size = response.headers.get("Content-Length", "")
            self.announced = int(size) if size.isdecimal() else None
            while not self._unwanted.is_set() and (block := response.read1(BLOCK)):
                self.content += block
                if len(self.content) > LARGEST:
                    raise DataError(
                        f"{self.url}: sends more than {LARGEST} bytes; this is not the expected file"
                    )
        if self.announced is not None and len(self.content) != self.announced:
            raise DataError(
                f"{self.url}: the connection ended after {len(self.content)} of {self.announced} bytes"
            )
