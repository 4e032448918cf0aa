"""Every Python block of README.md and docs/*.md runs as it stands, and prints what is shown beneath it.

The blocks of a file run in order and in one namespace, as a reader would type them, in an empty directory. A
``text`` block right after a ``python`` block is what that block prints; without one, it may print anything.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCED = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\s*^```text\n(?P<shown>.*?)^```$)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A Python block: the line its code starts on, and what is shown to be printed."""

    line: int
    code: str
    shown: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start("code")) + 1, found["code"], found["shown"])
        for found in FENCED.finditer(text)
    ]


def run(document: Path, text: str) -> None:
    namespace: dict[str, Any] = {"__name__": document.stem}
    for block in blocks(text):
        # Blank lines before the code make tracebacks name the line of the document.
        code = compile("\n" * (block.line - 1) + block.code, str(document), "exec", dont_inherit=True)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(code, namespace)
        if block.shown is not None:
            assert printed.getvalue() == block.shown, f"{document.name}, the block of line {block.line}"


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_the_blocks_run_and_print_what_is_shown(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(document, document.read_text(encoding="utf-8"))


def test_the_tutorial_has_blocks_and_shows_what_they_print() -> None:
    found = blocks((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert len(found) > 5
    assert sum(block.shown is not None for block in found) > 5


DOCUMENT = """Text.

```python
a = 1
print(a)
```

```text
1
```

```sh
not Python
```

```python
b = a + 1
```

A block further down shows nothing of it.

```text
9
```
"""


def test_blocks_are_found_with_their_lines_and_the_output_right_after_them() -> None:
    assert blocks(DOCUMENT) == [Block(4, "a = 1\nprint(a)\n", "1\n"), Block(17, "b = a + 1\n", None)]


def test_another_output_and_an_error_are_told_with_their_line() -> None:
    document = ROOT / "sample.md"
    run(document, DOCUMENT)
    with pytest.raises(AssertionError, match=r"sample\.md, the block of line 4"):
        run(document, DOCUMENT.replace("\n1\n", "\n2\n"))
    with pytest.raises(NameError) as error:
        run(document, DOCUMENT.replace("b = a", "b = missing"))
    assert error.traceback[-1].lineno == 16  # counted from 0
