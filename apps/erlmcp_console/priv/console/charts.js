// Plots of the last quarter of an hour, by uPlot, which the build puts beside this file.

import {h, text} from './dom.js';
import {clock} from './text.js';

const SPAN_S = 900;

// Steps between the labels of an axis, so that each label is another text: whole numbers, tenths,
// hundredths and bytes.
const upTo = (exponents, base, parts) => [...Array(exponents).keys()]
  .flatMap(exponent => parts.map(part => part * base ** exponent));
export const whole = upTo(13, 10, [1, 2, 5]);
export const tenths = whole.map(step => step / 10);
export const hundredths = whole.map(step => step / 100);
export const binary = upTo(6, 1024, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas cannot read the colours of a style sheet.
function resolved(name) {
  const probe = h('span', {hidden: true});
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

const faded = (value, share) => value.replace('rgb(', 'rgba(').replace(')', `, ${share})`);

export class Chart {
  // options: title, unit, series: [{key, name, color, fill}], write: number -> text, steps
  // between its labels, bound: snapshot -> {value, name} or null
  constructor(parent, options) {
    this.options = options;
    this.marks = [];
    this.bound = null;
    this.values = options.series.map(({name, color: shade}) => {
      const value = h('strong', {}, '–');
      return {value, item: h('li', {}, h('i', {class: 'key', 'data-color': shade}), name + ' ',
                             value)};
    });
    for (const {item} of this.values) {
      const key = item.firstElementChild;
      key.style.background = `var(${key.dataset.color})`;
    }
    this.figure = h('strong', {class: 'figure'}, '–');
    this.side = h('span', {class: 'quiet'}, '');
    this.plot = h('div', {class: 'plot', role: 'img'});
    this.element = h('article', {class: 'card chart', 'aria-label': options.title},
      h('header', {}, h('h3', {}, options.title),
        h('p', {class: 'headline'}, this.figure, ' ', this.side)),
      this.plot, h('ul', {class: 'keys'}, ...this.values.map(({item}) => item)));
    parent.append(this.element);
    if (!globalThis.uPlot) {
      this.plot.classList.add('missing');
      this.plot.append(h('p', {class: 'quiet'},
        'No plots: uPlot is not here. The project’s build fetches it, with npm.'));
    }
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  size() {
    return {width: Math.max(120, this.plot.clientWidth),
            height: Math.max(90, this.plot.clientHeight)};
  }

  resize() {
    if (this.uplot) this.uplot.setSize(this.size());
  }

  // Colours are part of the plot, so a change of the theme makes it anew.
  restyle() {
    this.uplot?.destroy();
    this.uplot = null;
    if (this.data) this.draw();
  }

  update(history, snapshot, marks) {
    const {series, bound, write, figure, side} = this.options;
    this.data = [history.at.map(ms => ms / 1000), ...series.map(({key}) => history[key])];
    this.marks = marks;
    this.bound = bound ? bound(snapshot) : null;
    const last = this.data[0].length - 1;
    text(this.figure, figure(history, last));
    text(this.side, side ? side(snapshot) : '');
    this.draw();
    if (!this.hovered) this.show(last);
    const first = this.data[1].filter(value => value != null);
    this.plot.setAttribute('aria-label',
      `${this.options.title}: ${series[0].name} now ${write(first.at(-1) ?? 0)}, at most ` +
      `${write(Math.max(0, ...first))} in the last 15 minutes`);
  }

  show(index) {
    this.values.forEach(({value}, place) => {
      const number = this.data[place + 1][index];
      text(value, number == null ? '–' : this.options.write(number));
    });
  }

  draw() {
    if (!globalThis.uPlot || this.plot.clientWidth === 0) return;
    if (!this.uplot) this.uplot = new uPlot(this.settings(), this.data, this.plot);
    else this.uplot.setData(this.data);
  }

  // The bound is in sight when the values come near it.
  top(max) {
    const {least = 1} = this.options;
    const high = Math.max(least, max * 1.15);
    const bound = this.bound?.value;
    return bound && bound <= high * 2.5 ? Math.max(high, bound * 1.12) : high;
  }

  settings() {
    const quiet = resolved('--quiet'), line = resolved('--line');
    const size = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const font = `${0.7 * size}px ${color('--font')}`;
    const {write, series, steps} = this.options;
    const axis = {stroke: quiet, font, ticks: {show: false}};
    return {
      ...this.size(),
      legend: {show: false},
      padding: [10, 6, 0, 0],
      cursor: {sync: {key: 'console'}, y: false, points: {size: 7}, drag: {x: false, y: false}},
      scales: {
        x: {range: () => {
          const now = this.data[0].at(-1) ?? Date.now() / 1000;
          return [now - SPAN_S, now];
        }},
        y: {range: (_, low, high) => [0, this.top(high ?? 0)]},
      },
      axes: [
        {...axis, grid: {show: false}, space: 4.4 * size, size: 1.5 * size,
         values: (_, ticks) => ticks.map(second => clock(second * 1000))},
        {...axis, grid: {stroke: line, width: 1}, size: (_, values) =>
           size * (0.7 + 0.41 * Math.max(3, ...(values ?? []).map(value => value.length))),
         incrs: steps, space: 2.2 * size,
         values: (_, ticks) => ticks.map(tick => tick ? write(tick) : '0')},
      ],
      series: [{}, ...series.map(({color: name, fill}) => {
        const shade = resolved(name);
        return {stroke: shade, width: 1.75, points: {show: false},
                fill: fill ? faded(shade, 0.14) : undefined};
      })],
      hooks: {
        setCursor: [plot => {
          const index = plot.cursor.idx;
          this.hovered = index != null && plot.cursor.left >= 0;
          this.show(this.hovered ? index : this.data[0].length - 1);
        }],
        drawAxes: [plot => this.drawMarks(plot)],
        draw: [plot => this.drawBound(plot)],
      },
    };
  }

  drawMarks(plot) {
    const {ctx, bbox} = plot;
    ctx.save();
    for (const {at, kind} of this.marks) {
      const x = plot.valToPos(at / 1000, 'x', true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = resolved(`--mark-${kind}`);
      ctx.lineWidth = devicePixelRatio;
      ctx.globalAlpha = 0.55;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.arc(x, bbox.top, 3 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  drawBound(plot) {
    if (!this.bound) return;
    const {ctx, bbox} = plot;
    const y = plot.valToPos(this.bound.value, 'y', true);
    const above = y < bbox.top;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = resolved('--bad');
    ctx.lineWidth = devicePixelRatio;
    if (!above) {
      ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.globalAlpha = above ? 0.75 : 1;
    const size = parseFloat(getComputedStyle(document.documentElement).fontSize);
    ctx.font = `${0.7 * size * devicePixelRatio}px ${color('--font')}`;
    ctx.textAlign = 'left';
    ctx.textBaseline = above ? 'top' : 'bottom';
    ctx.fillText((above ? '↑ ' : '') + this.bound.name, bbox.left + 6 * devicePixelRatio,
      above ? bbox.top + 1 : y - 3 * devicePixelRatio);
    ctx.restore();
  }
}
