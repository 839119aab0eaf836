// Makes a chart of every element with data-chart, by uPlot. What the attribute holds is said in shared/web/charts.py.
"use strict";

const HEIGHT = 240; // of a chart without its legend, in CSS pixels
const FONT = "12px system-ui, sans-serif";
const DASHES = [[], [7, 4], [], [2, 5], [], [9, 4, 2, 4]]; // colours alone would not tell lines apart
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const plots = new Map(); // element -> its chart

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
    series: [place(chart.x), ...chart.lines.map((name, order) => line(name, order, chart.digits))],
    hooks: { draw: chart.mark ? [(plot) => drawMark(plot, ...chart.mark)] : [] },
  };
  plots.set(element, new uPlot(options, chart.columns, element));
  sizes.observe(element);
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

function place(label) {
  return { label, value: (_, number) => number ?? "–" };
}

function line(label, order, digits) {
  const tone = order % DASHES.length;
  const value = (_, number) => number?.toFixed(digits) ?? "–";
  return { label, stroke: colour(`line-${tone}`), dash: DASHES[tone], width: 2, spanGaps: true, value };
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
