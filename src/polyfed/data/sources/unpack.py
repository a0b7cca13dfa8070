"""Archives opened without letting them write outside their folder, and files put in place whole."""

import hashlib
import os
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from polyfed.errors import DataError


def unpack(archive: Path, into: Path) -> None:
    """Write the files of a tar or zip archive, and of zip files at the top of a zip file, under `into`."""
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, into)
            for inner in list(into.glob("*.zip")):  # UCI packs a zip in a zip
                _unzip(inner, into)
                inner.unlink()
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(into, filter="data")
    except tarfile.FilterError as error:
        raise DataError(f"{archive} would write outside its folder and was not unpacked: {error}") from None
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is damaged and cannot be unpacked: {error}") from None


def _unzip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.namelist():
            parts = PurePosixPath(member.replace("\\", "/"))
            if parts.is_absolute() or ".." in parts.parts:
                raise DataError(f"{archive} would write outside its folder and was not unpacked: {member}")
        file.extractall(into)


def install(made: Path, home: Path) -> None:
    """Move every file under `made` to the same place under `home`; each appears there whole or not at all."""
    for file in sorted(path for path in made.rglob("*") if path.is_file()):
        target = home / file.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)


def check(file: Path, md5: str | None, said: str) -> None:
    """Delete a file whose content is not what its publisher says, and tell."""
    found = digest(file)
    if md5 is not None and found != md5:
        file.unlink()
        raise DataError(f"{said} has the checksum {found}, expected {md5}; it was deleted, try again")


def digest(file: Path) -> str:
    """The md5 of a file: data sets publish no better one."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
