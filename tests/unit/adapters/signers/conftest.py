"""Keystores and password files."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.adapters.signers.key_material import (
    PASSWORD,
    private_file,
)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    return private_file(tmp_path / "password", f"{PASSWORD}\n")


@pytest.fixture
def open_password_file(password_file: Path) -> Path:
    password_file.chmod(0o644)
    return password_file


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "keystores"
    path.mkdir()
    return path
