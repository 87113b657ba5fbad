"""Doubles of what is on the other side of a seam."""
