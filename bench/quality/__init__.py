"""Recordings of free voices and of people, and the words that real weights get wrong in them."""
