"""Synthetic speech of a small closed world: sentences, voices, clips, and the training of the miniature
Whisper on them.
"""
