"""The load of experts as a picture."""

from collections.abc import Sequence
from pathlib import Path

from moe_ref.cli._guard import WrongUseError


def plot_load(load: Sequence[int], path: Path, *, title: str, capacity: int | None) -> None:
    """Write a bar chart.

    Args:
        load: slots of each expert.
        path: file to write; its suffix names the format, PNG if it has none.
        title: of the picture.
        capacity: slots an expert accepts, drawn as a line; None for no limit.

    Raises:
        WrongUseError: matplotlib is missing, or cannot write this format, or not there.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise WrongUseError(
            "`--plot` needs matplotlib, which the extra `plot` installs: "
            "pip install 'moe_ref[plot]'."
        ) from error
    figure = Figure(figsize=(min(max(6.0, len(load) / 16), 16.0), 3.6), layout="constrained")
    axes = figure.add_subplot()
    mean = sum(load) / len(load)
    axes.bar(range(len(load)), load, width=0.8 if len(load) <= 64 else 1.0, color="#3b6ea5")
    axes.axhline(mean, color="black", linewidth=1, label=f"mean {mean:,.1f}")
    if capacity is not None:
        axes.axhline(capacity, color="#b03020", linestyle="--", label=f"capacity {capacity:,}")
    axes.set(xlabel="expert", ylabel="slots", title=title, xlim=(-0.6, len(load) - 0.4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    form = path.suffix.lstrip(".").lower() or "png"
    known = sorted(figure.canvas.get_supported_filetypes())
    if form not in known:
        raise WrongUseError(f"`--plot` must end in one of {', '.join(known)}; got {str(path)!r}.")
    try:
        figure.savefig(path, format=form, dpi=150)
    except OSError as error:
        raise WrongUseError(f"{path}: must be writable; {error.strerror}.") from error
