"""Files are written whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gaudi_serve.core.atomic_write import write_whole


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "f"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o600)
    seen: list[tuple[str, str]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((Path(f"/proc/self/fd/{handle}").readlink().name, target.read_text(encoding="utf-8")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(target, "new", 0o640)
    (beside, before), (folder, after) = seen
    assert (beside, before) == (".f.new", "old")
    assert (folder, after) == (tmp_path.name, "new")
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away; make test runs as root")
def test_the_owner_of_a_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.touch()
    os.chown(target, 65534, 65534)
    write_whole(target, "new", 0o600)
    assert (target.stat().st_uid, target.stat().st_gid) == (65534, 65534)


def test_what_cannot_be_written_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        write_whole(tmp_path / "folder", "new", 0o600)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "f").write_text("old", encoding="utf-8")
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "f", "new", 0o600)
    assert (tmp_path / "f").read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "folder"]
