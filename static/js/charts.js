// Draws the charts of Statistics from the numbers in the page. The table below shows the same without scripts.
const source = document.getElementById("chart-data");
const charts = [];

function token(name) {
  // A pair of colours resolves only where it is used, so it is read back from an element.
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

const zone = source ? (JSON.parse(source.textContent).zone ?? "UTC") : "UTC";
const inZone = (shape) => new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...shape });
const hours = inZone({ hour: "2-digit", minute: "2-digit" });
const days = inZone({ day: "numeric", month: "short" });
const moments = inZone({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function ticks(_, splits) {
  // The day under the first hour of each day; hours alone elsewhere.
  let before = "";
  const isDaily = splits.length > 1 && splits[1] - splits[0] >= 86400;
  return splits.map((second) => {
    const day = days.format(second * 1000);
    if (isDaily) return day;
    const text = day === before ? hours.format(second * 1000) : `${hours.format(second * 1000)}\n${day}`;
    before = day;
    return text;
  });
}

/** The hour or day in which a moment lies; each is named by its start. */
function placeOf(data, second) {
  const after = data.at.findIndex((start) => start > second);
  return after < 0 ? data.at.length - 1 : Math.max(0, after - 1);
}

function options(box, data, step, isBars) {
  const [names, words, looks] = [
    box.dataset.chart.split(" "),
    box.dataset.words.split("|"),
    box.dataset.looks.split("|"),
  ];
  // Days of a change of the clocks have 23 or 25 hours.
  const [unit, shape] = step >= 23 * 3600 ? ["Day", days] : step >= 3600 ? ["Hour", moments] : ["Time", moments];
  const axis = {
    stroke: token("ink-3"),
    grid: { stroke: token("line"), width: 1 },
    ticks: { stroke: token("line"), width: 1 },
  };
  return {
    width: box.clientWidth,
    height: 200,
    tzDate: (second) => uPlot.tzDate(new Date(second * 1000), zone === "UTC" ? "Etc/UTC" : zone),
    cursor: {
      points: { size: 6 },
      drag: { setScale: true, x: true, y: false },
      // Not the nearest start, which after the middle of a step is that of the next one.
      dataIdx: (_, __, ___, second) => placeOf(data, second),
    },
    scales: {
      x: { range: (_, first, last) => [first, last] },
      y: { range: (_, low, high) => [0, Math.max(high, 4)] },
    },
    axes: [
      { ...axis, values: ticks },
      {
        ...axis,
        size: 56,
        incrs: [
          1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8,
        ],
      },
    ],
    series: [
      { label: unit, value: (_, second) => (second === null ? "–" : shape.format(second * 1000)) },
      ...names.map((name, index) => ({
        label: words[index],
        stroke: token(looks[index]),
        fill: isBars || name === "blocked" ? token(`${looks[index]}-soft`) : undefined,
        width: name === "checks" ? 1.5 : 2,
        dash: ["warned", "errors", "high"].includes(name) ? [6, 3] : undefined,
        value: (_, count, __, place) => (place === null ? "–" : (count ?? 0).toLocaleString("en")),
        paths: isBars ? uPlot.paths.bars({ size: [0.8, 40], align: 1 }) : uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
      })),
    ],
  };
}

/** A click leads to the rows of an hour or a day; dragging zooms. */
function bindRows(chart, data, address) {
  let from = 0;
  chart.over.addEventListener("mousedown", (event) => {
    from = event.clientX;
  });
  chart.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - from) < 4) open(data, address, placeOf(data, chart.posToVal(chart.cursor.left, "x")));
  });
}

function open(data, address, place) {
  const step = data.at.length > 1 ? data.at[1] - data.at[0] : 3600;
  const url = new URL(address, location.href);
  const ends = [data.at[place], data.at[place + 1] ?? data.at[place] + step];
  url.searchParams.set("range", ends.map((second) => new Date(second * 1000).toISOString()).join("/"));
  location.assign(url);
}

function draw() {
  const data = JSON.parse(source.textContent);
  const step = data.at.length > 1 ? data.at[1] - data.at[0] : 3600;
  for (const chart of charts.splice(0)) chart.destroy();
  for (const box of document.querySelectorAll("[data-chart]")) {
    const isBars = box.dataset.shape === "bars";
    const columns = [data.at, ...box.dataset.chart.split(" ").map((name) => data[name])];
    // An empty bar would be drawn as a dash on the axis.
    const withoutZeros = (column, index) => (index ? column.map((count) => count || null) : column);
    // One point more: the end of the last step.
    const extended = (column, index) => [...column, index ? (isBars ? null : column.at(-1)) : column.at(-1) + step];
    const shown = isBars ? columns.map(withoutZeros) : columns;
    const chart = new uPlot(options(box, data, step, isBars), shown.map(extended), box);
    charts.push(chart);
    if (data.urls) bindRows(chart, data, data.urls[box.dataset.rows]);
  }
}

if (source && window.uPlot) {
  draw();
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (width !== document.body.clientWidth) {
      width = document.body.clientWidth;
      draw();
    }
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
