"""What made the checkpoints beside this folder: their worlds, corpora, training and held-out figures."""
