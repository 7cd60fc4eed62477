"""A report that people like to look at: one HTML file that needs no network."""

from fedarena.reports.collect import collect_runs, why_no_verdict
from fedarena.reports.page import report, write_report

__all__ = ["collect_runs", "report", "why_no_verdict", "write_report"]
