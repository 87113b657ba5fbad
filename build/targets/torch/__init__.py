"""PyTorch on NVIDIA GPUs: `target.py`, which any package may import, and `export.py` (builder only)."""
