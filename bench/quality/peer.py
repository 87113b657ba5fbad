"""Make the weights of a bundle available to faster-whisper."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from serving.audio.tokens import WhisperVocabulary


def peer_folder(weights: Path, model_id: str) -> Path:
    """Return a folder next to the original weights, with the vocabulary that those may lack."""
    folder, source = weights / f"{model_id}.peer", weights / model_id
    folder.mkdir(exist_ok=True)
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(source.resolve() / name)
    known = Tokenizer.from_file(str(source / "tokenizer.json"))
    size = WhisperVocabulary(known).no_timestamps + 1
    # The last id of the text is "": named as a special one, it makes CTranslate2 4.8.5 say one word for ever.
    names = [known.id_to_token(i) for i in range(size)]
    tokens = [f"<|unused{i}|>" if name is None else name for i, name in enumerate(names)]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    (folder / "vocabulary.json").write_text(json.dumps([*tokens, *times]), "utf-8")
    return folder
