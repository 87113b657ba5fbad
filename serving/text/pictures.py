"""Place pictures among a text's ids."""

from __future__ import annotations

from itertools import count

from conch.bundle import PicturePrompt

from ..errors import BadRequest
from .tokens import TextTokenizer

# The façade's inputs that bring pictures, one of them, for all texts of a request as many: pixels as the
# model reads them [rows, n, 3, size, size], decoded pictures [rows, n, height, width, 3], a data URL [rows,
# 1], and, ours, data URLs [rows, n].
INPUTS = ("image_input", "image_bytes_input", "image_url_input", "image_urls")


def with_pictures(
    tokenizer: TextTokenizer, prompt: PicturePrompt, text: str, pictures: int, vocabulary: int
) -> list[int]:
    """Return a text's ids with each picture's rows of the prompt-embedding table, numbered from the
    vocabulary's end on in the order of the pictures. A text without placeholders is put into the model's
    template.

    Raises:
        BadRequest: it names other places than there are pictures.
    """
    if prompt.leads:
        return _led(tokenizer, prompt, text, pictures, vocabulary)
    ids = tokenizer.prompt(text)
    if pictures and prompt.token not in ids:
        whole = prompt.template.replace(prompt.placeholder, prompt.placeholder * pictures)
        ids = tokenizer.prompt(whole.replace("{text}", text))
    _check(prompt, ids.count(prompt.token), pictures)
    rows = count(vocabulary)
    return [
        one
        for token in ids
        for one in ([next(rows) for _ in range(prompt.rows)] if token == prompt.token else [token])
    ]


def _led(
    tokenizer: TextTokenizer, prompt: PicturePrompt, text: str, pictures: int, vocabulary: int
) -> list[int]:
    if pictures > 1:
        raise BadRequest(f"{pictures} pictures were sent; this model takes one; send one request for each")
    ids = tokenizer.prompt(text)
    if prompt.token in ids:
        _check(prompt, ids.count(prompt.token), pictures)
        ids = [token for token in ids if token != prompt.token]
    return [*range(vocabulary, vocabulary + prompt.rows * pictures), *ids]


def _check(prompt: PicturePrompt, places: int, pictures: int) -> None:
    if places != pictures:
        raise BadRequest(
            f"the text has {prompt.placeholder} {places} times, and {pictures} pictures were sent; write it "
            "once for each picture, or not at all"
        )
