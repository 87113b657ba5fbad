"""PyTorch on NVIDIA GPUs: `target.py`, which everybody may import, and `export.py` (the builder only)."""
