"""Which of OpenBLAS's kernels a processor gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conch import blas

RAPIDS = "avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_vbmi2 avx512_bf16 "
RAPIDS += "avx512_fp16"


def cpuinfo(vendor: str, flags: str) -> str:
    one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel\t\t: 207\nflags\t\t: fpu {flags} nx\n\n"
    return one + one


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (RAPIDS, "Sapphirerapids"),
        (RAPIDS.replace(" avx512_fp16", ""), "Cooperlake"),
        ("avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni", "SkylakeX"),
        ("avx avx2 fma", "Haswell"),
        ("sse2", None),
    ],
)
def test_intels_get_the_newest_that_they_can(flags: str, expected: str | None) -> None:
    assert blas.kernels(cpuinfo("GenuineIntel", flags)) == expected


@pytest.mark.parametrize("text", [cpuinfo("AuthenticAMD", RAPIDS), "processor\t: 0\nFeatures\t: asimd\n", ""])
def test_others_are_left_to_openblas(text: str) -> None:
    assert blas.kernels(text) is None


def test_settings_give_way_to_what_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo("GenuineIntel", RAPIDS), "utf-8")
    monkeypatch.setattr(blas, "CPUINFO", file)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    expected = {"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Sapphirerapids"}
    assert blas.settings() == expected
    monkeypatch.setattr(blas, "CPUINFO", tmp_path / "none")
    assert "OPENBLAS_CORETYPE" not in blas.settings()


def test_the_gateway_sets_them_before_numpy_is_there() -> None:
    """The name of the kernels in use is numpy's own word for it."""
    code = (
        "from conch import blas\n"
        "blas.kernels = lambda cpuinfo: 'Nehalem'\n"
        "import gateway.__main__, ctypes, os, pathlib, numpy\n"
        "folder = pathlib.Path(numpy.__file__).parents[1] / 'numpy.libs'\n"
        "library = ctypes.CDLL(str(next(folder.glob('libopenblas*'))))\n"
        "name = getattr(library, 'openblas_get_corename64_')\n"
        "name.restype = ctypes.c_char_p\n"
        "print(name().decode(), os.environ['OPENBLAS_NUM_THREADS'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Nehalem", "1"]
