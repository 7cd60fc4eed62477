"""Reports of comparisons: HTML pages, charts, tables for terminals and papers, figures.

How results are computed belongs to `results` and `statistics`; this package shows them.
"""

from fedarena.reports import presentation
from fedarena.reports.collect import collect_runs, why_no_verdict
from fedarena.reports.page import report, write_report
from fedarena.results.comparison_outputs import set_presentation

__all__ = ["collect_runs", "report", "why_no_verdict", "write_report"]

set_presentation(presentation)
