"""OpenVINO on a CPU: `target.py`, which everybody may import, and the exporters, one architecture per file
(torch, transformers: the builder only).
"""
