"""From sound to words in time: media, voice activity, windows, decoding and its retries, segments."""
