"use strict";
// What you choose, and drawing what is in view. Text from records is set as textContent.
(() => {
  const data = plots.records;
  const view = {
    experiment: 0, on: data.rules.map(() => true), axis: "train", cost: "memory", bands: "on", theme: "light", colours: {},
    touch: matchMedia("(pointer: coarse)").matches,
    picks: { coordinates: null, watched: 0, raster: null },
  };
  const settings = { // the buttons are named because plotly's own set would offer to upload the plot
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  };
  const all = (query) => [...document.querySelectorAll(query)];
  const make = (tag, attributes, ...content) => {
    const element = document.createElement(tag);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...content);
    return element;
  };

  // -- boxes of the plots, choice of the experiment ---------------------------------------------
  for (const panels of all(".panels")) {
    const key = panels.parentElement.id;
    panels.append(...data.panels[key].map((name, place) => {
      const id = `${key}-${place}`; // the name "" is that of a single plot
      return make("div", { class: "panel" }, ...(name ? [make("h3", { id }, name)] : []),
        make("div", { class: "plot", role: "img", "data-plot": key, "data-panel": name,
          "aria-labelledby": name ? `${key}-title ${id}` : `${key}-title` }));
    }));
  }
  if (data.experiments.length > 6) {
    document.querySelector("nav").prepend(make("label", { class: "pick" }, "experiment ",
      make("select", { "data-pick": "experiment" })));
  } else if (data.experiments.length > 1) {
    document.querySelector("nav").prepend(
      make("div", { class: "choice", role: "group", "aria-label": "Experiment", "data-choice": "experiment" },
        ...data.experiments.map((name, place) =>
          make("button", { type: "button", "data-value": place, "aria-pressed": false }, name))));
  }
  // Updates that were not used: a table per experiment, of which one is shown.
  const unusedTable = (place) => {
    const words = { class: "words" };
    const cell = (kind, text, value = text) => make("td", { ...kind, "data-value": value }, text);
    const rows = data.entries.flatMap((entry, at) => (entry.experiment !== place ? []
      : data.unused[at].map(({ reason, times, clients, of, rounds: [first, last] }) => {
        const more = of - clients.length;
        const names = clients.join(", ") + (more ? ` and ${more} more` : "");
        return make("tr", { "data-entry": at }, cell(words, data.rules[entry.rule].name),
          cell(words, reason), cell({}, String(times)), cell(words, names, of),
          cell({}, first === last ? String(first) : `${first} to ${last}`, first));
      })));
    if (!rows.length) return [];
    const head = [["rule", words], ["not used because", words], ["times", { title: "over all seeds" }],
      ["clients", words], ["rounds", { title: "first and last" }]];
    return [make("div", { "data-experiment": place },
      ...(data.experiments.length > 1 ? [make("h3", { class: "name" }, data.experiments[place])] : []),
      make("p", { class: "note" }, "Clients that were asked in vain, and why:"),
      make("div", { class: "scroll", tabindex: 0 }, make("table", {},
        make("thead", {}, make("tr", {}, ...head.map(([text, kind]) =>
          make("th", { scope: "col", ...kind }, make("button", { type: "button" }, text))))),
        make("tbody", {}, ...rows))))];
  };
  document.querySelector("#events .panels")?.after(
    ...data.experiments.flatMap((_, place) => unusedTable(place)));
  const boxes = all(".plot");
  const visible = new Set();
  const stale = new Set(boxes);

  function draw(box) {
    const { data: traces, layout } = plots[box.dataset.plot](view, box.dataset.panel);
    Plotly.react(box, traces, layout, settings);
    box.dataset.drawn = Number(box.dataset.drawn ?? 0) + 1;
    stale.delete(box);
  }

  // Only what can be seen is drawn; the rest waits until it is scrolled to.
  function refresh(names) {
    boxes.filter((box) => !names || names.includes(box.dataset.plot)).forEach((box) => stale.add(box));
    [...visible].filter((box) => stale.has(box) && box.offsetParent).forEach(draw);
  }

  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) visible.add(target); else visible.delete(target);
      if (isIntersecting && stale.has(target)) draw(target);
    }
  }, { rootMargin: "240px" });

  // Printing shows everything at once.
  window.addEventListener("beforeprint", () => {
    [...stale].filter((box) => box.offsetParent).forEach(draw);
  });

  // -- rules ------------------------------------------------------------------------------------
  const dashes = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4" };
  function mark(rule) {
    const draw = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
      return element;
    };
    const swatch = draw("svg", { width: 22, height: 8, class: "mark", "data-mark": rule });
    swatch.append(draw("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 3,
      "stroke-dasharray": dashes[data.rules[rule].dash] }));
    return swatch;
  }
  const ruleIn = (row) => data.entries[row.dataset.entry].rule;
  all(".headline tr[data-entry] td:first-child").forEach((cell) =>
    cell.prepend(mark(ruleIn(cell.parentElement))));
  const buttons = data.rules.map((rule, index) => {
    const button = document.createElement("button"), name = document.createElement("span");
    button.type = "button";
    name.textContent = button.title = rule.name;
    button.append(mark(index), name);
    button.addEventListener("click", () => choose((one) => (one === index) !== view.on[one]));
    button.addEventListener("dblclick", () => choose((one) => one === index));
    document.getElementById("rules").append(button);
    return button;
  });

  function choose(wanted) {
    view.on = view.on.map((_, rule) => wanted(rule));
    buttons.forEach((button, rule) => button.setAttribute("aria-pressed", view.on[rule]));
    all("tr[data-entry]").forEach((row) => row.classList.toggle("off", !view.on[ruleIn(row)]));
    fillPicks();
    refresh();
  }
  document.getElementById("all").addEventListener("click", () => choose(() => true));
  document.getElementById("none").addEventListener("click", () => choose(() => false));

  // -- choices ----------------------------------------------------------------------------------
  const affected = { axis: ["accuracy", "groups"], cost: ["cost"],
    bands: ["accuracy", "groups", "residual", "cost"] };
  const offered = { // values that mean something in the chosen experiment
    axis: () => ["train", "all", "sent"].filter((axis) =>
      plots.here(view, data.accuracy).some((entry) => axis in data.accuracy[entry])),
    cost: () => ["memory", "sent"].filter((cost) =>
      plots.here(view, data.cost).some((entry) => cost in data.cost[entry])),
    bands: () => (data.accuracy.some((curve) => curve?.half.some((half) => half !== null))
      ? ["on", "off"] : ["on"]),
    experiment: () => data.experiments.map((_, place) => place),
  };
  const optionsOf = (name) => all(`[data-choice="${name}"] button`);
  function press(name, value) {
    const open = offered[name]();
    view[name] = open.includes(value) ? value : open[0] ?? value;
    optionsOf(name).forEach((one) => {
      one.setAttribute("aria-pressed", one.dataset.value === String(view[name]));
      one.hidden = !open.map(String).includes(one.dataset.value);
      one.parentElement.hidden = open.length < 2;
    });
  }
  for (const name of Object.keys(affected)) {
    press(name, view[name]);
    optionsOf(name).forEach((one) => one.addEventListener("click", () => {
      press(name, one.dataset.value);
      refresh(affected[name]);
    }));
  }

  const select = (name) => document.querySelector(`[data-pick="${name}"]`);
  function fill(name, options) {
    const list = select(name);
    if (list) {
      list.replaceChildren(...options.map(([value, text]) => {
        const option = document.createElement("option");
        option.value = value;
        option.textContent = text;
        option.selected = value === view.picks[name];
        return option;
      }));
      list.parentElement.hidden = options.length < 2;
    }
  }

  function fillPicks() {
    for (const name of ["coordinates", "raster"]) {
      const known = plots.shown(view, data[name]), before = view.picks[name];
      if (!known.includes(before)) { // of another experiment, or switched off
        const same = known.find((entry) => before !== null && plots.ruleOf(entry) === plots.ruleOf(before));
        const telling = known.find((entry) => name !== "raster" || plots.hasGaps(entry));
        view.picks[name] = same ?? telling ?? known[0] ?? null;
      }
      fill(name, known.map((entry) => [entry, plots.ruleOf(entry).name]));
    }
    const entry = view.picks.coordinates;
    const watched = entry === null ? [] : data.coordinates[entry].watched;
    if (view.picks.watched >= watched.length) view.picks.watched = 0;
    fill("watched", watched.map((one, index) => [index, one.client]));
    legend();
  }

  for (const [name, target] of Object.entries({ coordinates: "coordinates", watched: "coordinates",
    raster: "raster" })) {
    select(name)?.addEventListener("change", (event) => {
      view.picks[name] = Number(event.target.value);
      fillPicks();
      refresh([target]);
    });
  }

  // -- experiments ------------------------------------------------------------------------------
  // Rules stay on or off from one experiment to the next; what an experiment lacks is hidden. The
  // address names the experiment, so that a link leads to it.
  const address = (experiment) => `#${encodeURIComponent(data.experiments[experiment])}`;
  const addressed = () => data.experiments.findIndex((_, place) => address(place) === location.hash);
  function enter(experiment) {
    press("experiment", experiment);
    if (select("experiment")) select("experiment").value = experiment;
    ["axis", "cost"].forEach((name) => press(name, view[name]));
    all("[data-experiment]").forEach((part) => {
      part.hidden = Number(part.dataset.experiment) !== experiment;
    });
    const present = new Set(data.entries.filter((one) => one.experiment === experiment)
      .map((one) => one.rule));
    buttons.forEach((button, rule) => { button.hidden = !present.has(rule); });
    boxes.forEach((box) => {
      box.parentElement.hidden = !plots.has(view, box.dataset.plot, box.dataset.panel);
    });
    all(".panels").forEach((panels) => {
      const count = panels.querySelectorAll(".panel:not([hidden])").length;
      panels.className = count > 1 ? `panels of-${Math.min(count, 3)}` : "panels";
      panels.hidden = count === 0;
    });
    all("figure").forEach((card) => {
      card.hidden = !card.querySelector(".panel:not([hidden])")
        && ![...card.querySelectorAll("table")].some((table) => !table.closest("[hidden]"));
    });
    fillPicks();
    refresh();
  }
  function visit(experiment) {
    history.replaceState(null, "", address(experiment));
    enter(experiment);
  }
  optionsOf("experiment").forEach((one) =>
    one.addEventListener("click", () => visit(Number(one.dataset.value))));
  fill("experiment", data.experiments.map((name, place) => [place, name]));
  select("experiment")?.addEventListener("change", (event) => visit(Number(event.target.value)));
  addEventListener("hashchange", () => { if (addressed() >= 0) enter(addressed()); });

  function legend() {
    const box = document.querySelector('[data-legend="raster"]');
    box?.replaceChildren(...plots.rasterLegend(view).map(([colour, words]) => {
      const entry = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = colour;
      entry.append(mark, words);
      return entry;
    }));
  }

  // -- light and dark ---------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function paint(theme) {
    view.theme = document.documentElement.dataset.theme = theme;
    const style = getComputedStyle(document.documentElement);
    for (const name of ["card", "ink", "muted", "line", "grid"]) {
      view.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    view.colours.family = getComputedStyle(document.body).fontFamily;
    all("[data-mark]").forEach((swatch) => swatch.firstElementChild
      .setAttribute("stroke", plots.palettes[theme][data.rules[swatch.dataset.mark].colour]));
    legend();
    refresh();
  }
  dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click",
    () => paint(view.theme === "dark" ? "light" : "dark"));

  // -- tables: click a heading to sort ----------------------------------------------------------
  for (const table of all("table")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value;
      const order = (one, other) => {
        if (key(one) === "" || key(other) === "") return (key(one) === "") - (key(other) === "");
        const difference = head.classList.contains("words")
          ? key(one).localeCompare(key(other)) : key(one) - key(other);
        return down ? -difference : difference;
      };
      body.append(...[...body.rows].sort(order));
    }));
  }

  choose(() => true);
  enter(Math.max(addressed(), 0));
  paint(dark.matches ? "dark" : "light");
  boxes.forEach((box) => watcher.observe(box));
})();
