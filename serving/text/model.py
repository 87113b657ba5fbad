"""Facts about a bundle's model for the text façades; T5, BART and GPT-2 differ in these only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import ENGINE, EngineFacts, PictureFacts, PicturePrompt, load_parameters
from conch.pictures import MOST_PICTURES

from .tokens import TextTokenizer


@dataclass(frozen=True)
class TextModel:
    """Facts about one model.

    Attributes:
        beams: the most beams that are served, where the engine has a limit
        excludes: default of `exclude_input_in_output`, as `accumulate` is of `accumulate_tokens`
        skip_special: special tokens are left out of texts
        picture: preprocessing, as `prompt` has the placement, for models that read pictures
        pictures: the most pictures of one text
    """

    facts: EngineFacts
    tokenizer: TextTokenizer
    beams: int | None = None
    excludes: bool = True
    accumulate: bool = False
    skip_special: bool = True
    picture: PictureFacts | None = None
    prompt: PicturePrompt | None = None
    pictures: int = MOST_PICTURES

    @classmethod
    def load(cls, bundle: Path) -> TextModel:
        """Read it from a bundle.

        Raises:
            Malformed: its engine.json cannot be read.
        """
        parameters, looks = load_parameters(bundle), PicturePrompt.there(bundle / ENGINE)
        return cls(
            EngineFacts.load(bundle / ENGINE),
            TextTokenizer.load(bundle / ENGINE),
            parameters.get("served_beam_width"),
            bool(parameters.get("exclude_input_in_output", True)),
            bool(parameters.get("accumulate_tokens", False)),
            bool(parameters.get("skip_special_tokens", True)),
            PictureFacts.load(bundle / ENGINE) if looks else None,
            PicturePrompt.load(bundle / ENGINE) if looks else None,
            int(parameters.get("max_num_images", MOST_PICTURES)),
        )

    @property
    def start(self) -> list[int]:
        """Return the decoder's first ids."""
        return list(self.facts.decoder_start) if self.facts.encodes else [self.facts.pad_id]

    def text(self, ids: NDArray[np.int32]) -> bytes:
        """Decode ids [n] to UTF-8."""
        return self.tokenizer.text(ids.tolist(), skip_special_tokens=self.skip_special).encode()

    def pieces(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        """Decode each token separately: UTF-8 bytes in an object array of the shape of `ids`."""
        out = np.empty(ids.size, object)
        out[:] = [self.tokenizer.piece(int(i)).encode() for i in ids.ravel()]
        return out.reshape(ids.shape)
