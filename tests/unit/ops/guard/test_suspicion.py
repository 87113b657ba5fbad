"""Which requests are alike, and how long one is suspected."""

from __future__ import annotations

from ops.guard.proxy.suspicion import Suspicion, fingerprint


def test_fingerprints() -> None:
    """Of all parts and the model; of long parts the ends and the length."""
    assert (
        fingerprint("m", [b"ab", b"c"]) != fingerprint("m", [b"a", b"bc"]) != fingerprint("n", [b"a", b"bc"])
    )
    long = bytes(300_000)
    assert fingerprint("m", [long]) != fingerprint("m", [long + b"\0"])
    assert fingerprint("m", [long]) != fingerprint("m", [b"\1" + long[1:]])


def test_suspicion_forgets() -> None:
    found = Suspicion()
    found.refuse("a", 0.01)
    assert found.refused("a")
    assert not found.innocent("a")
    found.clear("a")
    assert not found.refused("a")
    assert found.innocent("a")
