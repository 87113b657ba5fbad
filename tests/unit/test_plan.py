"""Plans and what follows from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from build.catalog import CatalogError, load_catalog
from build.plan import Plan, Ports, make_plan, share
from gateway.windows import LONGEST, cut
from scripts.local import nginx_binary
from scripts.render import pools, write_nginx

PORTS = Ports(http=8100, grpc=8200, metrics=8300)


def plan(count: int, *ids: str) -> Plan:
    catalog = load_catalog()
    return make_plan([catalog[name] for name in ids], count, [Path("/x")] * len(ids), [0, 1], PORTS)


def test_instances_take_turns(tmp_path: Path) -> None:
    """Instance i serves model i mod n; CPUs are disjoint; the file says the same."""
    made = plan(3, "mini-whisper", "random-base")
    assert made.pools == {"mini-whisper": (0, 2), "random-base": (1,)}
    assert [instance.http for instance in made.instances] == [8100, 8101, 8102]
    made.save(tmp_path / "deployment.json")
    assert Plan.load(tmp_path / "deployment.json") == made


@pytest.mark.parametrize(("count", "shares"), [(1, [(0, 1, 2, 3)]), (2, [(0, 1), (2, 3)]), (3, [(0,), (1,), (2, 3)]), (5, [(0,), (1,), (2,), (3,), (0,)])])
def test_cpus_are_shared_out(count: int, shares: list[tuple[int, ...]]) -> None:
    """Disjoint as long as there are enough."""
    assert share([0, 1, 2, 3], count) == shares


def test_too_few_instances() -> None:
    """Refused with the number that would do."""
    with pytest.raises(CatalogError, match="set INSTANCES=2 or more"):
        plan(1, "mini-whisper", "random-base")


@pytest.mark.parametrize("down", [(), (0,)])
def test_nginx_accepts_the_rendered_files(tmp_path: Path, down: tuple[int, ...]) -> None:
    """nginx -t, with two pools, and with an instance taken out."""
    (tmp_path / "run").mkdir()
    values = {
        "CONCH_NGINX_USER": "", "CONCH_RUN": f"{tmp_path}/run", "CONCH_CONF": str(tmp_path), "CONCH_LISTEN": "127.0.0.1", "CONCH_INTERNAL_LISTEN": "127.0.0.1",
        "CONCH_PORT": "9001", "CONCH_KSERVE_PORT": "9002", "CONCH_GRPC_PORT": "9003", "CONCH_INTERNAL_PORT": "9004", "CONCH_MAX_BODY": "1m",
    }  # fmt: skip
    text = pools(plan(3, "mini-whisper", "random-base"), "127.0.0.1:9005", down)
    assert ("127.0.0.1:8100 down" in text) is bool(down)
    main = write_nginx(tmp_path, values, text)
    assert "${" not in main.read_text()
    done = subprocess.run([nginx_binary(), "-t", "-c", main, "-p", tmp_path, "-e", "stderr"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_windows_are_cut_at_pauses() -> None:
    """Every window fits, nothing is lost, and cuts fall where it is quiet."""
    random = np.random.default_rng(0)
    wave = random.standard_normal(100 * 16000).astype(np.float32)
    for second in range(3, 100, 7):
        wave[second * 16000 : second * 16000 + 6400] *= 0.001
    windows = cut(wave)
    assert np.array_equal(np.concatenate([window.wave for window in windows]), wave)
    assert all(len(window.wave) <= LONGEST for window in windows)
    for window in windows[1:]:
        assert 0.1 < (window.start - 3) % 7 < 0.3
    assert [len(cut(np.zeros(n, np.float32))) for n in (0, 1, LONGEST, LONGEST + 1)] == [1, 1, 1, 2]
