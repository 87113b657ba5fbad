"""From audio to words with times: media, voice activity, windows, decoding, segments, speakers."""
