"""OpenVINO on a CPU: `target.py`, which any package may import, and the exporters, one architecture per file
(torch, transformers: builder only).
"""
