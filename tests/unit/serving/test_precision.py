"""Which precision a CPU is given."""

from __future__ import annotations

import pytest

pytest.importorskip("openvino")

from serving.engine.openvino.runtime import hardware_precision, this_cpu

INTEL, AMD = {"GenuineIntel"}, {"AuthenticAMD"}


@pytest.mark.parametrize(
    ("cpu", "few", "many"),
    [
        (set[str](), "f32", "f32"),
        (INTEL | {"avx512f", "avx512_vnni"}, "f32", "f32"),
        (INTEL | {"avx512_bf16"}, "bf16", "f32"),
        (INTEL | {"avx512_bf16", "amx_bf16", "amx_tile"}, "bf16", "bf16"),
        (AMD | {"avx512f", "avx512_vnni"}, "f32", "f32"),
        (AMD | {"avx512_bf16"}, "bf16", "bf16"),
    ],
)
def test_precisions(cpu: set[str], few: str, many: str) -> None:
    """As measured in docs/benchmarks/bf16-cpu.md."""
    assert hardware_precision(cpu, many_rows=False) == few
    assert hardware_precision(cpu, many_rows=True) == many


def test_this_cpu_has_a_vendor() -> None:
    assert {"vendor_id", "flags"} <= this_cpu()
