"""Performance and quality, measured, with peers: not part of the product."""
