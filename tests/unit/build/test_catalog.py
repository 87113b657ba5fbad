"""The file that a user edits: every mistake is one sentence, and stops no other model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.catalog import CATALOG, CatalogError, load_catalog, select
from build.download import FetchError
from build.recipes import load_recipe
from build.sources import fetch

GOOD = '[good]\nfamily = "t5"\nsource = "file:/models/t5"\n'


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('[my]\nsource = "file:/x"', "[my]: family is missing; add for example family"),
        ('[my]\nfamily = "t5"', "[my]: source is missing; add for example source"),
        ('[my]\nfamily = "t5"\nsource = "hf:a/b"', "[my]: licence is missing; add the licence"),
        ('[my.v1]\nfamily = "t5"\nsource = "file:/x"', 'an id with a dot needs quotes: ["my.v1"]'),
        ('[my]\nfamily = 5\nsource = "file:/x"', "[my]: family is not a string"),
        ("my = 5", "[my]: it is not a table"),
        (
            '[my]\nfamily = "whispr"\nsource = "file:/x"',
            "[my]: family 'whispr' is unknown; write one of: bart",
        ),
        (
            '[my]\nfamily = "t5"\nsource = "file:/x"\nexamples = "a"',
            "[my]: examples is not a list of strings",
        ),
        ('[my]\nfamily = "t5"\nsource = "file:/x"\nmirrors = ["hf:a/b"]', "[my]: mirrors is not a list of"),
    ],
)
def test_a_broken_table_is_one_sentence_and_stops_no_other(tmp_path: Path, row: str, sentence: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"{row}\n{GOOD}" if row.startswith("my") else GOOD + row)
    found = load_catalog(path)
    assert [model.id for model in select(found, "good", "openvino")] == ["good"]
    with pytest.raises(CatalogError) as error:
        select(found, "my", "openvino")
    assert sentence in str(error.value)
    assert "own.toml" in str(error.value)


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ('"many"', "max_beam_width = 'many' is not of type int; write for example max_beam_width = 1"),
        ("true", "max_beam_width = True is not of type int"),
        ("2.5", "max_beam_width = 2.5 is not of type int"),
        ("-1", "max_beam_width = -1 is below 0; write 0 or more"),
    ],
)
def test_a_parameter_of_another_type_is_refused(tmp_path: Path, value: str, refusal: str) -> None:
    """Before anything is downloaded, and in the words of the file."""
    path = tmp_path / "catalog.toml"
    path.write_text(f'[my]\nfamily = "t5"\nsource = "file:/x"\nlicence = "-"\nmax_beam_width = {value}\n')
    with pytest.raises(CatalogError, match=re.escape(refusal)):
        load_recipe(load_catalog(path)["my"], "trtllm")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[my")
    with pytest.raises(CatalogError, match=r"own\.toml: Expected .* write tables as \[my-model\]"):
        load_catalog(path)


def test_a_users_own_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are absolute, below one's home, or below the file; `license` is taken."""
    path = tmp_path / "own.toml"
    rows = {"a": "file:~/t5", "b": "file:sub/t5", "tiny": "file:/models/other"}
    path.write_text(
        "".join(f'[{name}]\nfamily = "t5"\nlicense = "MIT"\nsource = "{at}"\n' for name, at in rows.items())
    )
    monkeypatch.setenv("CATALOG", str(path))
    found = load_catalog()
    assert found["a"].source == f"file:{Path.home()}/t5"
    assert found["b"].source == f"file:{tmp_path}/sub/t5"
    assert (found["tiny"].source, found["tiny"].licence) == ("file:/models/other", "MIT")
    assert found["mini-whisper"].source == "file:miniatures/whisper"
    assert "a" not in [model.id for model in select(found, "", "openvino")]
    monkeypatch.setenv("CATALOG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(CatalogError, match=r"CATALOG=.*nowhere\.toml is not a file"):
        load_catalog()


def test_an_id_that_is_nearly_right() -> None:
    with pytest.raises(CatalogError, match=r"did you mean tiny\.en\?"):
        select(load_catalog(CATALOG), "tiny-en", "openvino")


def test_a_folder_that_is_none_or_has_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[my]\nfamily = "t5"\nsource = "file:t5"\n')
    model = load_catalog(path)["my"]
    with pytest.raises(FetchError, match=r"my: .*/t5 is not a folder; correct its source"):
        fetch(model, (), tmp_path)
    (tmp_path / "t5").mkdir()
    with pytest.raises(FetchError, match="has no weights"):
        fetch(model, (), tmp_path)
