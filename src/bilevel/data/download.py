"""Downloads: over https only, checked as a whole before anything is written."""

import http.client
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import HTTPError

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .errors import DataError
from .files import write_atomically

BLOCK = 64 * 1024
LARGEST = 64 * 1024 * 1024
PATIENCE_SECONDS = 30.0


def https_only() -> urllib.request.OpenerDirector:
    """An opener that knows no other scheme than https, so that a redirect cannot leave it either."""
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
    """Fetch the first of `urls` whose content passes `check(content, url)` and store it at `destination`.

    `check` raises `DataError` on anything but the expected content. `destination` appears whole or not at all.
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
            write_atomically(destination, content)
        except OSError as error:
            raise DataError(
                f"{destination}: cannot be written ({error.strerror or error}); "
                "set BILEVEL_CACHE to a folder that can"
            ) from error
        return
    raise DataError(
        f"{destination.name} could not be downloaded; nothing was stored. "
        + "; ".join(failures)
        + ". Get the file by other means and name its folder (directory=... or BILEVEL_DATA)."
    )


def fetch(url: str) -> bytes:
    """The whole content at `url`, with a progress bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with (
            https_only().open(url, timeout=PATIENCE_SECONDS) as response,
            Progress(
                *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
            ) as bar,
        ):
            announced = _announced_size(response.headers.get("Content-Length"))
            task = bar.add_task(url.rsplit("/", 1)[-1], total=announced)
            content = bytearray()
            while block := response.read(BLOCK):
                content += block
                if len(content) > LARGEST:
                    raise DataError(f"{url}: sends more than {LARGEST} bytes; this is not the expected file")
                bar.update(task, completed=len(content))
    except HTTPError as error:
        error.close()
        raise DataError(f"{url}: the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url}: cannot be fetched ({error})") from error
    if announced is not None and len(content) != announced:
        raise DataError(f"{url}: the connection ended after {len(content)} of {announced} bytes")
    return bytes(content)


def _announced_size(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None
