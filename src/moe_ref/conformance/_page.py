"""A report as one page that needs nothing else."""

import jinja2

from moe_ref.conformance import _svg
from moe_ref.conformance._result import Report


def page(report: Report) -> str:
    """The HTML page of a report."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("moe_ref.conformance", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("report.html.j2")
    return template.render(report=report, data=report.to_dict(), svg=_svg)
