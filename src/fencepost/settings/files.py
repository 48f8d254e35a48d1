"""Find and read `fencepost.toml`, and expand `~/` in paths.

A file that is named explicitly must exist; `./fencepost.toml` is optional. Every problem is a one-line error with the
file's name, and for invalid TOML the line and column.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from fencepost.errors import SettingError

CONFIG_VARIABLE = "FENCEPOST_CONFIG"
_FILE_NAME = "fencepost.toml"
_MAX_FILE_BYTES = 1024 * 1024
_AT = re.compile(r"(.*) \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)", re.DOTALL)


def find_file(toml_path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read: the given path, $FENCEPOST_CONFIG, or ./fencepost.toml if it exists."""
    if toml_path is not None:
        return toml_path
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    here = Path(_FILE_NAME)
    return here if here.exists() else None


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Floats become Decimal, so that a price of 0.1 Gwei is exact."""
    text = _read_text(path)
    try:
        return tomllib.loads(text, parse_float=_decimal)
    except tomllib.TOMLDecodeError as error:
        raise _broken(path, text, str(error)) from None
    except RecursionError:
        raise SettingError(f"{path}: nested too deeply") from None
    except ValueError:
        # Python does not convert integers of thousands of digits, and tomllib does not wrap that error.
        raise SettingError(f"{path}: a number has too many digits") from None


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """Replace a leading `~` by the home directory."""
    if path != "~" and not path.startswith("~/"):
        return path
    return (environ.get("HOME") or _home(path)) + path[1:]


def _home(path: str) -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        raise SettingError(
            f"{path}: this user has no home directory; set HOME, or use an absolute path"
        ) from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingError(f"can't read {path}: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise SettingError(f"can't read {path}: it is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise _broken(path, before, "not UTF-8 (at end of document)") from None


def _broken(path: Path, text: str, message: str) -> SettingError:
    found = _AT.fullmatch(message)
    problem = found[1] if found else message
    if found and found[2]:
        line, column = int(found[2]), int(found[3])
    else:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    return SettingError(f"{path}, line {line}, column {column}: {problem.lower()}")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("Infinity")  # no setting allows it, so the error names the key
