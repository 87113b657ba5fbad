"""Check requests against what a model takes: bytes in, a verdict out."""
