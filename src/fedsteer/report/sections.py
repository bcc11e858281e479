"""The words of the page: heading, caption and controls of each plot.

Everything that comes from records passes through `escape` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

AXES = {"train": "training rounds", "all": "all rounds", "sent": "bytes sent"}
COSTS = {"memory": "server memory", "sent": "bytes sent"}
BANDS = {"on": "intervals", "off": "lines only"}


@dataclass(frozen=True)
class Section:
    """A plot's words. `wide` plots take the full width of the page."""

    key: str
    heading: str
    caption: str
    wide: bool = True
    listed: str = ""  # goes on where there is something below the plot


SECTIONS = (
    Section(
        "accuracy",
        "Accuracy over training",
        "Test accuracy after each evaluated round: the line is the mean over seeds, the band its "
        "95 % interval (from three seeds on). Choose what a step to the right costs: a training "
        "round, any round (warm-up included), or bytes sent both ways.",
    ),
    Section(
        "groups",
        "Accuracy by label group",
        "The same curves for each group of labels. A rule that forgets clients who are rarely "
        "there falls behind on the labels they hold.",
    ),
    Section(
        "residual",
        "What the server knows of a returning client",
        "Squared error of the server's estimate, relative to the update the client then sent, by "
        "the rounds it was away. At 1 (dashed) the estimate is worth as little as none; lower is "
        "better, and a flat line is knowledge that does not age.",
        wide=False,
    ),
    Section(
        "staleness",
        "How long clients were away",
        "Share of training updates by the rounds since the client's last visit, on a "
        "logarithmic scale; a point that stands for several rounds shows their mean. The slower a "
        "line falls, the staler the knowledge a rule has to work with; rules that met the same "
        "draws lie on one another.",
        wide=False,
    ),
    Section(
        "variance",
        "Variance of the update",
        "Estimated variance that random participation adds to a server step, median over seeds and "
        "neighbouring rounds, on a logarithmic scale. Lower is steadier; a variance of zero "
        "(everybody present) has no line.",
        wide=False,
    ),
    Section(
        "cost",
        "What accuracy costs",
        "A point per rule: final accuracy with its interval, against the server's peak memory or "
        "the bytes sent both ways. Better is up and to the left.",
        wide=False,
    ),
    Section(
        "coordinates",
        "Coordinates of watched clients",
        "Where the server believes a client's update points: a row per basis vector, a column per "
        "training round, blue below zero and orange above. Long stretches of one colour are steady "
        "knowledge; a jump is a visit that changed it.",
    ),
    Section(
        "holds",
        "Who holds what",
        "Data points of each client by class; stronger colour is more. Clients are ordered by data "
        "group, within a group those most often present on top.",
        wide=False,
    ),
    Section(
        "raster",
        "Who was there",
        "A row per client, a column per round, under the first seed. The long gaps are what the "
        "server has to bridge.",
        wide=False,
    ),
    Section(
        "events",
        "Norm bound and unused updates",
        "Each mark is a round in which the norm bound shortened the server's step, to this share "
        "of its length.",
        listed="The list names clients that were asked in vain, and why.",
    ),
)


def figure(section: Section, controls: str, panels: Sequence[str], below: str = "") -> str:
    """One card: heading, caption, controls and a plot for each panel ("" for a single one)."""
    name = "card wide" if section.wide else "card"
    plots = "".join(
        '<div class="panel">'
        + (f"<h3>{escape(panel)}</h3>" if panel else "")
        + f'<div class="plot" data-plot="{section.key}" data-panel="{escape(panel)}" role="img" '
        f'aria-label="{escape(" ".join((section.heading, panel)).strip())}"></div></div>'
        for panel in panels
    )
    count = f" of-{min(len(panels), 3)}" if len(panels) > 1 else ""
    caption = " ".join(filter(None, (section.caption, section.listed if below else "")))
    return (
        f'<figure class="{name}" id="{section.key}">'
        f"<figcaption><h2>{escape(section.heading)}</h2><p>{escape(caption)}</p>"
        f"</figcaption>{controls}"
        + (f'<div class="panels{count}">{plots}</div>' if panels else "")
        + f"{below}</figure>\n"
    )


def part(experiment: int, content: str) -> str:
    """What belongs to one experiment; the page's script hides that of the others."""
    return f'<div data-experiment="{experiment}">{content}</div>'


def choice(name: str, words: dict[str, str], available: Sequence[str], meaning: str = "") -> str:
    """Buttons of which one is pressed; nothing where there is no choice."""
    if len(available) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-value="{key}" aria-pressed="false">'
        f"{escape(words[key])}</button>"
        for key in available
    )
    label = f' aria-label="{escape(meaning)}"' if meaning else ""
    start = f'<div class="choice" role="group"{label} data-choice="{name}">'
    return f"{start}{buttons}</div>"


def pick(name: str, meaning: str) -> str:
    """A drop-down list that the page's script fills."""
    return f'<label class="pick">{meaning} <select data-pick="{name}"></select></label>'


def table(
    headings: Sequence[tuple[str, str, bool]],
    rows: Sequence[tuple[int, Sequence[tuple[str, str]]]],
    name: str = "",
) -> str:
    """A table in its own scrolling box.

    headings   (text, meaning, whether the column holds words)
    rows       (index of the entry, cells as (text, what to sort by))
    """
    head = "".join(
        f'<th scope="col"{_words(words)} title="{escape(meaning)}">'
        f'<button type="button">{escape(_unbroken(text))}</button></th>'
        for text, meaning, words in headings
    )
    body = ""
    for entry, cells in rows:
        body += f'<tr data-entry="{entry}">'
        for (text, value), (_, _, words) in zip(cells, headings, strict=True):
            body += f'<td{_words(words)} data-value="{escape(value)}">{_cell(text, words)}</td>'
        body += "</tr>\n"
    return (
        f'<div class="scroll" tabindex="0"><table class="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _unbroken(text: str) -> str:
    """A heading breaks between its words only."""
    return text.replace("-", "\N{NON-BREAKING HYPHEN}").replace(" %", "\N{NO-BREAK SPACE}%")


def _cell(text: str, words: bool) -> str:
    """The interval of a number is set smaller."""
    mean, sign, half = text.partition(" ± ")
    if words or not sign:
        return escape(text)
    return f"{escape(mean)} <small>± {escape(half)}</small>"


def _words(words: bool) -> str:
    return ' class="words"' if words else ""
