"""What faster-whisper is given next to the weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from bench.quality.peer import peer_folder

from ..conftest import MINIATURE


def test_the_vocabulary_is_the_models(tmp_path: Path) -> None:
    """Also the id whose text is empty: under another name it made CTranslate2 repeat one word for ever."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").symlink_to(MINIATURE / "tokenizer.json")
    words = json.loads((peer_folder(tmp_path, "base") / "vocabulary.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(MINIATURE / "tokenizer.json"))
    assert words == [tokenizer.id_to_token(i) for i in range(51865)]
    assert words[50256] == ""
