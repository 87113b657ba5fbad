"""Who may use the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.key_files import NoKeys, load_keys
from gateway.keys import allowed
from ops.local import LocalError, access_policy


def test_keys_are_lines_of_a_file(tmp_path: Path) -> None:
    """Each of which opens. Comments and blank lines do not count; no file or an empty one means no keys."""
    file = tmp_path / "keys"
    file.write_text("# staff\n one \n\ntwo\n", "utf-8")
    keys = load_keys(file)
    assert keys == (b"one", b"two")
    assert allowed(keys, "Bearer one") and allowed(keys, "Bearer two")
    assert load_keys(None) == load_keys(tmp_path / "missing") == load_keys(Path("/dev/null")) == ()


def test_a_required_file_without_keys_is_refused(tmp_path: Path) -> None:
    """An empty file must not disable authentication."""
    (tmp_path / "keys").write_text("# none yet\n", "utf-8")
    with pytest.raises(NoKeys, match="contains no key"):
        load_keys(tmp_path / "keys", required=True)


@pytest.mark.parametrize(
    "header",
    [
        *["", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "bearer one"],
        *["Bearer  one", "Bearer one ", " Bearer one", "Bearer\tone", "Bearer one\t", "Bearer one\x0b"],
        *["Bearer \u00fc", "Bearer \udcff", "Bearer \u00f6ne"],
    ],
)
def test_nothing_but_a_key_opens(header: str) -> None:
    """Whatever bytes a header brings: it is refused, and nothing breaks. Without keys everybody may."""
    assert not allowed((b"one", b"two"), header)
    assert allowed((), header)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("API_KEYS_FILE", "/nowhere/keys", "contains no key"),
        ("ADMIN_KEYS_FILE", "/nowhere/keys", "contains no key"),
        ("RATE_LIMIT", "often", "10r/s"),
    ],
)
def test_process_mode_does_not_start_with_open_doors(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    """A mistyped file or rate is told before anything listens."""
    monkeypatch.setenv(name, value)
    with pytest.raises(LocalError, match=says):
        access_policy()
