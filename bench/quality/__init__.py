"""Recordings of free voices and of people, and word error rates of real weights on them."""
