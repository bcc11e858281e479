"use strict";
// What each plot shows. `plots[name](view, panel)` gives plotly's traces and layout; `view` is what
// you have chosen. Text from records goes through `plain`: plotly reads its texts as markup.
const plots = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const palettes = data.palettes;
  const eventColours = {
    light: ["#f3f3f1", "#c3c3bd", "#0072b2", "#e69f00", "#56b4e9", "#d55e00"],
    dark: ["#23272d", "#4f565f", "#4d9fe0", "#f5b72e", "#a5dcff", "#ff7d26"],
  };
  const eventWords = {
    failed: "asked in vain", fresh: "trained", refresh: "only refreshed", collect: "warm-up",
    dropped: "dropped",
  };

  const plain = (text) => String(text).replace(/[&<>%{}]/g, (char) => `&#${char.charCodeAt(0)};`);
  const ruleOf = (entry) => data.rules[data.entries[entry].rule];
  const colour = (view, entry) => palettes[view.theme][ruleOf(entry).colour];
  const faint = (hex, alpha) => {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${parts.join(",")},${alpha})`;
  };
  const percent = (value) => (100 * value).toFixed(1);
  const bytes = (value) => {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (value < 999.5) return `${Number(value.toPrecision(3))} ${unit}`;
      value /= 1000;
    }
    return `${Number(value.toPrecision(3))} TB`;
  };
  // Entries (a rule in an experiment) that have something in `list`: of the chosen experiment, and
  // of those the ones whose rule is switched on.
  const here = (view, list) => data.entries.map((_, entry) => entry)
    .filter((entry) => data.entries[entry].experiment === view.experiment && list[entry] != null);
  const shown = (view, list) => here(view, list).filter((entry) => view.on[data.entries[entry].rule]);

  // Whether the chosen experiment has anything to show there.
  function has(view, name, panel) {
    if (name === "holds") return data.holds[view.experiment] !== null;
    const list = name === "groups" ? data.accuracy.map((curve) => curve?.groups[panel])
      : ["staleness", "variance", "pace", "answers", "privacy"].includes(name) ? data[name].map((parts) => parts?.[panel])
      : data[name];
    return here(view, list).length > 0;
  }

  function layout(view, x, y, more = {}) {
    const axis = (own) => ({
      gridcolor: view.colours.grid, linecolor: view.colours.line, zeroline: false, ticks: "",
      automargin: true, fixedrange: view.touch, ...own,
      title: { text: own.title, standoff: 8, font: { size: 12, color: view.colours.muted } },
    });
    return {
      xaxis: axis(x), yaxis: axis(y), showlegend: false, hovermode: "closest",
      dragmode: view.touch ? false : "zoom", margin: { l: 44, r: 10, t: 8, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: view.colours.family, size: 12, color: view.colours.muted },
      hoverlabel: {
        bgcolor: view.colours.card, bordercolor: view.colours.line, align: "left",
        font: { family: view.colours.family, size: 12.5, color: view.colours.ink },
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: view.colours.muted,
        activecolor: view.colours.ink },
      ...more,
    };
  }

  const short = (value) => (value < 0.001 ? Number(value.toPrecision(3)).toExponential()
    : String(Number(value.toPrecision(6))));
  // A few round numbers for a logarithmic axis: the more decades, the fewer per decade. Within half
  // a decade they are spaced as on a linear axis; a single value is in the middle.
  function logarithmic(values, words = short, highest = Infinity) {
    const known = values.filter((value) => value > 0);
    if (!known.length) return { type: "log" };
    const least = Math.min(...known), most = Math.max(...known), span = Math.log10(most / least);
    if (span < 0.5) {
      const from = span ? least : least / 2, to = span ? most : Math.min(2 * least, highest);
      const rough = (to - from) / 4, unit = 10 ** Math.floor(Math.log10(rough));
      const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough), ticks = [];
      for (let at = Math.floor(from / step); (at - 1) * step <= to; at += 1) {
        if (at > 0 && at * step <= highest * 1.0001) ticks.push(Number((at * step).toPrecision(6)));
      }
      const range = span ? {} : { range: [Math.log10(from), Math.log10(to * 1.05)] };
      return { type: "log", tickvals: ticks, ticktext: ticks.map(words), ...range };
    }
    const low = Math.floor(Math.log10(least)), high = Math.ceil(Math.log10(most));
    const steps = span < 1.7 ? [1, 2, 5] : span < 3.2 ? [1, 3] : [1];
    const stride = Math.ceil(span / 8) || 1, ticks = [];
    for (let decade = low; decade <= high; decade += stride) {
      ticks.push(...steps.map((step) => Number(`${step}e${decade}`)));
    }
    return { type: "log", tickvals: ticks, ticktext: ticks.map(words) };
  }

  function line(view, entry, x, y, hover, customdata, mode = "lines") {
    const style = ruleOf(entry);
    return {
      type: "scatter", mode, x, y, customdata, name: plain(style.name),
      line: { color: colour(view, entry), dash: style.dash, width: 2 },
      marker: { color: colour(view, entry), symbol: style.marker, size: 6 },
      hovertemplate: `<b>${plain(style.name)}</b><br>${hover}<extra></extra>`,
    };
  }

  // Bands end where the quantity does: an accuracy at 0 and 1, a logarithmic axis above 0.
  function band(view, entry, x, mean, half, lowest = () => 0, highest = Infinity) {
    const known = x.map((_, at) => at).filter((at) => mean[at] !== null && half[at] !== null);
    if (view.bands === "off" || known.length < 2) return [];
    const back = [...known].reverse();
    return [{
      type: "scatter", mode: "none", fill: "toself", hoverinfo: "skip",
      fillcolor: faint(colour(view, entry), view.theme === "dark" ? 0.16 : 0.11),
      x: [...known, ...back].map((at) => x[at]),
      y: [...known.map((at) => Math.min(mean[at] + half[at], highest)),
        ...back.map((at) => Math.max(mean[at] - half[at], lowest(mean[at])))],
    }];
  }

  const withWarmUp = "round, warm-up included";
  const axes = {
    train: { title: "training round", hover: "training round %{x}" },
    all: { title: withWarmUp, hover: "round %{x}" },
    sent: { title: "bytes sent", hover: "%{x:.3s}B sent", exponentformat: "SI", ticksuffix: "B" },
  };

  const isLoss = data.measure === "loss";

  function curves(view, part) {
    const { title, hover, ...ticks } = axes[view.axis];
    const entries = shown(view, data.accuracy)
      .filter((entry) => data.accuracy[entry][view.axis] && part(data.accuracy[entry]));
    const bands = [], lines = [], [format, written, most] = isLoss
      ? ["%{y:.3g}", (width) => width, Infinity] : ["%{y:.1%}", percent, 1];
    for (const entry of entries) {
      const curve = data.accuracy[entry], { mean, half } = part(curve), x = curve[view.axis];
      const notes = half.map((width) => (width === null ? "" : ` ± ${written(width)}`));
      bands.push(...band(view, entry, x, mean, half, () => 0, most));
      lines.push(line(view, entry, x, mean, `${hover}<br>${format}%{customdata}`, notes,
        x.length > 1 ? "lines" : "markers"));
    }
    return [[...bands, ...lines], { title, rangemode: "tozero", ...ticks }];
  }

  // An axis of shares ends at 0 and 1; plotly's own range for no lines at all ends at 400 %.
  const shares = (traces) => ({ tickformat: ".2~%",
    ...(traces.length ? { autorangeoptions: { clipmin: 0, clipmax: 1 } } : { range: [0, 1] }) });

  function accuracy(view) {
    const [traces, x] = curves(view, (curve) => curve);
    const y = isLoss ? { title: "loss" } : { title: "test accuracy", ...shares(traces) };
    return { data: traces, layout: layout(view, x, y) };
  }

  function groups(view, panel) {
    const [traces, x] = curves(view, (curve) => curve.groups[panel]);
    // One scale for all panels, so that they can be compared.
    const all = shown(view, data.accuracy)
      .flatMap((entry) => Object.values(data.accuracy[entry].groups).flatMap((one) => one.mean));
    const top = Math.min(1, 1.08 * Math.max(0.1, ...all.filter((value) => value !== null)));
    const y = { title: "accuracy on these labels", tickformat: ".2~%", range: [0, top] };
    return { data: traces, layout: layout(view, x, y) };
  }

  const doublings = Array.from({ length: 21 }, (_, power) => 2 ** power);
  const away = (longest) => ({
    title: "rounds since the last visit", type: "log", tickvals: doublings, ticktext: doublings,
    range: [-0.08, Math.log10(Math.max(longest, 2)) + 0.08],
  });

  function residual(view) {
    const traces = [];
    for (const entry of shown(view, data.residual)) {
      const { x, mean, half, bin, count } = data.residual[entry];
      const notes = bin.map((words, at) => [words, half[at] === null ? "" : ` ± ${half[at]}`, count[at]]);
      const hover = "away %{customdata[0]} rounds<br>relative error %{y:.3g}%{customdata[1]}"
        + "<br>%{customdata[2]} updates";
      traces.push(...band(view, entry, x, mean, half, (value) => value / 4));
      traces.push(line(view, entry, x, mean, hover, notes, "lines+markers"));
    }
    const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1,
      line: { color: view.colours.muted, dash: "dash", width: 1 } };
    const drawn = shown(view, data.residual).map((entry) => data.residual[entry]);
    const y = { title: "relative error", ...logarithmic(drawn.flatMap((one) => one.mean)) };
    const longest = Math.max(...drawn.flatMap((one) => one.x));
    return { data: traces, layout: layout(view, away(longest), y, { shapes: [one] }) };
  }

  function staleness(view, panel) {
    const traces = shown(view, data.staleness).filter((entry) => data.staleness[entry][panel])
      .map((entry) => {
        const { x, y, share, bin } = data.staleness[entry][panel];
        const hover = "away %{customdata[0]} rounds<br>%{customdata[1]:.1%} of updates"
          + "<br>%{y:.2%} per round of absence";
        return line(view, entry, x, y, hover, bin.map((words, at) => [words, share[at]]),
          "lines+markers");
      });
    // Logarithmic: next to full participation all other rules would be at zero.
    const y = { title: "share per round of absence",
      ...logarithmic(traces.flatMap((trace) => trace.y), (value) => `${short(100 * value)}%`, 1),
      ...(traces.length ? {} : { range: [-3, 0] }) };
    const longest = Math.max(...shown(view, data.staleness)
      .flatMap((entry) => Object.values(data.staleness[entry]).flatMap((one) => one.x)));
    return { data: traces, layout: layout(view, away(longest), y) };
  }

  function variance(view, panel) {
    const traces = shown(view, data.variance).map((entry) => line(view, entry,
      data.variance[entry][panel].x, data.variance[entry][panel].y,
      "training round %{x}<br>variance %{y:.3g}"));
    const y = { title: "variance", ...logarithmic(traces.flatMap((trace) => trace.y)) };
    return { data: traces, layout: layout(view, { title: "training round" }, y) };
  }

  function pace(view, panel) {
    const traces = shown(view, data.pace).filter((entry) => data.pace[entry][panel])
      .map((entry) => line(view, entry, data.pace[entry][panel].x, data.pace[entry][panel].y,
        `training round %{x}<br>${panel} %{y:.3f}`));
    const y = { title: panel, range: panel === "alignment" ? [-1, 1] : [0, 1.04] };
    return { data: traces, layout: layout(view, { title: "training round" }, y) };
  }

  const fromZero = (name) => (view, panel) => {
    const known = shown(view, data[name]).filter((entry) => data[name][entry][panel]);
    const traces = known.map((entry) => line(view, entry, data[name][entry][panel].x,
      data[name][entry][panel].y, `training round %{x}<br>${panel} %{y:.3g}`));
    // One scale for all panels, so that they can be compared.
    const all = known.flatMap((entry) => Object.values(data[name][entry]).flatMap((one) => one.y));
    const y = { title: panel, range: [0, 1.05 * Math.max(1, ...all)] };
    return { data: traces, layout: layout(view, { title: "training round" }, y) };
  };
  const answers = fromZero("answers"), privacy = fromZero("privacy");

  function cost(view) {
    const traces = shown(view, data.cost).filter((entry) => view.cost in data.cost[entry])
      .map((entry) => {
        const point = data.cost[entry], style = ruleOf(entry), x = point[view.cost];
        const width = point.half === null ? "" : ` ± ${percent(point.half)}`;
        return {
          type: "scatter", mode: "markers", x: [x], y: [point.mean], name: plain(style.name),
          cliponaxis: false,
          marker: { color: colour(view, entry), symbol: style.marker, size: 12 },
          error_y: { type: "data", symmetric: false, 
            visible: view.bands === "on" && point.half !== null,
            array: [Math.min(point.half ?? 0, 1 - point.mean)],
            arrayminus: [Math.min(point.half ?? 0, point.mean)],
            color: faint(colour(view, entry), 0.6), thickness: 1.5, width: 4 },
          hovertemplate: `<b>${plain(style.name)}</b><br>%{y:.1%}${width}<br>${bytes(x)}<extra></extra>`,
        };
      });
    const title = view.cost === "memory" ? "peak server memory" : "bytes sent";
    const values = traces.map((trace) => trace.x[0]);
    const wide = Math.min(...values) > 0 && Math.max(...values) > 20 * Math.min(...values);
    const x = { title, ...(wide ? logarithmic(values, bytes)
      : { exponentformat: "SI", ticksuffix: "B", rangemode: "tozero" }) };
    return { data: traces, layout: layout(view, x, { title: "final accuracy", ...shares(traces) }) };
  }

  const bar = { thickness: 8, outlinewidth: 0, len: 0.9 };
  const rows = (names, title) => ({
    title, type: "category", autorange: "reversed", showgrid: false,
    showticklabels: names.length <= 24,
  });

  function coordinates(view) {
    const entry = view.picks.coordinates, picture = entry === null ? null
      : data.coordinates[entry].watched[view.picks.watched];
    const x = { title: "training round", showgrid: false };
    const y = { title: "basis vector", showgrid: false, autorange: "reversed" };
    if (!picture) return { data: [], layout: layout(view, x, y) };
    const largest = picture.scale * Math.max(...picture.rows.flat().map(Math.abs));
    return {
      data: [{
        type: "heatmap", x: data.coordinates[entry].rounds,
        y: picture.rows.map((_, row) => row + 1), zmin: -largest, zmax: largest,
        z: picture.rows.map((row) => row.map((step) => (step === null ? null : step * picture.scale))),
        colorscale: [[0, palettes[view.theme][2]], [0.5, view.colours.card],
          [1, palettes[view.theme][0]]],
        colorbar: bar, hovertemplate:
          "training round %{x}, basis vector %{y}<br>%{z:.3g}<extra></extra>",
      }],
      layout: layout(view, x, y),
    };
  }

  function holds(view) {
    const picture = data.pictures[data.holds[view.experiment]], names = picture.clients.map(plain);
    const notes = picture.rows.map((row, at) =>
      row.map(() => (picture.groups ? ` (${plain(picture.groups[at])})` : "")));
    return {
      data: [{
        type: "heatmap", z: picture.rows, y: names, customdata: notes,
        colorscale: [[0, view.colours.card], [1, palettes[view.theme][2]]],
        colorbar: bar, hovertemplate:
          "client %{y}%{customdata}<br>class %{x}: %{z} data points<extra></extra>",
      }],
      layout: layout(view, { title: "class", dtick: picture.classes <= 20 ? 1 : undefined,
        showgrid: false }, rows(names, clientsTitle(picture))),
    };
  }

  const clientsTitle = (picture) => (picture.clients.length < picture.of
    ? `${picture.clients.length} of ${picture.of} clients` : "client");

  function raster(view) {
    const entry = view.picks.raster;
    if (entry === null) return { data: [], layout: layout(view, { title: withWarmUp }, { title: "" }) };
    const picture = data.rasters[data.raster[entry]], names = picture.clients.map(plain);
    const z = picture.image.map((row) => Array.from(row, Number));
    const steps = eventColours[view.theme];
    return {
      data: [{
        type: "heatmap", z, y: names, x0: 1, dx: picture.step, zmin: 0, zmax: steps.length - 1,
        customdata: z.map((row) => row.map((code) => eventWords[data.kinds[code]] ?? data.kinds[code])),
        colorscale: steps.flatMap((one, at) =>
          [[at / steps.length, one], [(at + 1) / steps.length, one]]),
        showscale: false, hovertemplate: "client %{y}, round %{x}<br>%{customdata}<extra></extra>",
      }],
      layout: layout(view, { title: withWarmUp, showgrid: false }, rows(names, clientsTitle(picture))),
    };
  }

  const hasGaps = (entry) => data.rasters[data.raster[entry]].image.some((row) => row.includes("0"));

  function rasterLegend(view) {
    const entry = view.picks.raster;
    if (entry === null) return [];
    const present = new Set(data.rasters[data.raster[entry]].image.flatMap((row) => [...new Set(row)]));
    return [...present].map(Number).sort().filter((code) => code > 0)
      .map((code) => [eventColours[view.theme][code], eventWords[data.kinds[code]]]);
  }

  function events(view) {
    const traces = shown(view, data.events).map((entry) => ({
      ...line(view, entry, data.events[entry].x, data.events[entry].y,
        `round %{x}: shortened to %{y:.1%}<br>acted in ${data.events[entry].acted} of `
        + `${data.events[entry].rounds} rounds, all seeds`, undefined, "markers"),
    }));
    const y = { title: "length kept", tickformat: ".0%", range: [0, 1.04] };
    return { data: traces, layout: layout(view, { title: withWarmUp, rangemode: "tozero" }, y) };
  }

  return { accuracy, groups, residual, staleness, variance, pace, answers, privacy, cost, coordinates, holds, raster,
    events, rasterLegend, hasGaps, has, here, shown, ruleOf, records: data, palettes };
})();
