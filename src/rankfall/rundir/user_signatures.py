"""Loads the signature catalogue of a home: packaged plus <home>/signatures/*.toml.

Imported late: the regular expression engine loads slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankfall.model import NotFound, RankfallError, SpecError
from rankfall.verdict.signatures.catalogue import Catalogue, default_catalogue, load_user


def catalogue_of(home: Path | None, files: Sequence[Path] = ()) -> Catalogue:
    """Returns the packaged signatures with the user's.

    ``home`` None: only packaged ones and ``files``. Later ones replace the same ID.

    Raises:
        NotFound: A file does not exist.
        SpecError: Names file, signature and field.
    """
    paths = [*(sorted((home / "signatures").glob("*.toml")) if home is not None else ()), *files]
    catalogue = default_catalogue()
    for path in paths:
        catalogue = catalogue.extended(load_user(_text(path), str(path)))
    return catalogue


def tolerant_catalogue(home: Path) -> tuple[Catalogue, str | None]:
    """Returns ``catalogue_of`` and None; on an error the packaged signatures and the error's message."""
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
