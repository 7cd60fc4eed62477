"""A report that people like to look at: one HTML file that needs no network."""

from fedarena.reports.collect import gather, why_no_verdict
from fedarena.reports.page import report, write_report

__all__ = ["gather", "report", "why_no_verdict", "write_report"]
