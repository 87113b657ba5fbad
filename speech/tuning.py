"""All parameters that decide what is written and when. Seconds unless the name says otherwise; frames are 20
ms, chunks 32 ms. How each was chosen: docs/benchmarks/real-speech.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Parameters of the whole path from audio to words."""

    # Voice activity: silero-vad utils_vad.py, get_speech_timestamps, but for the floor and the single word.
    speech_begins: float = 0.5  # probability at which speech begins
    speech_goes_on: float = 0.35  # probability that keeps it going
    speech_chunks: int = 8  # how long it lasts at least
    word_chunks: int = 3  # the same in a recording of a word or two
    short_recording: float = 2.0  # that is such a one
    hole_chunks: int = 3  # chunks below that do not end it
    loudness_floor: float = 2.5e-5  # root mean square; below it is digital silence or its dither

    # Windows of 30 s: where a recording is cut.
    clear_frames: int = 8  # shorter stretches of quiet may be the closure of a t or a k
    pause_chunks: int = 5  # a pause that a window may be cut in
    silent_probability: float = 0.2  # of speech, under which a chunk of a long silence may be left out
    kept_chunks: int = 16  # of such a silence that stay at either side

    # Stretches: windows that follow each other with their context; several stretches run at once.
    stretch: float = 120.0  # from here on it ends with the current window

    # Decoding and its retries. openai/whisper transcribe.py: temperatures, the forgetful temperature.
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    no_speech_limit: float = 0.6  # probability that nobody speaks
    forgetful_temperature: float = 0.5  # a text made at a higher one is no context for the next
    tries: int = 8  # requests for one window, whatever comes back
    splittable: float = 4.0  # a shorter window that loops is tried at other temperatures instead of in halves
    context_characters: int = 300  # of earlier text; with more of it base gets more of the words wrong
    context_head_start: float = 0.05  # in mean log probability, of words that know no earlier text
    least_seek: float = 5.0  # a window that moves on by less is not asked for again
    repeated_sentence: float = 10.0  # of words that are repeated so that a window begins with a sentence
    cut_sentence: float = 0.7  # at a window's end; a sentence that ends there was cut off
    live_patience: float = 1.0  # that a recording's next request waits for the words of live turns

    # Speech without words, which is asked for again.
    lost_speech: float = 0.6  # that nobody wrote down
    close_words: float = 0.6  # between two words that no other fits between
    sliver: float = 0.02  # a voice that a part has less of is not in it

    # Where segments and words lie in the sound.
    cut_silence: float = 1.0  # without a voice, from which a segment is cut
    sentence_silence: float = 0.2  # the same after a sentence
    voice_margin: float = 0.2  # next to a voice that may belong to it
    stray_voice: float = 0.2  # of a voice between a segment's time and its words': the words' is taken
    hole_frames: int = 10  # of quiet that are silence even where voice activity goes on
    stop_frames: int = 4  # a shorter silence may be the closure of a t or a k
    overlap_frames: int = 15  # of a neighbour's sound that may lie inside a word's times
    around_end: tuple[float, float] = (0.3, 0.6)  # before and after a text's end, where a pause is looked for
    quietest_around: tuple[float, float] = (0.3, 0.15)  # the same for the quietest sound
    segment_edge: float = 0.02  # that a segment is longer than its sound at either side


TUNING = Tuning()
