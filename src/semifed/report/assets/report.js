"use strict";
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const groups = content.groups, root = document.documentElement;
  const COLOURS = {
    light: ["#1f6fb4", "#d1600a", "#12805c", "#b03a8f", "#7a5fc4", "#9a6b00", "#c2323f", "#3f8f9f", "#5f6b75", "#6c8a1c"],
    dark: ["#6db3f2", "#ff9d4d", "#45c79a", "#f08ad4", "#b3a0f5", "#e0b64a", "#ff8087", "#6fd0e0", "#b4bec8", "#b4d455"],
  };
  const DASHES = ["solid", "dashed", "dotted", [10, 3, 2, 3]], SVG_DASH = ["", "5 3", "1.5 2.5", "7 2 1.5 2"];
  const FONT = getComputedStyle(document.body).fontFamily;
  const shown = groups.map(() => true), charts = [];
  let model = "";

  // Small things

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const remembered = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("semifed-theme");
      localStorage.setItem("semifed-theme", value);
    } catch { /* a page opened from a file may not remember */ }
    return null;
  };
  const digits = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
    return String(Number(value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4)));
  };
  const percent = (value) => (value === null || value === undefined ? "–" : `${Number((100 * value).toFixed(1))}%`);
  const bytes = (mb) => (mb >= 1000 ? `${digits(mb / 1000)} GB` : `${digits(mb)} MB`);
  let dark = false;
  const isDark = () => root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const found = new Map();  // to ask for a style after every change of the page would make it lay itself out each time
  const css = (name) => {
    if (!found.has(name)) found.set(name, getComputedStyle(root).getPropertyValue(name).trim());
    return found.get(name);
  };
  const colour = (place) => COLOURS[dark ? "dark" : "light"][place % 10];
  const dash = (place) => DASHES[Math.floor(place / 10) % DASHES.length];

  // Parts of a chart's option

  const base = () => ({
    animation: false,
    textStyle: { fontFamily: FONT, color: css("--ink") },
    grid: { left: 8, right: 16, top: 28, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    legend: { show: false },
    toolbox: {
      right: 0, top: -6, itemSize: 12, itemGap: 9,
      iconStyle: { borderColor: css("--soft") }, emphasis: { iconStyle: { borderColor: css("--accent") } },
      feature: {
        dataZoom: { filterMode: "none", title: { zoom: "Zoom into a box", back: "Zoom back" } },
        saveAsImage: { title: "Save as PNG", pixelRatio: 2, backgroundColor: css("--card") },
      },
    },
    tooltip: {
      confine: true, backgroundColor: css("--card"), borderColor: css("--line"), padding: [7, 10],
      textStyle: { color: css("--ink"), fontSize: 12.5 }, extraCssText: "box-shadow: 0 4px 14px rgb(0 0 0 / 18%)",
    },
  });
  const axis = (name, more = {}) => ({
    type: "value", name, nameLocation: "end", nameTextStyle: { color: css("--soft"), fontSize: 11.5 },
    axisLabel: { color: css("--soft"), fontSize: 11.5, hideOverlap: true }, axisLine: { lineStyle: { color: css("--line") } },
    axisTick: { show: false }, splitLine: { lineStyle: { color: css("--grid") } }, ...more,
  });
  const below = (name, more = {}) => axis(name, {
    nameLocation: "middle", nameGap: 24, splitLine: { show: false }, ...more,
  });

  // Lines of all groups

  const lines = (curveOf, { xName, yName, x, format = digits, xFormat = digits, yMore = {}, bounds: given = null }) => () => {
    const positive = groups.every((group) => (curveOf(group)?.mean ?? []).every((value) => value >= 0));
    const bounds = given ?? [positive ? 0 : -Infinity, Infinity];
    const inside = (value) => Math.min(bounds[1], Math.max(bounds[0], value));
    const series = [];
    groups.forEach((group, place) => {
      const curve = curveOf(group);
      if (!curve) return;
      const at = (index) => (x ? x(group, curve.x[index]) : curve.x[index]);
      const points = curve.mean.map((value, index) => [at(index), value, curve.std ? curve.std[index] : null]);
      const own = { name: String(place), z: 3 };
      if (curve.std) {
        series.push({
          ...own, type: "custom", z: 1, silent: true, tooltip: { show: false }, clip: true,
          data: points.map(([a, mean, std]) => [a, inside(mean - std), inside(mean + std)]), encode: { x: 0, y: [1, 2] },
          renderItem: (params, api) => {
            if (params.dataIndexInside !== 0) return null;
            const known = points.filter((point) => point[1] !== null);
            const upper = known.map(([a, mean, std]) => api.coord([a, inside(mean + std)]));
            const lower = known.map(([a, mean, std]) => api.coord([a, inside(mean - std)])).reverse();
            return { type: "polygon", shape: { points: upper.concat(lower) }, style: { fill: colour(place), opacity: 0.16 }, silent: true };
          },
        });
      }
      series.push({
        ...own, type: "line", data: points, encode: { x: 0, y: 1 }, showSymbol: points.length === 1, symbol: "circle", symbolSize: 5,
        connectNulls: false, lineStyle: { color: colour(place), width: 1.9, type: dash(place) }, itemStyle: { color: colour(place) },
        emphasis: { focus: "series", lineStyle: { width: 2.6 } }, blur: { lineStyle: { opacity: 0.18 } },
      });
    });
    const option = base();
    option.grid.bottom = 26;
    option.xAxis = below(xName, { min: x ? 0 : "dataMin", max: x ? null : "dataMax", minInterval: xName === "round" ? 1 : undefined,
      axisLabel: { color: css("--soft"), fontSize: 11.5, hideOverlap: true, showMinLabel: null, formatter: (value) => xFormat(value) } });
    option.yAxis = axis(yName, { scale: true, axisLabel: { color: css("--soft"), fontSize: 11.5, formatter: (value) => format(value) },
      min: (extent) => (extent.min - 0.1 * (extent.max - extent.min) <= bounds[0] ? bounds[0] : null), max: (extent) => (extent.max + 0.1 * (extent.max - extent.min) >= bounds[1] ? bounds[1] : null), ...yMore });
    option.series = series;
    option.tooltip.trigger = "axis";
    option.tooltip.axisPointer = { type: "line", lineStyle: { color: css("--soft"), type: "dashed" }, label: { show: false } };
    option.tooltip.formatter = (hit) => tip(hit.filter((one) => one.seriesType === "line"), xName, format, xFormat);
    return option;
  };
  const tip = (hit, xName, format, xFormat) => {
    const known = hit.filter((one) => one.data[1] !== null).sort((one, two) => two.data[1] - one.data[1]);
    const rows = known.slice(0, 14).map((one) => {
      const place = Number(one.seriesName), [, mean, std] = one.data;
      const spread = std ? ` <span class="pm">± ${escaped(format(std))}</span>` : "";
      return `<div class="line"><span class="name"><i style="background:${colour(place)}"></i>${escaped(groups[place].label)}</span>` +
        `<span><b>${escaped(format(mean))}</b>${spread}</span></div>`;
    });
    const rest = known.length > 14 ? `<div class="pm">and ${known.length - 14} more</div>` : "";
    const where = known.length ? `${xName} ${escaped(xFormat(known[0].data[0]))}` : "";
    return `<div class="tip"><div class="pm">${where}</div>${rows.join("")}${rest}</div>`;
  };

  // Heat maps

  const heat = (data, { format, valueName, rowName = "", largest }) => {
    const option = base(), cells = [];
    data.values.forEach((row, y) => row.forEach((value, x) => { if (value !== null) cells.push([x, y, value]); }));
    const most = largest ?? Math.max(1e-12, ...cells.map((cell) => cell[2]));
    option.toolbox.feature = { saveAsImage: option.toolbox.feature.saveAsImage };
    option.grid = { ...option.grid, bottom: 66 };
    option.xAxis = below("round", { type: "category", data: data.x, splitArea: { show: false } });
    option.yAxis = axis(rowName, { type: "category", data: data.names, inverse: true, splitLine: { show: false },
      axisLabel: { color: css("--soft"), fontSize: 11, width: 120, overflow: "truncate", hideOverlap: true, interval: data.names.length > 24 ? "auto" : 0 } });
    option.visualMap = scale(most, format);
    option.series = [{ type: "heatmap", data: cells, progressive: 0, itemStyle: { borderWidth: 0 }, emphasis: { itemStyle: { borderColor: css("--ink"), borderWidth: 1 } } }];
    option.tooltip.formatter = (one) => `<div class="tip"><div class="pm">round ${escaped(data.x[one.data[0]])}</div>` +
      `<div class="line"><span class="name">${escaped(data.names[one.data[1]])}</span><b>${escaped(format(one.data[2]))}</b></div><div class="pm">${escaped(valueName)}</div></div>`;
    return option;
  };
  const scale = (most, format) => ({
    type: "continuous", min: 0, max: most, orient: "horizontal", left: "center", bottom: 0, itemWidth: 11, itemHeight: 120,
    text: [format(most), format(0)], textStyle: { color: css("--soft"), fontSize: 11.5 }, calculable: false,
    inRange: { color: [css("--zero"), css("--mid"), css("--deep")] }, hoverLink: false,
  });

  // The split: who holds what

  const split = (one, what) => {
    const clients = one.labelled.length, names = one.labelled.map((_, client) => String(client));
    const server = one.server_labelled.concat(one.server_unlabelled).some((count) => count > 0);
    const labelled = server ? [one.server_labelled, ...one.labelled] : one.labelled;
    const unlabelled = server ? [one.server_unlabelled, ...one.unlabelled] : one.unlabelled;
    if (server) names.unshift("server");
    const option = base(), cells = [];
    labelled.forEach((row, x) => row.forEach((count, y) => {
      if (count + unlabelled[x][y]) cells.push([x, y, count, unlabelled[x][y]]);
    }));
    option.toolbox.feature = { saveAsImage: option.toolbox.feature.saveAsImage };
    option.xAxis = below(server ? "server and clients" : "client", { type: "category", data: names, axisLabel: { color: css("--soft"), fontSize: 11, hideOverlap: true } });
    option.yAxis = axis("", { type: "category", data: one.classes, inverse: true, splitLine: { show: what === "bubbles", lineStyle: { color: css("--grid") } },
      axisLabel: { color: css("--soft"), fontSize: 11, width: 110, overflow: "truncate", interval: one.classes.length > 20 ? "auto" : 0 } });
    option.tooltip.formatter = (hit) => {
      const [x, y, known, hidden] = hit.data.cell ?? hit.data;
      const who = names[x] === "server" ? "server" : `client ${names[x]}`;
      return `<div class="tip"><div class="pm">${escaped(who)}, class ${escaped(one.classes[y])}</div>` +
        `<div class="line"><span>labelled</span><b>${known}</b></div><div class="line"><span>unlabelled</span><b>${hidden}</b></div></div>`;
    };
    if (what === "bubbles") {
      const most = Math.max(1, ...cells.map((cell) => cell[2] + cell[3]));
      const size = (count) => (chart) => Math.sqrt(count / most) * chart;
      const dots = (index, total) => ({ cells: cells.filter((cell) => cell[index] > 0).map((cell) => ({ value: [cell[0], cell[1]], cell, size: size(total(cell)) })) });
      const width = () => Math.max(5, Math.min(34, (document.querySelector("#chart-split")?.clientWidth ?? 600) / (names.length + 2), 250 / one.classes.length));
      option.grid.bottom = 50;
      option.legend = { show: true, bottom: 0, left: "center", itemGap: 18, textStyle: { color: css("--ink"), fontSize: 12 } };
      option.series = [["unlabelled", 3, (cell) => cell[2] + cell[3], { color: css("--mid"), opacity: 0.42, borderColor: css("--mid"), borderWidth: 1 }],
        ["labelled", 2, (cell) => cell[2], { color: colour(1) }]].map(([name, index, total, style]) => ({
        name, type: "scatter", data: dots(index, total).cells, itemStyle: style, symbolSize: (_, params) => params.data.size(width()),
        emphasis: { scale: false, itemStyle: { borderColor: css("--ink"), borderWidth: 1.5, opacity: 0.9 } },
      }));
    } else {
      const pick = { labelled: (cell) => cell[2], unlabelled: (cell) => cell[3], all: (cell) => cell[2] + cell[3] }[what];
      option.grid.bottom = 66;
      const drawn = cells.map((cell) => ({ value: [cell[0], cell[1], pick(cell)], cell }));
      option.visualMap = scale(Math.max(1, ...drawn.map((cell) => cell.value[2])), (value) => String(Math.round(value)));
      option.series = [{ type: "heatmap", data: drawn, progressive: 0, emphasis: { itemStyle: { borderColor: css("--ink"), borderWidth: 1 } } }];
    }
    return option;
  };

  // Bars: what was sent in all

  const bars = () => {
    const order = groups.map((_, place) => place).filter((place) => shown[place]), option = base();
    const row = (way) => order.map((place) => groups[place][way]?.mean ?? 0);
    option.grid = { ...option.grid, bottom: 52, top: 8 };
    option.toolbox.feature = { saveAsImage: option.toolbox.feature.saveAsImage };
    option.legend = { show: true, bottom: 0, left: "center", itemGap: 18, textStyle: { color: css("--ink"), fontSize: 12 }, selectedMode: true };
    option.xAxis = below("", { axisLabel: { color: css("--soft"), fontSize: 11.5, hideOverlap: true, formatter: bytes }, splitLine: { show: true, lineStyle: { color: css("--grid") } } });
    option.yAxis = axis("", { type: "category", inverse: true, data: order.map((place) => groups[place].label), splitLine: { show: false },
      axisLabel: { color: css("--ink"), fontSize: 11.5, width: innerWidth < 640 ? 120 : 250, overflow: "truncate", interval: 0 } });
    option.series = [["to the clients (down)", "down", css("--mid")], ["to the server (up)", "up", colour(1)]].map(([name, way, fill]) => ({
      name, type: "bar", stack: "all", data: row(way), itemStyle: { color: fill }, barMaxWidth: 20,
    }));
    option.tooltip.trigger = "axis";
    option.tooltip.axisPointer = { type: "shadow", shadowStyle: { color: css("--grid"), opacity: 0.6 } };
    option.tooltip.formatter = (hit) => `<div class="tip"><div class="pm">${escaped(groups[order[hit[0].dataIndex]]?.label ?? "")}</div>` +
      hit.map((one) => `<div class="line"><span><i style="background:${one.color}"></i>${escaped(one.seriesName)}</span><b>${bytes(one.value)}</b></div>`).join("") + "</div>";
    return option;
  };

  // The page

  const sections = document.getElementById("sections");
  const section = (id, title, lead, small = false) => {
    const grid = make("div", { class: small ? "grid small" : "grid" });
    sections.append(make("section", { id }, make("h2", {}, title), make("p", { class: "lead" }, lead), grid));
    return grid;
  };
  const figure = (grid, id, title, note, build, { wide = false, badge = "", controls = [], height = null } = {}) => {
    const heading = make("h3", {}, title, badge ? make("span", { class: "badge" }, badge) : null);
    const box = make("div", { class: "chart", id: `chart-${id}`, role: "img", "aria-label": `${title}. ${note}` });
    const head = make("div", { class: "head" }, make("div", {}, heading, make("p", { class: "sub" }, note)), ...controls);
    grid.append(make("figure", { class: wide ? "wide" : null }, head, box));
    charts.push({ id, box, build, height, view: null });
  };
  const picker = (label, options, change) => {
    const select = make("select", { "aria-label": label }, ...options.map(([value, text]) => make("option", { value }, text)));
    select.addEventListener("change", () => { change(select.value); });
    return make("label", { class: "pick" }, select);
  };
  const has = (name) => groups.some((group) => group.curves[name]);
  const modelOf = (group) => (model && group.curves[`accuracy/${model}`] ? model : model ? null : group.model);
  const redraw = (id) => { const one = charts.find((chart) => chart.id === id); if (one) draw(one); };

  const accuracy = (group) => { const name = modelOf(group); return name === null ? null : group.curves[`accuracy/${name}`]; };
  let grid = section("accuracy", "Accuracy", "Mean over seeds; the band is one standard deviation to either side. Where labels and data are the same, compare at equal rounds, and at equal bytes.");
  if (groups.some((group) => Object.keys(group.curves).some((name) => name.startsWith("accuracy/")))) {
    const percentPoints = { yName: "% correct", bounds: [0, 100], format: (value) => Number(value.toFixed(2)).toString() };
    figure(grid, "accuracy-rounds", "Accuracy against rounds", "Test accuracy of the global model", lines(accuracy, { xName: "round", ...percentPoints }));
    figure(grid, "accuracy-bytes", "Accuracy against bytes", "The same against all that was sent, both ways", lines(accuracy, { xName: "MB sent", x: (group, round) => group.mb[round] ?? null, ...percentPoints }));
  } else grid.append(make("p", { class: "muted" }, "No round has been tested yet."));

  const terms = [...new Set(groups.flatMap((group) => Object.keys(group.curves).filter((name) => name.startsWith("term/"))))];
  if (terms.length) {
    grid = section("terms", "Loss terms", "Each term of the loss as it was descended, weight included: the mean over the steps and clients of a round.", true);
    terms.forEach((name, place) => figure(grid, `term-${place}`, name.slice(5).replaceAll("_", " "), name.startsWith("term/server ") ? "at the server" : "at the clients",
      lines((group) => group.curves[name], { xName: "round", yName: "" })));
  }

  const labelling = groups.map((_, place) => place).filter((place) => groups[place].classes);
  if (["coverage", "agreement", "right"].some(has)) {
    grid = section("health", "Pseudo-label health", "What the clients teach themselves. A collapse shows as a coverage near 100% with one class taking all; it raises an alarm.");
    const share = { xName: "round", yName: "", format: percent, bounds: [0, 1] };
    if (has("coverage")) figure(grid, "coverage", "Coverage", "Share of the unlabelled rows that got a label which counts", lines((group) => group.curves.coverage, share));
    if (has("right")) figure(grid, "right", "Right pseudo-labels", "Share of the given labels that equal the hidden ones", lines((group) => group.curves.right, share), { badge: "known in simulation only" });
    if (has("agreement")) figure(grid, "agreement", "Agreement", "Share of the rows on which two views or nets name the same class; for FedMatch, client and helpers", lines((group) => group.curves.agreement, share));
    if (labelling.length) {
      let chosen = labelling[0];
      const choose = picker("Which series", labelling.map((place) => [place, groups[place].label]), (value) => { chosen = Number(value); redraw("classes"); });
      figure(grid, "classes", "Classes of the pseudo-labels", "Share of the unlabelled rows that got a label of this class", () => heat(groups[chosen].classes, { format: percent, valueName: "of the unlabelled rows" }), { controls: [choose] });
    }
  }

  grid = section("traffic", "Communication", "Values and masks on the wire, as counted from what was sent; mean over seeds.");
  figure(grid, "sent", "Sent in all, per direction", "Of one run, all clients together", bars, { wide: true, height: () => 74 + 24 * Math.max(2, shown.filter(Boolean).length) });
  figure(grid, "down", "Down, round by round", "MB from the server to the clients", lines((group) => group.curves.down, { xName: "round", yName: "MB", yMore: { min: 0 } }));
  figure(grid, "up", "Up, round by round", "MB from the clients to the server", lines((group) => group.curves.up, { xName: "round", yName: "MB", yMore: { min: 0 } }));

  if (["late", "refused"].some(has)) {
    grid = section("aside", "Without an answer, or refused", "Clients of a round that gave no answer in time, and those whose update was set aside; mean over seeds. The table further down says whose, and why.");
    const number = { xName: "round", yName: "clients", yMore: { min: 0 } };
    if (has("late")) figure(grid, "late", "Stragglers, round by round", "Clients that gave no answer before the deadline", lines((group) => group.curves.late, number));
    if (has("refused")) figure(grid, "refused", "Refused updates, round by round", "Updates that were not finite, too long, of the wrong shape, or unchanged", lines((group) => group.curves.refused, number));
  }

  const layered = groups.map((_, place) => place).filter((place) => Object.keys(groups[place].layers).length);
  if (layered.length) {
    grid = section("layers", "Layers", "What clients send of each layer, the mean over the clients of a round and over seeds; FedSiam-D sends the layers that diverge most between online and target net.");
    let chosen = layered[0];
    const kinds = [...new Set(layered.flatMap((place) => Object.keys(groups[place].layers)))];
    const present = () => kinds.forEach((kind, place) => { document.getElementById(`chart-layer-${place}`).parentElement.hidden = !groups[chosen].layers[kind]; });
    const choose = picker("Which series", layered.map((place) => [place, groups[place].label]), (value) => {
      chosen = Number(value);
      present();
      kinds.forEach((_, place) => redraw(`layer-${place}`));
    });
    grid.before(make("p", {}, choose));
    kinds.forEach((kind, place) => {
      const part = kind.endsWith(" sent");
      const note = part ? "Share of the layer that clients have sent; 0 is withheld" : kind === "divergence" ? "|target − online| / |online| of each layer" : "By layer and round";
      figure(grid, `layer-${place}`, part ? `Layers sent: ${kind.slice(0, -5)}` : kind[0].toUpperCase() + kind.slice(1), note, () => {
        const data = groups[chosen].layers[kind] ?? { x: [], names: [], values: [] };
        return heat(data, { format: part ? percent : digits, valueName: part ? "was sent" : kind, largest: part ? 1 : undefined });
      }, { height: () => Math.max(240, 120 + 17 * (groups[chosen].layers[kind]?.names.length ?? 0)) });
    });
    present();
  }

  if (content.splits.length) {
    grid = section("split", "Who holds what", "Samples by client and class, labelled against unlabelled. The classes of unlabelled samples are known in simulation only.");
    let chosen = 0, what = "auto";
    const kind = () => (what !== "auto" ? what : content.splits[chosen].labelled.length <= 40 ? "bubbles" : "all");
    const choose = picker("Which split", content.splits.map((one, place) => [place, one.label]), (value) => { chosen = Number(value); redraw("split"); });
    const form = picker("How it is drawn", [["auto", "automatic"], ["bubbles", "bubbles"], ["all", "heat map: all"], ["labelled", "heat map: labelled"], ["unlabelled", "heat map: unlabelled"]],
      (value) => { what = value; redraw("split"); });
    figure(grid, "split", "The split", "The area of a circle is the number of samples; the solid part is labelled", () => split(content.splits[chosen], kind()),
      { wide: true, badge: "known in simulation only", controls: [choose, form], height: () => Math.max(280, 110 + 24 * content.splits[chosen].classes.length) });
  }

  // Drawing and switching

  const draw = (chart) => {
    if (chart.box.parentElement.hidden) return;
    if (chart.height) chart.box.style.height = `${Math.min(1600, chart.height())}px`;
    if (chart.view) chart.view.resize();
    else chart.view = echarts.init(chart.box, null, { renderer: "canvas" });
    const option = chart.build();
    option.legend.selected = Object.fromEntries(groups.map((_, place) => [String(place), shown[place]]));
    if (!option.legend.show) option.legend.data = groups.map((_, place) => String(place));
    chart.view.setOption(option, true);
    chart.box.dataset.drawn = "1";
  };
  const drawAll = () => {
    const waiting = [...charts], started = performance.now();
    delete root.dataset.drawn;
    const some = () => {
      const until = performance.now() + 40;
      while (waiting.length && performance.now() < until) draw(waiting.shift());
      if (waiting.length) setTimeout(some, 0);
      else { root.dataset.drawn = String(document.querySelectorAll("[data-drawn='1'].chart").length); root.dataset.milliseconds = String(Math.round(performance.now() - started)); }
    };
    some();
  };
  const chips = document.getElementById("chips");
  const paint = () => {
    document.querySelectorAll("[data-swatch]").forEach((node) => { node.style.background = colour(Number(node.dataset.swatch)); });
    chips.querySelectorAll("line").forEach((node, place) => node.setAttribute("stroke", colour(place)));
    document.getElementById("shown").textContent = `${shown.filter(Boolean).length} of ${groups.length} shown`;
    chips.querySelectorAll("button").forEach((node, place) => node.setAttribute("aria-pressed", String(shown[place])));
  };
  const change = (places, on) => {
    places.forEach((place) => { shown[place] = on; });
    paint();
    charts.forEach((chart) => {
      if (chart.id === "sent") return draw(chart);
      if (!chart.view || chart.view.getOption().legend[0].show) return undefined;
      return places.forEach((place) => chart.view.dispatchAction({ type: on ? "legendSelect" : "legendUnSelect", name: String(place) }));
    });
  };
  groups.forEach((group, place) => {
    const picture = `<svg width="20" height="8" aria-hidden="true"><line x1="0" y1="4" x2="20" y2="4" stroke-width="3" stroke-dasharray="${SVG_DASH[Math.floor(place / 10) % 4]}"/></svg>`;
    const chip = make("button", { type: "button", class: "chip", "aria-pressed": "true" });
    chip.innerHTML = picture;
    chip.append(make("span", {}, group.label));
    chip.addEventListener("click", () => change([place], !shown[place]));
    chips.append(chip);
  });
  document.querySelectorAll("[data-all]").forEach((button) => button.addEventListener("click", () => change(groups.map((_, place) => place), button.dataset.all === "1")));
  const models = [...new Set(groups.flatMap((group) => Object.keys(group.curves).filter((name) => name.startsWith("accuracy/")).map((name) => name.slice(9))))];
  const select = document.getElementById("model");
  select.append(make("option", { value: "" }, "the one a run hands out"), ...models.map((name) => make("option", { value: name }, name)));
  select.parentElement.hidden = models.length < 2;
  if (models.length < 2) select.parentElement.style.display = "none";
  select.addEventListener("change", () => { model = select.value; redraw("accuracy-rounds"); redraw("accuracy-bytes"); });
  if (innerWidth < 640) document.getElementById("switches").open = false;

  const theme = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    dark = isDark();
    found.clear();
    document.querySelectorAll("[data-theme-set]").forEach((node) => node.setAttribute("aria-checked", String(node.dataset.themeSet === name)));
    paint();
    drawAll();
  };
  document.querySelectorAll("[data-theme-set]").forEach((node) => node.addEventListener("click", () => { remembered(node.dataset.themeSet); theme(node.dataset.themeSet); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!root.dataset.theme) theme("auto"); });
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => charts.forEach((chart) => { if (chart.view && !chart.box.parentElement.hidden) (chart.height || chart.id === "split" ? draw(chart) : chart.view.resize()); }), 120); });

  document.querySelectorAll("table.sortable thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0], up = head.getAttribute("aria-sort") !== "descending";
      const value = (row) => { const text = row.cells[column].dataset.value ?? row.cells[column].textContent; return text === "" ? -Infinity : Number.isNaN(Number(text)) ? text : Number(text); };
      const rows = [...body.rows].sort((one, two) => { const a = value(one), b = value(two); return (a > b ? 1 : a < b ? -1 : 0) * (up ? -1 : 1); });
      head.closest("tr").querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "descending" : "ascending");
      body.append(...rows);
    });
  });
  theme(remembered() ?? "auto");
})();
