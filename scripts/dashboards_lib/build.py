"""Converts boards to JSON for Grafana's provisioning, with Grafana's own library of types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import compact_json
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
PANEL = 4000  # More characters than a panel has: each has one line in a file.
# Columns of every series that are of no interest to the reader.
HIDDEN = ("Time", "__name__", "job", "instance", "alertstate")


@dataclass(frozen=True)
class Panel:
    """One panel.

    queries: expressions with the names of their lines, which may contain labels in braces. unit: Grafana's name of it.
    kind: timeseries, stat or table. width, height: on a grid of 24 columns. text: description for the reader.
    words: texts to show instead of numbers.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    text: str = ""
    words: tuple[tuple[str, str], ...] = ()
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """A heading with the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """One dashboard. variables: their names, each with the query for its values."""

    uid: str
    title: str
    text: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


def text_of(board: Board) -> str:
    """Return the JSON text of a dashboard's file."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags(["gaudi-serve"])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("gaudi-serve")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["gaudi-serve"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in board.variables:
        built = built.with_variable(_variable(name, query))
    number = 0
    for row in board.rows:
        number += 1
        built = built.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            built = built.with_panel(_panel(panel).id(number))
    return compact_json.text_of(built.build(), PANEL, JSONEncoder)


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    """Return a variable for which several values, or all, can be selected."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> Any:
    """Return the builder of a panel."""
    found = {"timeseries": _lines, "stat": _stat, "table": _table}[panel.kind](panel)
    found = found.title(panel.title).datasource(SOURCE).unit(panel.unit).span(panel.width).height(panel.height)
    if panel.text:
        found = found.description(panel.text)
    if panel.words:
        options = {value: models.ValueMappingResult(text=text) for value, text in panel.words}
        found = found.mappings([models.ValueMap(options=options)])
    for place, (expr, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + place))
        query = query.datasource(SOURCE)
        if panel.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        else:
            query = query.instant() if panel.kind == "stat" else query.range()
        found = found.with_target(query)
    return found


def _lines(panel: Panel) -> Any:
    """Return a panel with lines over time, with a gap if there is no value."""
    legend = common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM)
    found = timeseries.Panel().fill_opacity(0).line_width(1).span_nulls(False)
    found = found.show_points(common_models.VisibilityMode.AUTO)
    found = found.legend(legend.display_mode(common_models.LegendDisplayMode.LIST))
    found = found.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    if panel.unit == "percentunit":
        found = found.min(0).max(1)
    if panel.stacked:
        found = found.fill_opacity(20).stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return found


def _stat(panel: Panel) -> Any:
    """Return a panel with one number for each line."""
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    mode = common_models.BigValueColorMode.NONE
    return stat.Panel().reduce_options(reduced).color_mode(mode).graph_mode(common_models.BigValueGraphMode.NONE)


def _table(panel: Panel) -> Any:
    """Return a table with a row for each series; several queries become columns."""
    names = {f"Value #{chr(ord('A') + place)}": legend for place, (_, legend) in enumerate(panel.queries)}
    if len(panel.queries) == 1:
        names = {"Value": panel.queries[0][1]}
    options = {"excludeByName": dict.fromkeys(HIDDEN, True), "renameByName": names}
    found = table.Panel()
    if len(panel.queries) > 1:
        found = found.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    return found.with_transformation(models.DataTransformerConfig(id_val="organize", options=options))
