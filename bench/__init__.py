"""Benchmarks of performance and quality, with peers; not part of the product."""
