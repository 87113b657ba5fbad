"""Which of OpenBLAS's kernels a processor gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conch import blas

AVX512 = "avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl"
COOPERLAKE = f"{AVX512} avx512_vnni avx512_bf16"
CORE = (
    "import ctypes, os, pathlib, numpy\n"
    "folder = pathlib.Path(numpy.__file__).parents[1] / 'numpy.libs'\n"
    "name = getattr(ctypes.CDLL(str(next(folder.glob('libopenblas*')))), 'openblas_get_corename64_')\n"
    "name.restype = ctypes.c_char_p\n"
    "print(name().decode(), os.environ['OPENBLAS_NUM_THREADS'])\n"
)


def cpuinfo(vendor: str, flags: str) -> str:
    one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel\t\t: 207\nflags\t\t: fpu {flags} nx\n\n"
    return one + one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cpuinfo("GenuineIntel", f"{COOPERLAKE} avx512_fp16 amx_tile"), "Cooperlake"),
        (cpuinfo("GenuineIntel", f"{AVX512} avx512_vnni"), "SkylakeX"),
        (cpuinfo("GenuineIntel", "avx avx2 fma"), "Haswell"),
        (cpuinfo("GenuineIntel", "sse2"), None),
        (cpuinfo("AuthenticAMD", COOPERLAKE), None),
        ("processor\t: 0\nFeatures\t: asimd\n", None),
        ("", None),
    ],
)
def test_intels_get_the_newest_that_they_can(text: str, expected: str | None) -> None:
    """Others are left to OpenBLAS."""
    assert blas.kernels(text) == expected


def test_settings_give_way_to_what_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo("GenuineIntel", COOPERLAKE), "utf-8")
    monkeypatch.setattr(blas, "CPUINFO", file)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    expected = {"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Cooperlake"}
    assert blas.settings() == expected
    monkeypatch.setattr(blas, "CPUINFO", tmp_path / "none")
    assert "OPENBLAS_CORETYPE" not in blas.settings()


def core(code: str, **environment: str) -> list[str]:
    """The name of the kernels in use, by numpy's library itself, and how many threads it was given."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**own, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
def test_the_gateway_sets_them_before_numpy_is_there() -> None:
    code = "from conch import blas\nblas.kernels = lambda cpuinfo: 'Nehalem'\nimport gateway.__main__\n"
    assert core(code + CORE) == ["Nehalem", "1"]


def test_openblas_knows_the_names() -> None:
    """Those of this processor; for a name that it does not know it says nothing and takes others."""
    able = set(blas.CPUINFO.read_text("utf-8").partition("\n\n")[0].split())
    names = [name for name, needed in blas.KERNELS if needed <= able]
    found = [core(CORE, OPENBLAS_CORETYPE=name, OPENBLAS_NUM_THREADS="1")[0] for name in names]
    assert found == names
