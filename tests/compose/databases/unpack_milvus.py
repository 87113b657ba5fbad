"""The server in the wheel of requirements/milvus.txt, as the official image has it: `unpack_milvus.py WHEEL
FOLDER` writes `bin/`, `lib/` and `configs/`.
"""

from __future__ import annotations

import lzma
import re
import sys
import zipfile
from pathlib import Path

# What the wheel's template leaves open and has no default for.
PLACES = {
    "etcd_data_dir": "/var/lib/milvus/etcd",
    "local_storage_dir": "/var/lib/milvus/data",
    "rocksmq_data_dir": "/var/lib/milvus/rocksmq",
    "system_log_path": "",
}


def main() -> None:
    """See the module."""
    wheel, folder = zipfile.ZipFile(sys.argv[1]), Path(sys.argv[2])
    for name in ("bin", "lib", "configs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in wheel.namelist():
        file = Path(name).stem
        if (
            name.endswith(".lzma") and file != "libresolv.so.2"
        ):  # a part of the C library, which the image has
            target = folder / ("bin" if file == "milvus" else "lib") / file
            target.write_bytes(lzma.decompress(wheel.read(name)))
            target.chmod(0o755)
    text = wheel.read("milvus/data/config.yaml.template").decode()

    def filled(match: re.Match[str]) -> str:
        name = match["name"]
        return PLACES[name] if name in PLACES else match["default"].strip()

    pattern = r"\{\{\s*(?P<name>\w+)(\(\w+\))?\s*(:(?P<default>[^}]*))?\}\}"
    (folder / "configs" / "milvus.yaml").write_text(re.sub(pattern, filled, text), "utf-8")
    (folder / "configs" / "glog.conf").write_text("--logtostderr=true\n", "utf-8")


main()
