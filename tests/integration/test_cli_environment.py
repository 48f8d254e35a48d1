"""Start a node in unsuitable environments: one line says what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

from fixtures.client import run_fencepost

SERVICE_LINKS = {
    "FENCEPOST_PORT": "tcp://10.96.12.7:8420",
    "FENCEPOST_SERVICE_HOST": "10.96.12.7",
    "FENCEPOST_SERVICE_PORT": "8420",
    "FENCEPOST_SERVICE_PORT_HTTP": "8420",
    "FENCEPOST_PORT_8420_TCP": "tcp://10.96.12.7:8420",
    "FENCEPOST_PORT_8420_TCP_PROTO": "tcp",
    "FENCEPOST_PORT_8420_TCP_PORT": "8420",
    "FENCEPOST_PORT_8420_TCP_ADDR": "10.96.12.7",
    "FENCEPOST_API_PORT": "tcp://[fd00::7]:8420",
}


def one_line(errors: str) -> str:
    assert errors.count("\n") == 1, errors
    assert errors.startswith("fencepost: ")
    return errors


async def test_kubernetes_service_variables_are_ignored_with_a_warning(tmp_path: Path) -> None:
    status, out, errors = await run_fencepost("config", env=SERVICE_LINKS, cwd=tmp_path)
    assert status == 0, errors
    assert errors.count("\n") == 1
    assert "FENCEPOST_PORT" in errors
    assert "enableServiceLinks" in errors
    assert "tcp://" not in out


async def test_a_data_folder_below_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "data"):
        env = {"FENCEPOST_EMBEDDED_DATA_DIR": str(folder)}
        status, _, errors = await run_fencepost("up", "--port=0", "--json", env=env, cwd=tmp_path)
        assert status == 2
        assert str(tmp_path / "file") in one_line(errors)
        assert "embedded.data_dir" in errors
