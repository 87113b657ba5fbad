"""The environment's proxies: for downloads, in whatever form they are written."""

from __future__ import annotations

import os

import httpx
import pytest

from conch import proxies

FORMS = [
    *["localhost,127.0.0.1", "*", "::1", "[::1]", "[::1]:8080", "fe80::/10", "10.0.0.0/8", "*.local,.local"],
    *["127.0.0.1:*", "host:port", "ä.de", "2001:db8::1/64", "a b", " ,, ", "<local>", "http://a", "ä" * 80],
]


@pytest.mark.parametrize("value", FORMS)
def test_no_proxy_in_any_spelling_is_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NO_PROXY", value)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    os.environ.update(proxies.legible(os.environ))
    httpx.Client().close()


def test_names_that_are_readable_stay() -> None:
    kept = proxies.legible({"NO_PROXY": "localhost, .corp.example:8080,[::1],10.0.0.0/8", "A": "b"})
    assert kept == {"NO_PROXY": "localhost,.corp.example:8080,::1,10.0.0.0/8"}


@pytest.mark.parametrize(
    "value", ["http://proxy:3128", "proxy:3128", "socks5://a:1", "http://u:p@h:1/", "", "[::1]:3128"]
)
def test_addresses_of_proxies(value: str) -> None:
    proxies.check({"HTTPS_PROXY": value})


@pytest.mark.parametrize("value", ["foo bar", "http://[::1", "://", "ftp://x", "http://h:99999"])
def test_what_is_no_address_is_named(value: str) -> None:
    with pytest.raises(ValueError, match="https_proxy=.* is not the address of a proxy"):
        proxies.check({"https_proxy": value})


def test_processes_that_download_nothing_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxies.without({"HTTP_PROXY": "a", "no_proxy": "b", "PATH": "c"}) == {"PATH": "c"}
    monkeypatch.setenv("ALL_PROXY", "socks5://a")
    proxies.forget()
    assert "ALL_PROXY" not in os.environ
