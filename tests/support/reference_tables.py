"""Reads the tables of the reference pages."""


def table_rows(page: str, first_column: str) -> list[dict[str, str]]:
    """The rows of all tables whose first column has this title, each by the titles of its columns."""
    rows: list[dict[str, str]] = []
    titles: list[str] = []
    for line in page.splitlines():
        if not line.startswith("|"):
            titles = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not titles:
            titles = cells
        elif titles[0] == first_column and not line.startswith("|---"):
            assert len(cells) == len(titles), line
            rows.append(dict(zip(titles, cells, strict=True)))
    return rows
