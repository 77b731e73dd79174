"""Loads the signature catalogue of a home: packaged signatures plus <home>/signatures/*.toml.

A user signature replaces a packaged one of the same id. Imported late: the regular expression engine is
slow to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankfall.model import NotFound, RankfallError, SpecError
from rankfall.verdict.signatures.catalogue import Catalogue, default_catalogue, load_user


def catalogue_of(home: Path | None, files: Sequence[Path] = ()) -> Catalogue:
    """Packaged signatures with the user's own.

    Args:
        home: Rankfall's home, which may hold a folder ``signatures``; None = packaged ones and ``files`` only.
        files: further files; later ones replace signatures of the same id.

    Raises:
        NotFound: a file does not exist.
        SpecError: a file is no table of signatures; names file, signature and field.
    """
    paths = [*(sorted((home / "signatures").glob("*.toml")) if home is not None else ()), *files]
    catalogue = default_catalogue()
    for path in paths:
        catalogue = catalogue.extended(load_user(_text(path), str(path)))
    return catalogue


def tolerant_catalogue(home: Path) -> tuple[Catalogue, str | None]:
    """As ``catalogue_of``, for whoever must not fall over a user's file: the packaged ones alone and what is wrong, then."""
    try:
        return catalogue_of(home), None
    except RankfallError as error:
        return default_catalogue(), f"the user's signatures: {error.message}"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", hint="name a TOML file of signatures; docs/signatures.md") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), f"cannot be read: {error}") from None
