"""Copy the measured tables of docs/figures between their markers in the pages that show them."""

from pathlib import Path

# A page, its table in docs/figures, and the name in its markers.
PLACES = (
    ("docs/performance.md", "bench.md", "table"),
    ("docs/performance.md", "one_step.md", "one step"),
    ("docs/performance.md", "saving.md", "saving"),
    ("docs/performance.md", "wrappers.md", "wrappers"),
    ("docs/plangym.md", "plangym.md", "suite"),
    ("docs/states.md", "archive.md", "archive"),
    ("docs/planners.md", "planner_time.md", "planner time"),
)


def with_table(page: str, table: str, name: str = "table") -> str:
    """Return the page's text with ``table`` between the markers, whatever stood there before."""
    first, last = f"<!-- measured {name}: begin -->\n", f"<!-- measured {name}: end -->"
    head, begin, rest = page.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"a page has lost a marker of its measured {name}; put both back")
    return f"{head}{first}\n{table.strip()}\n\n{last}{tail}"


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    for page_name, table_name, name in PLACES:
        page = root / page_name
        table = (root / "docs" / "figures" / table_name).read_text(encoding="utf-8")
        text = page.read_text(encoding="utf-8")
        page.write_text(with_table(text, table, name), encoding="utf-8")
