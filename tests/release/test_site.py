"""An environment for packages and images: nothing in it tells where or when it was made."""

from pathlib import Path

from release.site import _forget_removed


def test_removed_files_leave_no_digest_behind(tmp_path: Path) -> None:
    """The wheel's path is in direct_url.json, so its digest would differ from build to build."""
    about = tmp_path / "ingero-1.dist-info"
    about.mkdir()
    (tmp_path / "ingero").mkdir()
    (tmp_path / "ingero" / "a,b.py").touch()
    kept = ['"ingero/a,b.py",sha256=x,0', "ingero-1.dist-info/RECORD,,"]
    gone = ["ingero-1.dist-info/direct_url.json,sha256=y,9", "../../bin/ingero,sha256=z,1"]
    (about / "RECORD").write_text("\n".join([kept[0], *gone, kept[1], ""]))
    _forget_removed(tmp_path)
    assert (about / "RECORD").read_text().splitlines() == kept
