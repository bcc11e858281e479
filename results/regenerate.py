"""Every table and picture under results/, and the README's table, again from committed records.

    python results/regenerate.py            rewrites what differs
    python results/regenerate.py --check    names what differs, exit code 1 if anything does

Each `results/NAME/records.tar.xz` gives the `table.md` and the pictures beside it. A part of a
README between these comments is a table of such records, with these columns:

    <!-- table of results/digits: rule, accuracy %, memory -->
    ...
    <!-- end of table -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsteer.errors import FedsteerError
from fedsteer.records import find_runs, read_sheet
from fedsteer.records.archive import ARCHIVE
from fedsteer.report import files_of, summarise, to_markdown

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(
    r"(<!-- table of (?P<folder>[\w./-]+): (?P<columns>[^\n]*?) -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)


def regenerated(root: Path) -> dict[Path, str]:
    """Path -> content of every file that records decide."""
    found: dict[Path, str] = {}
    for archive in sorted((root / "results").glob(f"*/{ARCHIVE}")):
        for name, content in files_of(find_runs(archive), read_sheet(archive)):
            found[archive.parent / name] = content
    for page in (root / "README.md", *sorted((root / "results").glob("*/README.md"))):
        before = page.read_text(encoding="utf-8")
        if TABLE.search(before):
            found[page] = TABLE.sub(lambda match: _table(root, match), before)
    return found


def _table(root: Path, match: re.Match[str]) -> str:
    columns = [name.strip() for name in match["columns"].split(",")]
    table = to_markdown(summarise(find_runs(root / match["folder"])), columns)
    rows = "".join(line + "\n" for line in table.splitlines() if line.startswith("|"))
    return f"{match[1]}\n{rows}\n{match[4]}"


def main(arguments: Sequence[str]) -> int:
    """Rewrite, or only look."""
    if not set(arguments) <= {"--check"}:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = regenerated(ROOT)
    except FedsteerError as error:
        print(f"regenerate: {error}", file=sys.stderr)
        return 2
    stale = [
        path
        for path, content in found.items()
        if not path.exists() or path.read_bytes() != content.encode()
    ]
    for path in stale:
        print(path.relative_to(ROOT), "differs" if "--check" in arguments else "rewritten")
        if "--check" not in arguments:
            path.write_bytes(found[path].encode())
    print(f"{len(found)} files from records, {len(stale)} differed")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
