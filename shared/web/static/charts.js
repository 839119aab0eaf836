// Makes a chart of every element with data-chart, by uPlot. What the attribute holds is said in shared/web/charts.py.
"use strict";

const HEIGHT = 240; // of a chart without its legend, in CSS pixels
const FONT = "12px system-ui, sans-serif";
const COLOURS = 6; // of the palette in page.css; further lines have them again, dashed
const DASH = [7, 4];
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const plots = new Map(); // element -> its chart
const putAway = new Set(); // lines that the reader has put away, by chart and name: a chart is drawn anew when it grows

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) plots.get(target)?.setSize({ width: target.clientWidth, height: HEIGHT });
});

function drawCharts() {
  for (const element of plots.keys()) if (!element.isConnected) removeChart(element);
  for (const element of document.querySelectorAll("[data-chart]")) if (!plots.has(element)) drawChart(element);
}

function removeChart(element) {
  sizes.unobserve(element);
  plots.get(element).destroy();
  plots.delete(element);
}

function drawChart(element) {
  const chart = JSON.parse(element.dataset.chart);
  const options = {
    width: element.clientWidth,
    height: HEIGHT,
    scales: { x: { time: false, range: xRange }, y: { range: (_, low, high) => yRange(chart.bounds, low, high) } },
    axes: [axis(chart.x, true, { size: 30 }), axis(chart.y, !chart.digits, { size: widest })],
    series: [{ label: chart.x }, ...chart.lines.map((_, order) => line(element, chart, order))],
    legend: { show: false },
    hooks: {
      draw: [(plot) => chart.mark && drawMark(plot, ...chart.mark), (plot) => sayZoom(element, plot)],
      setCursor: [(plot) => sayValues(element, plot, chart)],
    },
  };
  addLegend(element, chart);
  plots.set(element, new uPlot(options, chart.columns, element));
  sizes.observe(element);
}

// Below the chart: a button for each line, which puts it away or shows it again, and whether the axis begins at 0.
function addLegend(element, chart) {
  element.parentElement.querySelector(".lines")?.remove();
  const legend = Object.assign(document.createElement("div"), { className: "lines" });
  legend.append(...chart.lines.map((name, order) => lineButton(element, chart, name, order)));
  legend.append(Object.assign(document.createElement("p"), { className: "zoom" }));
  element.after(legend);
}

function lineButton(element, chart, name, order) {
  const button = Object.assign(document.createElement("button"), { type: "button", disabled: chart.lines.length < 2 });
  const look = `swatch line-${order % COLOURS}${isDashed(chart, order) ? " dashed" : ""}`;
  const swatch = Object.assign(document.createElement("span"), { className: look });
  const value = Object.assign(document.createElement("span"), { className: "value" });
  button.append(swatch, name, value);
  button.setAttribute("aria-pressed", String(isShown(element, name)));
  button.addEventListener("click", () => toggle(element, name, order, button));
  return button;
}

function toggle(element, name, order, button) {
  const key = lineKey(element, name);
  if (!putAway.delete(key)) putAway.add(key);
  plots.get(element).setSeries(order + 1, { show: isShown(element, name) });
  button.setAttribute("aria-pressed", String(isShown(element, name)));
}

function lineKey(element, name) {
  return `${element.closest("figure").id}/${name}`;
}

function isShown(element, name) {
  return !putAway.has(lineKey(element, name));
}

function isDashed(chart, order) {
  return chart.dashed[order] || Math.floor(order / COLOURS) % 2 === 1;
}

// The values under the pointer.
function sayValues(element, plot, chart) {
  const { idx } = plot.cursor;
  element.parentElement.querySelectorAll(".lines .value").forEach((one, order) => {
    const value = idx == null ? null : chart.columns[order + 1][idx];
    one.textContent = value == null ? "" : ` ${value.toFixed(chart.digits)} at ${chart.columns[0][idx]}`;
  });
}

function sayZoom(element, plot) {
  const { min } = plot.scales.y;
  const note = element.parentElement.querySelector(".zoom");
  const text = min > 0 ? `Zoomed: the axis begins at ${+min.toPrecision(3)}, not at 0.` : "";
  if (note.textContent !== text) note.textContent = text;
}

function xRange(_, low, high) {
  return low === high ? [low - 1, high + 1] : [low, high];
}

function yRange([least, most], low, high) {
  const [start, end] = uPlot.rangeNum(low, high, 0.1, false);
  return [least ?? start, most ?? end];
}

// Room for the longest of the numbers beside an axis.
function widest(_, numbers) {
  return 20 + 7 * Math.max(0, ...(numbers ?? []).map((text) => text?.length ?? 0));
}

function shortest(_, numbers) {
  return numbers.map((number) => (number === null ? "" : String(+number.toPrecision(10))));
}

function axis(label, whole, more) {
  const looks = { stroke: colour("muted"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false } };
  const text = { label, values: shortest, font: FONT, labelFont: FONT, labelSize: 20 };
  return { ...looks, ...text, ...(whole && { incrs: WHOLE }), ...more };
}

function line(element, chart, order) {
  const label = chart.lines[order];
  const looks = { stroke: colour(`line-${order % COLOURS}`), dash: isDashed(chart, order) ? DASH : [] };
  return { label, ...looks, show: isShown(element, label), width: 2, spanGaps: true };
}

function drawMark({ ctx, bbox, valToPos }, x, words) {
  const left = valToPos(x, "x", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("muted");
  ctx.setLineDash([4, 6]);
  ctx.stroke(new Path2D(`M${left} ${bbox.top}v${bbox.height}`));
  ctx.font = FONT.replace("12", 12 * devicePixelRatio);
  ctx.textAlign = left > bbox.left + bbox.width / 2 ? "right" : "left";
  ctx.textBaseline = "top";
  ctx.fillText(` ${words} `, left, bbox.top);
  ctx.restore();
}

function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(`--${name}`);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const element of plots.keys()) removeChart(element);
  drawCharts();
});
drawCharts();
