"""All parameters of speaker diarization; seconds unless the name says otherwise. Chosen on the tuning voices
of bench/quality/conversations.py, which the published figures do not use: docs/benchmarks/speakers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE = 16_000
WINDOW = 10 * RATE  # samples, as the segmentation was trained
FRAME = 270  # samples from one frame of the segmentation to the next
FRAMES = 589  # of a window
FIRST = 360  # samples before the first frame begins: half of what its filters see, less half a frame
HOP = 296 * FRAME  # samples from one window to the next: half a window, in whole frames


@dataclass(frozen=True)
class SpeakerTuning:
    """Parameters of the path from audio to speakers."""

    at_once: int = 8  # windows of one request
    part: float = 2.0  # of speech that has a vector of its own
    alone: float = 0.8  # of it in which nobody else speaks; with less, the vector is that of the window
    steady: float = 1.8  # of it, from which its vector counts for clusters
    audible: float = 0.5  # of a local speaker alone, without which the sound of others goes along
    lengths: tuple[float, ...] = (1.0, 2.0)  # of sound that a vector is made of
    pause: float = 0.1  # probability that nobody speaks, at whose peak another speaker may begin
    shortest: float = 0.15  # of speech; shorter is noise
    near_voice: float = 0.6  # mean cosine of two clusters' vectors, from which they are one cluster
    same_voice: float = 0.78  # cosine of two clusters' mean vectors, from which they are one speaker
    most_vectors: int = 3000  # that are clustered; an hour has about 1,200
    least_share: float = 0.01  # of all clear speech that a speaker has at least
    least_speech: float = 3.0  # the same in seconds, where that is more
    speaks: float = 0.5  # probability at which somebody speaks
    gap: float = 0.3  # a shorter pause does not end a turn
    blip: float = 0.1  # a shorter turn is none
    joint_words: float = 0.1  # between two words of one speaker
    stray_words: float = 1.5  # at a sentence's edge that are given to the speaker of the rest
    known_voice: float = 0.45  # cosine with a reference from which a speaker has its name
    known_all: float = 0.25  # the same where there are as many speakers as references
    known_drop: float = 0.25  # by which it may be less than that of the recording's nearest pair
    reference: tuple[float, float] = (2.0, 10.0)  # length of a known speaker's reference, as OpenAI has it
    reference_slack: float = 0.1  # by which an encoder's padding may change that
    reference_voice: float = 0.5  # near_voice of a reference, which is short: one voice must not be refused
    reference_speech: float = 1.0  # of it in which somebody speaks


TUNING = SpeakerTuning()
