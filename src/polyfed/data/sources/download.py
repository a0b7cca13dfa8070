"""One file from the network: resumed where it broke off, checked, and only then given its name."""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from polyfed.data.sources.unpack import check, digest
from polyfed.errors import DataError

TRIES = 4
PATIENCE = 20  # seconds without a byte
CHUNK = 1 << 18


def download(url: str, target: Path, md5: str | None, show: bool) -> None:
    """Bring url to target by way of `target.part`; a transfer that broke off goes on where it was."""
    if target.exists() and md5 is not None and digest(target) == md5:
        return
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(TRIES):
        before = _size(part)
        try:
            _receive(url, part, show)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES - 1 or _size(part) <= before:  # nothing came: trying again at once would not help
                raise DataError(f"{url} could not be downloaded ({_reason(error)})") from None
    check(part, md5, url)
    os.replace(part, target)


def _receive(url: str, part: Path, show: bool) -> None:
    """Append what is missing, or start over if the server cannot go on from the middle."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing; the checksum will tell whether that is so
            return
        raise
    with answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        _write(answer, part, start, total, show)
    if total is not None and _size(part) < total:
        raise ConnectionError(f"the transfer broke off after {_size(part)} of {total} bytes")


def _write(answer: http.client.HTTPResponse, part: Path, start: int, total: int | None, show: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with (
        part.open("ab" if start else "wb") as file,
        Progress(*columns, console=Console(stderr=True), disable=not show) as progress,
    ):
        task = progress.add_task(part.stem, total=total, completed=start)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            progress.advance(task, len(chunk))
        file.flush()
        os.fsync(file.fileno())


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(reason) or type(error).__name__
