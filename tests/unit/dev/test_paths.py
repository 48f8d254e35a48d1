"""Folders of the embedded servers: file system errors are reported in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fencepost.dev.paths import default_cache_dir, default_data_dir
from fencepost.dev.shared_server import explain_permission_errors
from fencepost.errors import EmbeddedError, SettingError
from fencepost.settings import load


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOTDIR, errno.ENOSPC, errno.EACCES])
def test_a_file_system_error_names_the_folder(number: int) -> None:
    with (
        pytest.raises(EmbeddedError, match="/data/postgres") as caught,
        explain_permission_errors(Path("/data"), name="PostgreSQL"),
    ):
        raise OSError(number, os.strerror(number), "/data/postgres")
    assert "folder" in str(caught.value)


def test_a_user_without_a_home_learns_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(homeless))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for folder in (default_data_dir, default_cache_dir):
        with pytest.raises(EmbeddedError, match="HOME"):
            folder()
    with pytest.raises(SettingError, match="HOME"):
        load(environ={"FENCEPOST_EMBEDDED_DATA_DIR": "~/data"})
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/fencepost")
