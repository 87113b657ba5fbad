"""A folder that looks like NVIDIA's image to the builder: Python with package metadata, tools, templates,
nvidia-smi, mpirun.

It says what it is in etc/conch-toolchain, so that every bundle it makes is stamped `contract` and no real
server takes it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .nvidia_template import template
from .nvidia_tools import TOOLS

if TYPE_CHECKING:
    import pytest  # images are made where it is not installed

HERE = Path(__file__).parent
VERSIONS = {"tensorrt_llm": "0.20.0", "tensorrt": "10.10.0.31"}
TENSORRT = "10.11.0.33"  # of 25.07-py3; of 25.07-trtllm-python-py3 see VERSIONS
H100 = ("NVIDIA H100 80GB HBM3", "9.0", 81559)  # name, compute capability, MiB

SMI = """
import json, sys
from pathlib import Path
rows = json.loads(Path({rows!r}).read_text())
every = [str(i) for i in range(len(rows))]
wanted = sys.argv[sys.argv.index("-i") + 1].split(",") if "-i" in sys.argv else every
if any(not name.isdigit() or int(name) >= len(rows) for name in wanted):
    sys.exit("No devices were found")
query = next(part for part in sys.argv if part.startswith("--query-gpu=")).split("=")[1].split(",")
for name in wanted:
    cells = dict(zip(("name", "compute_cap", "memory.total"), rows[int(name)]), index=name)
    cells["driver_version"] = Path({driver!r}).read_text().strip()
    print(", ".join(str(cells[key]) for key in query))
"""

# What 4.51's BLIP-2 keeps in float32, whatever precision is asked for.
TRANSFORMERS = """
class Blip2ForConditionalGeneration:
    _keep_in_fp32_modules = ["query_tokens", "qformer"]
"""

# Starts each part of the command line with its rank, passes SIGTERM on, and ends all when one ends, as Open
# MPI does.
MPIRUN = """
import os, signal, subprocess, sys, time
parts, current = [], []
for word in [*sys.argv[1:], ":"]:
    if word == ":":
        parts, current = ([*parts, current] if current else parts), []
    else:
        current.append(word)
head = parts[0].index("-n")
common, parts[0] = parts[0][:head], parts[0][head:]
assert all(part[:2] == ["-n", "1"] for part in parts), parts
world = str(len(parts))
# Open MPI gives each rank a process group of its own.
ranks = []
for i, part in enumerate(parts):
    own = dict(os.environ, OMPI_COMM_WORLD_RANK=str(i), OMPI_COMM_WORLD_SIZE=world)
    ranks.append(subprocess.Popen(part[2:], env=own, process_group=0))
stop = lambda *_: [rank.terminate() for rank in ranks if rank.poll() is None]
signal.signal(signal.SIGTERM, stop)
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.1)
status = next(rank.returncode for rank in ranks if rank.returncode is not None)
stop()
time.sleep(1)
for rank in ranks:
    if rank.poll() is None:
        rank.kill()
    rank.wait()
sys.exit(status if status >= 0 else 1)
"""


def _script(path: Path, text: str, interpreter: str = sys.executable) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}", "utf-8")
    path.chmod(0o755)


def make_image(root: Path, versions: dict[str, str] | None = None, site: Path | None = None) -> Path:
    """Make the folder. `site`: packages of a Python that is in `root` already; without it, one is made."""
    wrapped, site = site is None, site or root / "site"
    for name, version in (VERSIONS | (versions or {})).items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (site / "transformers.py").write_text(TRANSFORMERS)
    newer = (versions or {}).get("tensorrt_llm", "0") >= "1.2"
    python = root / ("opt/venv-tritonserver/bin/python3" if newer else "usr/bin/python3")
    if newer:
        _script(root / "usr/local/mpi/bin/mpirun", MPIRUN)
        _script(root / "usr/bin/python3", "exec false", "/bin/sh")
    if wrapped:
        paths = f'PYTHONPATH="{site}${{PYTHONPATH:+:$PYTHONPATH}}"'
        _script(python, f'{paths} exec {sys.executable} "$@"\n', "/bin/sh")
    for tool in TOOLS:
        text = (
            f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom nvidia_tools import main\nmain({tool!r})\n"
        )
        if tool == "trtllm-build":
            _script(root / "usr/local/bin" / tool, text, str(python))
        else:
            _script(root / "app" / tool, text)
    _machine(root)
    _script(root / "usr/bin/mpirun", MPIRUN)
    (root / "app/all_models/inflight_batcher_llm/tensorrt_llm").mkdir(parents=True)
    (root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt").write_text(template(newer))
    return root


def _machine(root: Path) -> None:
    """nvidia-smi, what it shows, and what the image calls itself."""
    _script(
        root / "usr/bin/nvidia-smi",
        SMI.format(rows=str(root / "etc/gpus.json"), driver=str(root / "etc/driver")),
    )
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/gpus.json").write_text(json.dumps([H100] * 4))
    (root / "etc/conch-toolchain").write_text("contract\n")
    (root / "etc/driver").write_text("575.57.08\n")


def make_plain_image(root: Path) -> Path:
    """A folder that looks like the image without TensorRT-LLM: it has trtexec, which makes plans."""
    _machine(root)
    (root / "etc/tensorrt").write_text(f"{TENSORRT}\n")
    text = (
        f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(HERE)!r})\nfrom trtexec import main\n"
        f"main(Path({str(root)!r}))\n"
    )
    _script(root / "usr/src/tensorrt/bin/trtexec", text)
    return root


def environment(root: Path) -> dict[str, str]:
    """What makes a process of Conch see this image: its root, and its nvidia-smi and mpirun on PATH."""
    return {
        "CONCH_IMAGE_ROOT": str(root),
        "PATH": f"{root}/usr/bin:{root}/usr/local/bin:{os.environ['PATH']}",
    }


def enter(root: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let this process see this image."""
    for name, value in environment(root).items():
        patch.setenv(name, value)
    return root
