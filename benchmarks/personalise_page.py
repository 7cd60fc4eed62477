"""Write the tables of docs/personalise.md from the committed scores; nothing is trained.

python benchmarks/personalise_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.common.formatting import format_size
from fedarena.statistics.bayes import Posterior, posterior, verdict

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "personalise.json"
PAGE = ROOT / "docs" / "personalise.md"
SWEEP = ("digits_0.1", "digits_0.3", "digits_1", "digits_10", "digits_few")


def difference(study: dict[str, Any], label: str, other: str) -> tuple[Posterior, str]:
    """Return the posterior of the mean of `label` minus `other` on the paired splits, and its verdict."""
    known = posterior(study["scores"][other], study["scores"][label], study["rho"])
    worse, equal, better = known.regions(study["rope"])
    return known, verdict(better, equal, worse, study["threshold"])


def against(study: dict[str, Any], label: str, other: str) -> str:
    """Return the mean difference in points with its verdict; a dash for an algorithm and itself."""
    if label == other:
        return "–"
    known, sign = difference(study, label, other)
    return f"{100 * known.mean:+.1f} `{sign}`".replace("-", "\N{MINUS SIGN}", known.mean < 0)


def algorithm_rows(study: dict[str, Any]) -> list[str]:
    """Return a table of all algorithms of a study, the best on own samples first."""
    means = {label: float(np.mean(scores)) for label, scores in study["scores"].items()}
    seconds = study.get("processor_seconds")
    head = ["algorithm", "own samples, %", "minus `fedavg`", "minus `local`", "worst client, %", "common samples, %"]
    head += ["clients that gain, lose"] * bool(study["shares"]) + ["sent by a client"]
    head += ["processor time"] * bool(seconds)
    lines = [_row(head), "|---" * len(head) + "|"]
    for label in sorted(means, key=lambda label: -means[label]):
        common, scores = study["common"][label], study["scores"][label]
        cells = [f"`{label}`", f"{100 * means[label]:.1f} ± {100 * np.std(scores, ddof=1):.1f}"]
        cells += [against(study, label, other) for other in ("fedavg", "local")]
        cells += [f"{100 * study['worst_client'][label]:.0f}", "–" if common is None else f"{100 * common:.1f}"]
        if study["shares"]:
            share = study["shares"].get(label)
            cells.append("–" if share is None else " / ".join(f"{100 * one:.0f} %" for one in share))
        cells.append(format_size(study["bytes_per_client"][label]) if study["bytes_per_client"][label] else "–")
        cells += [f"{seconds[label] / seconds['fedavg']:.1f} x"] if seconds else []
        lines.append(_row(cells))
    return lines


def skew_rows(found: dict[str, Any]) -> list[str]:
    """Return a table of the sweep: a row for each federation, with the verdict of every algorithm against local training."""
    labels = found[SWEEP[-1]]["algorithms"]
    head = ["`beta`", "clients", "samples each", *(f"`{label}`" for label in labels)]
    lines = [_row(head), "|---" * len(head) + "|"]
    for name in SWEEP:
        study = found[name]
        experiment = study["experiment"]
        cells = [str(experiment["partition"]["beta"]), str(experiment["clients"]), f"{study['samples_per_client']:.0f}"]
        for label in labels:
            if label not in study["scores"]:
                cells.append("")
                continue
            mean = f"{100 * np.mean(study['scores'][label]):.1f}"
            cells.append(mean if label == "local" else f"{mean} `{difference(study, label, 'local')[1]}`")
        lines.append(_row(cells))
    return lines


def gain_rows(study: dict[str, Any]) -> list[str]:
    """Return a table of the mean gains over local training: a row for each client, a column for each algorithm."""
    pairs = [key.split(", ") for key in study["clients"]]
    clients, algorithms = (list(dict.fromkeys(pair[k] for pair in pairs)) for k in range(2))
    lines = [_row(["hospital", *(f"`{a}`" for a in algorithms)]), "|---" * (1 + len(algorithms)) + "|"]
    for client in clients:
        means = [study["clients"][f"{client}, {a}"][0] for a in algorithms]
        lines.append(_row([client, *(f"{100 * m:+.1f}".replace("-", "\N{MINUS SIGN}") for m in means)]))
    return lines


def tuned_rows(study: dict[str, Any]) -> list[str]:
    """Return a table of the settings that the trials chose."""
    lines = [_row(["algorithm", "chosen"]), "|---|---|"]
    for label, values in study["tuned"].items():
        chosen = ", ".join(f"`{key.removeprefix('algorithm.')}` {value:.3g}" for key, value in values.items())
        lines.append(_row([f"`{label}`", chosen]))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lines of every table of the page, by the name of its place."""
    return {
        "digits": algorithm_rows(found["digits"]),
        "digits tuned": tuned_rows(found["digits"]),
        "skew": skew_rows(found),
        "heart_disease": algorithm_rows(found["heart_disease"]),
        "hospitals": gain_rows(found["heart_disease"]),
        "norm": algorithm_rows(found["heart_disease_norm"]),
        "cifar10": algorithm_rows(found["cifar10"]),
    }


def written(text: str, lines: dict[str, list[str]]) -> str:
    """Return the text of the page with its tables between their marks."""
    for name, table in lines.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(table) + "\n" + end + rest.split(end, 1)[1]
    return text


def main() -> None:
    """Rewrite the tables of the page."""
    lines = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
