"""Recordings made of free voices, and how well real weights hear them."""
