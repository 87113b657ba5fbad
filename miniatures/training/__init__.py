"""What made the checkpoints next to this folder: their worlds, corpora, training and held-out figures."""
