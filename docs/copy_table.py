"""Copy the measured table, docs/figures/bench.md, between its two markers in README.md."""

from pathlib import Path

BEGIN = "<!-- measured table: begin -->\n"
END = "<!-- measured table: end -->"


def with_table(readme: str, table: str) -> str:
    """Return the README's text with ``table`` between the markers, whatever stood there before."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError("README.md has lost a marker of its measured table; put both back")
    return f"{head}{BEGIN}\n{table.strip()}\n\n{END}{tail}"


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    readme = root / "README.md"
    table = (root / "docs" / "figures" / "bench.md").read_text(encoding="utf-8")
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), table), encoding="utf-8")
