"""One architecture per file: torch weights traced into OpenVINO graphs. Runs in the builder only (torch,
transformers).
"""
