"""From records to tables, pictures and one page. Reads nothing but records.

    runs = find_runs(folder)
    summary = summarise(runs)                      # a row per rule, intervals over seeds
    print(to_text(summary))                        # or to_markdown, to_csv
    write_page(runs, folder / "report.html", "My comparison")
    write_files(runs, read_sheet(folder), folder)  # table.md and pictures, for a repository

The page is one HTML file that needs no network: it carries plotly.js (`assets/`). Only the
pictures (`figures/`) need matplotlib.
"""

from fedsteer.report.entries import title_of
from fedsteer.report.figures import files_of, table_of, write_files
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.page import write_page
from fedsteer.report.summary import Summary, summarise
from fedsteer.report.tables import to_csv, to_markdown, to_text

__all__ = [
    "Summary",
    "files_of",
    "summarise",
    "table_of",
    "title_of",
    "to_csv",
    "to_markdown",
    "to_svg",
    "to_text",
    "write_files",
    "write_page",
]
