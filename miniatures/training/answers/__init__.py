"""Questions about generated pictures, and the miniatures that answer them: mini-llava and mini-blip2."""
