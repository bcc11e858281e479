"""From records to tables, pictures and one page; docs/records.md shows how.

The page is one HTML file that needs no network: it carries plotly.js (`assets/`). Only the
pictures (`figures/`) need matplotlib.
"""

from fedsteer.report.figures import files_of, write_files
from fedsteer.report.page import write_page
from fedsteer.report.summary import summarise
from fedsteer.report.tables import to_csv, to_markdown, to_text

__all__ = [
    "files_of",
    "summarise",
    "to_csv",
    "to_markdown",
    "to_text",
    "write_files",
    "write_page",
]
