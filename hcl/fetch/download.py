"""Downloads that resume, are verified, and are never taken for whole when they are not."""

from __future__ import annotations

import errno
import http.client
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcl.errors import HCLError
from hcl.files import sha256_of
from hcl.progress import bar

_CHUNK = 1 << 18  # bytes


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with the size and checksum that it is known to have."""

    url: str
    size: int  # bytes
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


class _Interrupted(Exception):
    """The transfer broke off; what came so far is good, as far as anyone knows."""


class _Refused(Exception):
    """The server does not have the file that we know."""


def download(
    remote: RemoteFile, folder: str | Path, *, by_hand: str, attempts: int = 3, timeout: float = 30
) -> Path:
    """The verified file in ``folder``, downloaded if it is not there yet.

    What has come is kept in ``<name>.part`` and continued by the next attempt or the next run; it
    gets its own name once size and checksum are right. One with the wrong checksum is removed.

    Args:
        remote: what to get.
        folder: where to put it.
        by_hand: for messages: how the user can do without the download.
        attempts: connections to try when a transfer breaks off.
        timeout: seconds of silence after which a connection counts as broken.
    """
    folder = Path(folder)
    target = folder / remote.name
    if target.is_file():
        if target.stat().st_size != remote.size or sha256_of(target) != remote.sha256:
            raise HCLError(
                f"{target}: not the file that {remote.url} is known to be "
                f"({target.stat().st_size} bytes, expected {remote.size}; or another SHA-256). "
                "Remove it and run again."
            )
        return target
    part = folder / f"{remote.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(attempts):
            before = _size(part)
            try:
                _transfer(remote, part, timeout)
                break
            except _Interrupted:
                if attempt + 1 == attempts or _size(part) == before:
                    raise
        _verify(remote, part)
        part.replace(target)
    except (_Interrupted, OSError) as error:
        kept = _size(part)
        hint = f" The first {kept} bytes are kept; the next run continues there." if kept else ""
        raise HCLError(f"{remote.url}: {_reason(error, part)}.{hint} {by_hand}") from error
    except _Refused as error:
        raise HCLError(f"{remote.url}: {error}. {by_hand}") from error
    return target


def _transfer(remote: RemoteFile, part: Path, timeout: float) -> None:
    """Fetch what is missing of ``part``; raises unless it then has its full size."""
    have = _size(part)
    if have > remote.size:
        part.unlink()
        have = 0
    if have == remote.size:
        return
    try:
        response = _open(remote.url, have, timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                raise _start_afresh(part) from error
            raise _Refused(f"the server answers {error.code} {error.reason}") from error
    with response:
        start = _start_of(remote, response)
        if start != have:
            if start != 0:
                raise _start_afresh(part)
            have = 0  # the server does not do ranges and sends the whole file
        with (
            open(part, "ab" if have else "wb") as file,
            bar(
                total=remote.size, initial=have, desc=remote.name, unit="B", unit_scale=True
            ) as shown,
        ):
            while have < remote.size:
                try:
                    data = response.read1(min(_CHUNK, remote.size - have))
                except (OSError, http.client.HTTPException) as error:
                    raise _Interrupted(f"the connection broke off ({error})") from error
                if not data:
                    raise _Interrupted(f"the download ended after {have} of {remote.size} bytes")
                file.write(data)
                have += len(data)
                shown.update(len(data))


def _open(url: str, start: int, timeout: float) -> Any:
    # identity: a server that compresses on the fly would change size and checksum
    headers = {"User-Agent": "hcl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise _Interrupted(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(f"no answer ({error or type(error).__name__})") from error


def _start_of(remote: RemoteFile, response: Any) -> int:
    """The position of the answer's first byte in the file, whose size is checked."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        start, total = (int(sent[1]), sent[2]) if sent else (-1, "*")
    else:
        start, total = 0, response.headers.get("Content-Length") or "*"
    if total.isdigit() and int(total) != remote.size:
        raise _Refused(f"the server's file has {total} bytes, expected {remote.size}")
    return start


def _start_afresh(part: Path) -> _Interrupted:
    part.unlink(missing_ok=True)
    return _Interrupted("the server can't continue the download")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _verify(remote: RemoteFile, part: Path) -> None:
    digest = sha256_of(part)
    if digest != remote.sha256:
        part.unlink()
        raise _Refused(f"the download has SHA-256 {digest}, expected {remote.sha256}; removed")


def _reason(error: Exception, part: Path) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({part.parent}); make room and run again"
    if isinstance(error, OSError):
        return f"cannot be saved as {part} ({error})"
    return str(error)
