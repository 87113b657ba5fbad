"""Generated pictures with captions, and the miniature CLIP that is trained on them."""
