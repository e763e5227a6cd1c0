// Three shares over time, drawn by uPlot in the colours of the page.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT = 220;

export class Chart {
  /** `told(timeS, shares)` is called with what lies under the pointer, or with the last shares and null for the time. */
  constructor(box, told) {
    this.box = box;
    this.told = told;
    this.plot = null;
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot?.redraw());
  }

  size() {
    return { width: Math.max(240, this.box.clientWidth), height: HEIGHT };
  }

  /** `times` in seconds since 1970; `lines` are delivered, predicted and available, each 0 to 1 or null. */
  show(times, lines) {
    const data = [times, ...lines];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.box);
    this.tell();
  }

  tell() {
    const { cursor, data } = this.plot;
    const under = cursor.idx ?? null;
    const place = under ?? data[0].length - 1;
    this.told(under === null ? null : data[0][place], data.slice(1).map((line) => line[place] ?? null));
  }

  options() {
    const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const line = (label, dash, width) => ({ label, width, dash, stroke: () => css(`--${label}`), points: { show: (plot) => plot.data[0].length < 3 }, spanGaps: false });
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      hooks: { setCursor: [() => this.plot && this.tell()] },
      scales: { y: { range: [0, 1] } },
      axes: [
        { ...axis, size: 30, space: 72, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 48, values: (_, stops) => stops.map((stop) => `${Math.round(100 * stop)} %`) },
      ],
      series: [{}, line("delivered", [], 3.5), line("predicted", [8, 5], 1.75), line("available", [2, 4], 1.75)],
    };
  }
}
