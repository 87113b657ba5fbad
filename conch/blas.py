"""Choose OpenBLAS's kernels for a process through its environment, before it imports numpy. Standard library
only.

OpenBLAS 0.3.23, which numpy 1.26 brings, does not recognise all newer Intel processors and falls back to
kernels for a Prescott of 2004 (OpenBLAS issue 4267, fixed in 0.3.25). On the host of an H100, voice activity
detection in 30 s of sound took 88 ms that way, and 23 to 36 ms with any newer kernels.
"""

from __future__ import annotations

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# By what a processor must be able to do, the newest that OpenBLAS can be asked for by name first.
KERNELS = (
    ("Cooperlake", AVX512 | {"avx512_bf16", "avx512_vnni"}),
    ("SkylakeX", AVX512),
    ("Haswell", {"avx2", "fma"}),
)
# Façades and gateways work on several requests at once: more threads would only fight for the same
# cores. So do torch's of OpenMP with a GPU; on a CPU the torch engine sets how many it takes.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def kernels(cpuinfo: str) -> str | None:
    """Choose the kernels for an Intel processor from what Linux reports of it; None leaves the choice to
    OpenBLAS.
    """
    fields = dict(line.split(":", 1) for line in cpuinfo.partition("\n\n")[0].splitlines() if ":" in line)
    known = {name.strip(): value.strip() for name, value in fields.items()}
    if known.get("vendor_id") != "GenuineIntel":
        return None
    able = set(known.get("flags", "").split())
    return next((name for name, needed in KERNELS if needed <= able), None)


def settings() -> dict[str, str]:
    """Return the variables to set for a process; variables that are set already win."""
    found = kernels(CPUINFO.read_text("utf-8", "replace")) if CPUINFO.exists() else None
    wanted = {**ONE_THREAD, **({"OPENBLAS_CORETYPE": found} if found else {})}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
