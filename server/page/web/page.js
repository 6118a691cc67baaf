// The status page. What the server answers is put in as text, never as HTML: names and messages
// are what callers chose.
'use strict';
(() => {

const POLL_MS = 2000;
const PAGE_ROWS = 25;
const TOKEN_KEY = 'sparsed-token';

// ---- Elements

const $ = (id) => document.getElementById(id);

/** An element. `attrs`: attributes, on (listeners by event), width%, left%. */
function h(tag, attrs, ...children) {
  const element = document.createElement(tag);
  fill(element, attrs, children);
  return element;
}
function svg(tag, attrs, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  fill(element, attrs, children);
  return element;
}
function fill(element, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) {
        element.addEventListener(event, listener);
      }
    } else if (name === 'width%') {
      element.style.width = `${Math.max(0, Math.min(100, value))}%`;
    } else if (name === 'left%') {
      element.style.left = `${Math.max(0, Math.min(99, value))}%`;
    } else {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** Puts other children in, and leaves the focus where it was if that is still there. */
function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ?
      document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children.flat().filter((child) => child !== null));
  if (focused) {
    for (const candidate of element.querySelectorAll('[data-key]')) {
      if (candidate.dataset.key === focused) candidate.focus({preventScroll: true});
    }
  }
}

/** For what is read aloud when it changes, and only then. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ---- Numbers

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const NONE = '–';

/** To so many significant digits; what is a whole number stays one. */
function digits(value, significant = 3) {
  const near = Math.round(value);
  if (value >= 10 ** (significant - 1) || Math.abs(value - near) < 1e-9 * near || value === 0) {
    return whole.format(near);
  }
  return value.toPrecision(significant);
}
function count(value) {
  if (value < 1e6) return whole.format(value);
  for (const [unit, size] of [['G', 1e9], ['M', 1e6]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
}
function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${digits(value)} ${units[unit]}`;
}
function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return '0 s';
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 120) return `${digits(value)} s`;
  return span(value);
}
/** A number and its unit on one line. */
const unbroken = (text) => text.replaceAll(' ', '\u00a0');
/** Where a column is narrow, words that are no longer than numbers are not broken in it. */
const shortWordsKept = (text) => text.split(' ').flatMap((word) =>
  [word.length > 16 ? word : h('span', {class: 'keep'}, word), ' ']);
/** In its two largest units: "2 h 5 min", "1 d". */
function span(value) {
  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const first = Math.max(0, units.findIndex(([, size]) => value >= size));
  const parts = [];
  for (const [unit, size] of value < 1 ? [] : units.slice(first, first + 2)) {
    const number = Math.floor(value / size);
    if (number > 0) parts.push(`${number} ${unit}`);
    value -= number * size;
  }
  return parts.join(' ') || '0 s';
}
/** Of an axis: 0.5, 20, 1,000. */
const plain = (value) => value < 100 ? String(Number(value.toPrecision(2))) : count(value);
const rate = (value) => value < 0.005 ? NONE : digits(value, value < 0.1 ? 1 : 3);
const percent = (value) => value === null || value === undefined ?
    NONE : `${digits(value * 100)} %`;
const times = (value) => value === null || value === undefined ? NONE : `${value.toFixed(2)}×`;
/** In UTC, as the server's log has it: "2026-01-31 12:00:00". */
const dateTime = (unix) => new Date(unix * 1000).toISOString().slice(0, 19).replace('T', ' ');
/** Without the day, if it is today. */
function moment(unix) {
  const [day, time] = dateTime(unix).split(' ');
  return day === dateTime(Date.now() / 1000).split(' ')[0] ? time : `${day} ${time}`;
}
const ms = (value) => value === null || value === undefined ? NONE : seconds(value / 1000);

// ---- What the server says

let token = sessionStorage.getItem(TOKEN_KEY);

class Refused extends Error {}

/** Without those that are not given. */
function queryOf(parameters) {
  const given = Object.entries(parameters);
  return new URLSearchParams(given.filter(([, value]) => value || value === 0)).toString();
}

async function ask(path, parameters = {}) {
  const query = queryOf(parameters);
  const reply = await fetch(`/api/${path}${query ? '?' + query : ''}`,
                            {headers: token ? {authorization: `Bearer ${token}`} : {},
                             cache: 'no-store', signal: AbortSignal.timeout(15000)});
  const text = await reply.text();
  if (reply.status === 401) throw new Refused(text.trim());
  if (reply.ok) return JSON.parse(text);
  let sentence = text.trim();
  try {
    sentence = JSON.parse(text).error;
  } catch (error) { /* a sentence that is no JSON */ }
  const failure = new Error(sentence || `status ${reply.status}`);
  failure.status = reply.status;
  throw failure;
}

function askForToken(why) {
  if ($('sign-in').open) return;
  if (token) $('sign-in-why').textContent = why;
  $('sign-in').showModal();
}

// ---- Where we are: "#/matrices?sort=bytes"

/** What is no text in an address stays as it is. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    return text;
  }
}

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const parameters = Object.fromEntries(new URLSearchParams(query || ''));
  return {view: path || 'overview', parameters};
}
function address(view, parameters = {}) {
  const query = queryOf(parameters);
  return `#/${view}${query ? '?' + query : ''}`;
}
/** Other parameters for the same view, without a step back for each. */
function adjust(changes) {
  const {view, parameters} = place();
  history.replaceState(null, '', address(view, {...parameters, ...changes}));
}

// ---- Parts of views

const card = (title, ...content) =>
    h('section', {class: 'card'}, title ? h('h2', {}, title) : null, ...content);

function pill(text, kind = '') {
  return h('span', {class: `pill ${kind}`}, text);
}
const STATES = {READY: 'good', PREPARING: 'busy', QUEUED: 'warn', FAILED: 'bad'};
const state = (name) => pill(name.toLowerCase(), STATES[name]);
const NODE_STATES = {serving: 'good', gone: 'bad', draining: 'warn', drained: 'warn', unknown: 'warn'};
const codeKind = (name) => name === 'OK' ? 'good' :
    ['INTERNAL', 'UNKNOWN', 'DATA_LOSS', 'UNAVAILABLE'].includes(name) ? 'bad' : 'warn';

/** A request's matrix, where it is about one that may be there: "alice~web" is alice's. */
const OF_MATRICES = ['spmm', 'sddmm', 'spgemm', 'chain', 'upload', 'update_values', 'download',
                     'prepare', 'share', 'explain'];
function subjectOf(row) {
  if (!row.matrix) return NONE;
  const missing = row.op === 'upload' ? row.code !== 'OK' : row.code === 'NOT_FOUND';
  if (missing || !OF_MATRICES.includes(row.op)) return row.matrix;
  const mark = row.matrix.indexOf('~');
  const of = mark < 0 ? {tenant: row.tenant, name: row.matrix} :
      {tenant: row.matrix.slice(0, mark), name: row.matrix.slice(mark + 1)};
  return h('a', {href: address('matrix', of),
                 'data-key': `${row.op}-${row.ended || row.seconds}-${row.matrix}`}, row.matrix);
}

function matrixLink(row, text) {
  return h('a', {href: address('matrix', {tenant: row.tenant, name: row.name}),
                 'data-key': `${row.tenant}~${row.name}`}, text || row.name);
}

/** `share` of the width; `mark`: where a line is, or undefined. */
function meter(share, mark) {
  return h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {'width%': share * 100}),
           mark === undefined ? null : h('b', {'left%': mark * 100}));
}
function stack(parts, whole_, small) {
  return h('span', {class: small ? 'stack small' : 'stack', 'aria-hidden': 'true'},
           parts.map(([, value], i) => h('i', {class: `c${i % 8}`,
               'width%': value / whole_ * 100})));
}
/** `rest`: what the part of a bar is that has no colour. */
function legend(parts, rest) {
  const item = (colour, [name, text]) =>
    h('li', {}, h('i', {class: colour, 'aria-hidden': 'true'}), text ? `${name} ${text}` : name);
  return h('ul', {class: 'legend'}, parts.map((part, i) => item(`c${i % 8}`, part)),
           item('rest', rest));
}

/**
 * `columns`: title, cell(row) -> node or text; right, class. The first cell heads its row.
 * `below(row)`: a <tr> that goes on in a line of its own, or null.
 */
function plainTable(caption, columns, rows, empty, below = () => null) {
  const table = h('table', {},
    h('caption', {class: 'hidden-text'}, caption),
    h('thead', {}, h('tr', {}, columns.map((column) =>
      h('th', {scope: 'col', class: classOf(column)}, column.title)))),
    h('tbody', {}, rows.flatMap((row) => [tableRow(columns, row), below(row)])));
  if (rows.length === 0) return h('p', {class: 'empty'}, empty);
  return scrollable(caption, table);
}
const scrollable = (caption, table) =>
    h('div', {class: 'scroll', role: 'region', 'aria-label': caption, tabindex: '0',
              'data-key': caption}, table);
const classOf = (column) => `${column.right ? 'right' : ''} ${column.class || ''}`.trim();
function tableRow(columns, row) {
  return h('tr', {class: row.chosen ? 'chosen' : undefined}, columns.map((column, i) =>
    h(i === 0 ? 'th' : 'td', {scope: i === 0 ? 'row' : undefined, class: classOf(column)},
      column.cell(row))));
}

/**
 * A table that the server filters, sorts and cuts. `state` has search, sort, order, offset, and is
 * kept in the address where `keep` is true.
 */
class ServerTable {
  constructor({title, heading = 'h2', caption, endpoint, parameters = {}, columns, sort, order,
               search = true, keep = false, empty = 'nothing here', about = ''}) {
    Object.assign(this, {caption, endpoint, parameters, columns, keep, empty});
    this.usual = {search: '', sort: sort || '', order: order || '', offset: '0'};
    this.state = {...this.usual, ...(keep ? place().parameters : {})};
    this.total = h('span', {class: 'dim', role: 'status'});
    this.body = h('tbody', {});
    this.head = h('tr', {});
    this.emptyLine = h('p', {class: 'empty', hidden: true});
    this.table = scrollable(caption, h('table', {}, h('caption', {class: 'hidden-text'}, caption),
                                       h('thead', {}, this.head), this.body));
    this.before = h('button', {type: 'button', 'data-page': 'before',
        on: {click: () => this.turn(-1)}},
                    'Previous');
    this.after = h('button', {type: 'button', 'data-page': 'after',
        on: {click: () => this.turn(1)}},
                   'Next');
    this.where = h('span', {class: 'dim num'});
    this.about = h('p', {class: 'dim', hidden: !about}, about);
    const field = h('input', {type: 'search', id: `search-${endpoint}`, value: this.state.search,
                              maxlength: 200, spellcheck: 'false', autocomplete: 'off',
                              on: {input: () => this.search(field.value)}});
    this.element = h('section', {class: 'card'},
      h('div', {class: 'bar-line'}, h(heading, {}, title), this.total,
        search ? h('span', {class: 'search'},
                   h('label', {for: `search-${endpoint}`, class: 'dim'}, 'Search'), field) : null),
      this.about, this.table, this.emptyLine,
      h('div', {class: 'pager'}, this.where, this.before, this.after));
    this.drawHead();
  }
  search(text) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.change({search: text, offset: '0'}), 200);
  }
  turn(step) {
    const offset = Math.max(0, Number(this.state.offset) + step * PAGE_ROWS);
    this.change({offset: String(offset)});
  }
  sortBy(column) {
    const same = this.state.sort === column.sort;
    const first = column.right ? 'desc' : 'asc';
    const order = same ? (this.state.order === 'desc' ? 'asc' : 'desc') : first;
    this.change({sort: column.sort, order, offset: '0'});
  }
  change(changes) {
    Object.assign(this.state, changes);
    if (this.keep) {
      adjust(Object.fromEntries(Object.entries(this.state).map(([name, value]) =>
        [name, value === this.usual[name] ? '' : value])));
    }
    this.drawHead();
    this.refresh().catch(showFailure);
  }
  drawHead() {
    replace(this.head, this.columns.map((column) => {
      const sorted = column.sort && column.sort === this.state.sort;
      const order = this.state.order === 'desc' ? 'descending' : 'ascending';
      return h('th', {scope: 'col', class: classOf(column), 'aria-sort': sorted ?
          order : undefined},
        column.sort ? h('button', {type: 'button', 'data-key': `sort-${column.sort}`,
                                   on: {click: () => this.sortBy(column)}}, column.title)
                    : column.title);
    }));
  }
  async refresh() {
    const asked = this.asked = (this.asked || 0) + 1;
    const {search, sort, order, offset} = this.state;
    const answer = await ask(this.endpoint,
        {...this.parameters, search, sort, order, offset, limit: PAGE_ROWS});
    if (asked !== this.asked) return;  // another question was asked meanwhile
    if (answer.rows.length === 0 && answer.total > 0) {
      return this.change({offset: String(Math.floor((answer.total - 1) / PAGE_ROWS) * PAGE_ROWS)});
    }
    this.answer = answer;
    replace(this.body, answer.rows.map((row) => tableRow(this.columns, row)));
    const none = answer.rows.length === 0;
    this.table.hidden = none;
    this.emptyLine.hidden = !none;
    this.emptyLine.textContent = search ? `nothing is called “${search}”` : this.empty;
    setText(this.total, none ? '' : whole.format(answer.total));
    const begin = answer.offset + 1, end = answer.offset + answer.rows.length;
    const all = whole.format(answer.total);
    this.where.textContent = `${whole.format(begin)}–${whole.format(end)} of ${all}`;
    this.before.disabled = answer.offset === 0;
    this.after.disabled = end >= answer.total;
    this.before.parentElement.hidden = none || (answer.offset === 0 && end >= answer.total);
  }
}

// ---- Charts

/** Times and lines of the last minutes. `series`: name, values; `stacked`,
    or lines by logarithm. */
class Chart {
  constructor(title, {stacked, format, tick, empty}) {
    Object.assign(this, {title, stacked, format, tick, empty});
    this.figure = svg('svg', {class: 'chart', role: 'img', tabindex: '0', 'aria-label': title});
    this.readout = h('p', {class: 'readout'});
    this.names = h('div', {});
    this.element = card(title, this.figure, this.readout, this.names);
    this.figure.addEventListener('pointermove', (event) => {
      const box = this.figure.getBoundingClientRect();
      this.at((event.clientX - box.left - this.left) / (box.width - this.left));
    });
    this.figure.addEventListener('pointerleave', () => this.look(null));
    this.figure.addEventListener('keydown', (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step || !this.series) return;
      event.preventDefault();
      const last = this.series[0].values.length - 1;
      this.look(Math.max(0, Math.min(last, (this.index ?? last) + step)));
    });
    this.figure.addEventListener('blur', () => this.look(null));
    this.left = 52;
  }
  at(share) {
    if (!this.series || share < 0 || share > 1) return this.look(null);
    this.look(Math.round(share * (this.series[0].values.length - 1)));
  }
  look(index) {
    this.index = index;
    if (this.series) this.draw();
  }
  show(series, step) {
    this.series = series;
    this.step = step;
    this.draw();
  }
  draw() {
    const width = Math.max(240, this.figure.clientWidth || 600), height = 184, left = this.left;
    const top = 8, bottom = height - 20;
    const points = this.series[0].values.length;
    const x = (i) => left + i / (points - 1) * (width - left - 2);
    let y, ticks;
    if (this.stacked) {
      const sums = this.series[0].values.map((_, i) =>
        this.series.reduce((sum, one) => sum + one.values[i], 0));
      const most = niceMost(Math.max(...sums, 1e-9));
      y = (value) => bottom - value / most * (bottom - top);
      ticks = sums.some((sum) => sum > 0) ? [0, most / 2, most] : [0];
    } else {
      const known = this.series.flatMap((one) => one.values).filter((value) => value > 0);
      const least = 10 ** Math.floor(Math.log10(Math.min(...known, 1)));
      const most = 10 ** Math.max(Math.ceil(Math.log10(Math.max(...known, least * 10))),
                                  Math.log10(least) + 1);
      const scale = Math.log(most / least);
      y = (value) => bottom - Math.log(Math.max(value, least) / least) / scale * (bottom - top);
      ticks = [];
      for (let tick = least; known.length > 0 && tick <= most * 1.001; tick *= 10) {
        ticks.push(tick);
      }
    }
    const parts = [svg('line', {class: 'rule', x1: left, x2: width, y1: bottom, y2: bottom})];
    for (const tick of ticks) {
      parts.push(svg('line', {class: 'rule', x1: left, x2: width, y1: y(tick), y2: y(tick)}));
      parts.push(svg('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'},
          this.tick(tick)));
    }
    const minutes = (points - 1) * this.step / 60;
    parts.push(svg('text', {x: left, y: height - 4}, `${digits(minutes, 1)} min ago`));
    parts.push(svg('text', {x: width - 2, y: height - 4, 'text-anchor': 'end'}, 'now'));
    const below = new Array(points).fill(0);
    this.series.forEach((one, n) => {
      if (this.stacked) {
        if (!one.values.some((value) => value > 0)) return;
        const upper = one.values.map((value, i) => `${x(i)},${y(below[i] + value)}`);
        const lower = below.map((value, i) => `${x(i)},${y(value)}`).reverse();
        parts.push(svg('polygon', {class: `f${n % 8}`, points: [...upper, ...lower].join(' ')}));
        one.values.forEach((value, i) => { below[i] += value; });
        return;
      }
      for (const line of pieces(one.values)) {
        if (line.length === 1) {
          const [i, value] = line[0];
          parts.push(svg('circle', {class: `f${n}`, cx: x(i), cy: y(value), r: 2.5}));
          continue;
        }
        parts.push(svg('polyline', {class: `line l${n}`,
          points: line.map(([i, value]) => `${x(i)},${y(value)}`).join(' ')}));
      }
    });
    const index = this.index ?? points - 1;
    if (this.index !== null && this.index !== undefined) {
      parts.push(svg('line', {class: 'cursor', x1: x(index), x2: x(index), y1: top, y2: bottom}));
    }
    this.figure.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.figure.replaceChildren(...parts);
    const ago = (points - 1 - index) * this.step;
    const shown = this.series.filter((one) => one.values.some((value) => value > 0));
    const text = shown.filter((one) => one.values[index] > 0).map((one) =>
      `${one.name} ${this.format(one.values[index])}`).join(' · ');
    this.readout.textContent = shown.length === 0 ? this.empty :
        `${ago < 2 * this.step ? `in the last ${this.step} s` : `${seconds(ago)} ago`}: ` +
        (text || 'nothing');
    this.figure.setAttribute('aria-label', `${this.title}. ${this.readout.textContent}`);
    replace(this.names, h('ul', {class: 'legend'}, this.series.map((one, n) =>
      one.values.some((value) => value > 0) ?
        h('li', {}, h('i', {class: `c${n % 8}`, 'aria-hidden': 'true'}), one.name) : null)));
  }
}
function niceMost(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((n) => n * ten).find((most) => most >= value) || 10 * ten;
}
/** Runs of points that are known. */
function pieces(values) {
  const lines = [];
  let line = [];
  values.forEach((value, i) => {
    if (value > 0) {
      line.push([i, value]);
    } else if (line.length > 0) {
      lines.push(line);
      line = [];
    }
  });
  if (line.length > 0) lines.push(line);
  return lines;
}

// ---- Views: each has element and refresh(status)

let status = null;  // the last answer

function tiles(list) {
  return list.filter(Boolean).map(([name, value, small]) =>
    h('div', {class: 'tile'}, h('dt', {}, name),
      h('dd', {}, value, small ? h('small', {}, ` ${small}`) : null)));
}

/** Since when there was no product, in the minutes that are known. */
function sinceLast(live) {
  const n = live.operations.length, points = live.points;
  const index = points.findLastIndex((row) => row[n + 2] > 0);
  return index < 0 ? 'no products lately' :
      `none for ${seconds((points.length - 1 - index) * live.step_seconds)}`;
}

function recentRates(live) {
  const points = live.points, n = live.operations.length;
  const done = points.slice(0, -1);
  const lately = done.slice(-5);
  const sum = (rows, from, to) => rows.reduce((all, row) =>
    all + row.slice(from, to).reduce((a, b) => a + b, 0), 0);
  const latest = [...lately].reverse().find((row) => row[n + 2] > 0);
  return {
    perSecond: sum(lately, 0, n) / (lately.length * live.step_seconds),
    wrong: sum(done.slice(-30), n, n + 1),
    failed: sum(done.slice(-30), n + 1, n + 2),
    p50: latest ? latest[n + 2] : null,
    p99: latest ? latest[n + 3] : null,
    before: latest ? '' : sinceLast(live),
  };
}

function overview() {
  const numbers = h('dl', {class: 'tiles'});
  const throughput = new Chart('Requests per second',
      {stacked: true, format: (value) => `${digits(value)}/s`, tick: plain, empty: 'no requests in the last minutes'});
  const latency = new Chart('Latency of products', {stacked: false, format: seconds,
      tick: (value) => value < 1 ? seconds(value) : `${whole.format(value)} s`,
      empty: 'no products in the last minutes'});
  const nodes = h('div', {});
  const busiest = new ServerTable({
    title: 'Busiest matrices', caption: 'Busiest matrices', endpoint: 'matrices', search: false,
    columns: matrixColumns().filter((column) => column.brief).map((column) => ({...column,
        sort: ''})),
    sort: 'rate', order: 'desc', empty: 'no matrix yet: sparsectl upload FILE',
  });
  busiest.before.parentElement.remove();
  const slowest = card('Slowest requests of the last hour', phaseLegend(), h('div', {}));
  return {
    element: h('div', {}, h('h1', {class: 'hidden-text'}, 'Overview'), numbers,
               h('div', {class: 'grid'}, throughput.element, latency.element), nodes,
               busiest.element, slowest),
    async refresh() {
      const live = status.live, now = recentRates(live), totals = status.totals;
      const cpu = status.devices.find((device) => device.memory);
      replace(numbers, tiles([
        ['Requests per second', digits(now.perSecond), 'in the last 10 s'],
        ['Latency, p50', seconds(now.p50), now.before],
        ['Latency, p99', seconds(now.p99), now.before],
        ['Errors in the last minute', whole.format(now.failed),
            `of the server, ${whole.format(now.wrong)} of callers`],
        ['Matrices', whole.format(totals.matrices),
         totals.patterns === undefined ? '' : `${whole.format(totals.patterns)} patterns`],
        totals.preparations === undefined ?
            null : ['Preparations', whole.format(totals.preparations)],
        ['In flight', whole.format(totals.requests_in_flight)],
        cpu ? ['Host memory in use', bytes(cpu.memory.used), `of ${bytes(cpu.memory.limit)}`] :
              ['Host memory in use', bytes(totals.host_bytes || 0)],
      ]));
      const ended = live.points.slice(0, -1), n = live.operations.length;
      throughput.show(live.operations.map((name, i) => ({name,
        values: ended.map((row) => row[i] / live.step_seconds)})), live.step_seconds);
      latency.show([{name: 'p50', values: ended.map((row) => row[n + 2])},
                    {name: 'p99', values: ended.map((row) => row[n + 3])}],
                   live.step_seconds);
      replace(nodes, status.cluster && status.cluster.nodes ? [clusterCard(status.cluster)] : []);
      busiest.state = {...busiest.state, sort: 'rate', order: 'desc'};
      const [requests] = await Promise.all([ask('requests'), refreshTop(busiest)]);
      replace(slowest.lastChild, requestTable('Slowest requests', requests.slowest.slice(0, 5)));
    },
  };
}
/** The nodes of a cluster, as the server knows them. */
function clusterCard(cluster) {
  return card('Nodes of the cluster',
    cluster.problem ? h('p', {class: 'dim'}, cluster.problem) : null,
    plainTable('Nodes of the cluster', [
      {title: 'Node', cell: (row) => row.name + (row.self ? ' (this one)' : '')},
      {title: 'State', cell: (row) => pill(row.state, NODE_STATES[row.state])},
      {title: 'Address', class: 'middle', cell: (row) => row.address},
      {title: 'Devices', class: 'wide', cell: (row) => row.devices.join(', ')},
      {title: 'Matrices', right: true, cell: (row) => whole.format(row.matrices)},
      {title: 'Copies', right: true, cell: (row) => whole.format(row.copies)},
      {title: 'Memory free', right: true, class: 'middle',
       cell: (row) => `${bytes(row.free_memory_bytes)} of ${bytes(row.memory_bytes)}`},
    ], cluster.nodes, 'no node is known'));
}
async function refreshTop(table) {
  const answer = await ask('matrices', {sort: 'rate', order: 'desc', limit: 6});
  const busy = answer.rows.filter((row) => row.rate >= 0.005);
  table.table.hidden = busy.length === 0;
  table.emptyLine.hidden = busy.length > 0;
  table.emptyLine.textContent = answer.rows.length === 0 ? table.empty : 'none was used lately';
  replace(table.body, busy.map((row) => tableRow(table.columns, row)));
}

function matrixColumns() {
  return [
    {title: 'Matrix', sort: 'name', brief: true, cell: (row) => row.shard ?
      [matrixLink(row), h('div', {class: 'dim'}, row.shard)] : matrixLink(row)},
    {title: 'Owner', sort: 'tenant', class: 'wide', cell: (row) => row.tenant},
    {title: 'State', sort: 'state', class: 'middle', cell: (row) => state(row.state)},
    {title: 'Size', class: 'wide keep', cell: (row) => `${count(row.rows)} × ${count(row.cols)}`},
    {title: 'Nonzeros', sort: 'nnz', right: true, class: 'middle', brief: true,
     cell: (row) => count(row.nnz)},
    {title: 'Memory', sort: 'bytes', right: true, class: 'wide', cell: (row) => bytes(row.bytes)},
    {title: 'Rate', sort: 'rate', right: true, brief: true,
     cell: (row) => row.rate < 0.005 ? NONE : `${rate(row.rate)}/s`},
    {title: 'p50', sort: 'p50', right: true, brief: true, class: 'middle',
     cell: (row) => seconds(row.p50)},
    {title: 'p99', sort: 'p99', right: true, brief: true, class: 'wide',
     cell: (row) => seconds(row.p99)},
    {title: 'Speed-up', sort: 'gain', right: true, brief: true,
     cell: (row) => gain(row.gain, row.busy)},
    {title: 'Roofline', sort: 'roofline', right: true, brief: true, class: 'wide',
     cell: roofline},
    {title: 'Plan', class: 'wide plan', brief: true, cell: (row) => row.plan ?
      [planText(row.plan), h('div', {class: 'dim'},
        row.in_use === false ? `${row.signature}, no request yet` : row.signature)] :
      NONE},
  ];
}
/** Of memory's roof; what the last level cache holds is below another. */
function roofline(row) {
  return row.roof === 'cache' ? h('span', {class: 'dim',
    title: 'the last level cache holds what is multiplied: memory does not bound it'}, 'in cache') :
    percent(row.roofline);
}
/** In green, unless the machine was too busy for it to be believed. */
function gain(value, wasBusy = false) {
  if (wasBusy && value !== null) {
    return h('span', {title: 'timed on a busy machine: plain CSR, timed beside each candidate, took ' +
      'times that differ by more than the plan gains (sparsectl prepare NAME --retune)'},
      times(value), h('div', {}, pill('busy', 'warn')));
  }
  return h('span', {class: value > 1.05 ? 'gain' : ''}, times(value));
}

function matrices() {
  const table = new ServerTable({
    title: 'Matrices', heading: 'h1', caption: 'Matrices', endpoint: 'matrices', keep: true,
    columns: matrixColumns(), sort: 'name', order: 'asc',
    empty: 'no matrix yet: sparsectl upload FILE',
  });
  return {element: table.element, refresh: () => table.refresh()};
}

// A matrix's own page.

function drawPicture(canvas, picture) {
  canvas.width = picture.width;
  canvas.height = picture.height;
  const share = Math.max(0.25, Math.min(4, picture.width / picture.height));
  canvas.style.aspectRatio = String(share);
  const shades = Uint8Array.from(atob(picture.shades), (c) => c.charCodeAt(0));
  const ink = getComputedStyle(document.documentElement)
      .getPropertyValue('--ink').split(',').map(Number);
  const context = canvas.getContext('2d');
  const image = context.createImageData(picture.width, picture.height);
  shades.forEach((shade, i) => {
    image.data.set([...ink, shade === 0 ? 0 : 70 + shade * 185 / 255], i * 4);
  });
  context.putImageData(image, 0, 0);
}

class Picture {
  constructor(parameters, label) {
    this.parameters = parameters;
    this.canvas = h('canvas', {role: 'img', 'aria-label': label, hidden: true});
    this.note = h('p', {class: 'empty'}, 'loading');
    this.element = h('figure', {}, h('figcaption', {}, label), this.canvas, this.note);
  }
  async load() {
    try {
      const picture = await ask('picture', this.parameters);
      if (picture.unavailable) {
        this.note.textContent = picture.unavailable;
        return;
      }
      this.picture = picture;
      this.canvas.hidden = false;
      this.note.hidden = !this.picture.sampled;
      this.note.textContent = 'of a sample of the rows';
      this.draw();
    } catch (error) {
      if (error instanceof Refused) throw error;
      this.note.textContent = error.message;
    }
  }
  draw() {
    if (this.picture) drawPicture(this.canvas, this.picture);
  }
}

/** A pipeline by its steps; with their parameters on pointing at it, and where it is read aloud. */
function pipeline(text) {
  const steps = text.replace(/\([^)]*\)/g, '');
  return steps === text ? text :
    h('span', {title: text, class: 'shortened'}, broken(steps),
      h('span', {class: 'hidden-text'}, ` (${text})`));
}
/** A kernel's name, which may be broken behind its dots and underscores. */
const kernel = (name) => h('span', {}, broken(name));
/** "<pipeline> / <kernel>". */
function planText(plan) {
  const at = plan.lastIndexOf(' / ');
  return at < 0 ? plan :
    h('span', {}, pipeline(plan.slice(0, at)), ' / ', kernel(plan.slice(at + 3)));
}
const broken = (text) =>
  (text.match(/[^._,(]+[._,(]*|[._,(]+/g) || []).flatMap((part) => [part, h('wbr')]);

/** The problem signature, and of SpGEMM which product. */
const signature = (row) =>
  [row.signature, row.product ? h('div', {class: 'dim'}, row.product) : null].filter(Boolean);
const PLAN_COLUMNS = [
  {title: 'Signature', class: 'signature', cell: (row) => [...signature(row), row.in_use ?
    [' ', pill('in use', 'good')] : null].flat().filter(Boolean)},
  {title: 'Used', right: true, class: 'middle',
   cell: (row) => row.rate < 0.005 ? NONE : `${rate(row.rate)}/s`},
  {title: 'Pipeline', class: 'plan', cell: (row) => pipeline(row.factors || row.pipeline)},
  {title: 'Kernel', class: 'plan middle', cell: (row) => kernel(row.kernel)},
  {title: 'Baseline', right: true, class: 'widest', cell: (row) => ms(row.baseline_ms)},
  {title: 'Plan', right: true, class: 'middle', cell: (row) => ms(row.plan_ms)},
  {title: 'Speed-up', right: true, cell: (row) => gain(row.gain, row.busy)},
  {title: 'Roofline', right: true, class: 'widest', cell: roofline},
  {title: 'Serves since (UTC)', right: true, class: 'widest keep',
   cell: (row) => row.since === null ? NONE : moment(row.since)},
  {title: 'Why', class: 'wide wrap', cell: (row) => [row.provisional ?
   pill('provisional', 'warn') : null, ' ', ...broken(row.reason || '')]},
];
const CANDIDATE_COLUMNS = [
  {title: 'Pipeline', class: 'plan', cell: (row) => row.pipeline ? pipeline(row.factors || row.pipeline) : 'all'},
  {title: 'Kernel', class: 'plan middle', cell: (row) => row.kernel ? kernel(row.kernel) : NONE},
  {title: 'Signature', class: 'signature', cell: signature},
  {title: 'Time', right: true, class: 'middle', cell: (row) => ms(row.median_ms)},
  {title: 'Baseline', right: true, class: 'widest', cell: (row) => ms(row.baseline_ms)},
  {title: 'Speed-up', cell: (row) => row.gain === undefined ? NONE :
    [meter((row.gain || 0) / 4, 0.25), gain(row.gain)]},
  {title: 'Roofline', right: true, class: 'widest', cell: roofline},
  {title: 'GFLOP/s', right: true, class: 'widest',
   cell: (row) => row.gflops ? digits(row.gflops) : NONE},
  {title: 'Built in', right: true, class: 'widest', cell: (row) => ms(row.preparation_ms)},
  {title: 'Outcome', class: 'wrap outcome', cell: (row) => row.chosen ? pill('chosen', 'good') :
    row.reason === undefined ? 'measured' : broken(row.reason)},
];
const LAYOUT_COLUMNS = [
  {title: 'Pipeline', class: 'plan', cell: (row) => pipeline(row.pipeline)},
  {title: 'Kind', cell: (row) => row.kind},
  {title: 'Bytes', right: true, cell: (row) => bytes(row.bytes)},
  {title: 'Built in', right: true, cell: (row) => seconds(row.build_seconds)},
  {title: 'Where', cell: (row) =>
    [row.resident ? 'memory' : '', row.on_disk ? 'disk' : ''].filter(Boolean).join(', ') || NONE},
];

function facts(list) {
  return h('dl', {class: 'facts'}, list.filter(Boolean).map(([name, value]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

function matrix(parameters) {
  const which = {tenant: parameters.tenant || '', name: parameters.name || ''};
  const head = h('div', {class: 'bar-line'}, h('h1', {}, which.name), h('span', {}));
  const known = card('', h('div', {}));
  const time = h('div', {hidden: true});
  const pictures = h('div', {class: 'pictures'});
  const plans = h('div', {}), layouts = h('div', {}), progress = h('div', {});
  const candidates = new ServerTable({
    title: 'Candidates, and what was measured', caption: 'Candidates', endpoint: 'candidates',
    parameters: which, columns: CANDIDATE_COLUMNS, empty: 'nothing was tried yet',
    about: 'Speed-up is over plain CSR, timed beside each: the line in a bar is at 1×, its end at 4×.'});
  const drawn = [];
  let shown = '';
  const orderText = h('p', {class: 'empty'});
  let square = false;
  const showPictures = (layout) => {
    const key = layout ? layout.pipeline : 'none';
    if (shown === key) return;
    shown = key;
    drawn.length = 0;
    drawn.push(new Picture(which, 'As it was uploaded'));
    if (layout) {
      drawn.push(new Picture({...which, pipeline: layout.pipeline},
          `${square ? 'Rows and columns' : 'Rows'} in the order of ${layout.pipeline}`));
    }
    pictures.replaceChildren(...drawn.map((picture) => picture.element));
    drawn.forEach((picture) => picture.load().catch(showFailure));
  };
  let chosen = null;
  const orders = h('select', {id: 'order', on: {change: () => {
    chosen = orders.value;
    shown = '';
    showPictures({pipeline: chosen});
  }}});
  const which_order = h('span', {class: 'search', hidden: true},
                        h('label', {for: 'order', class: 'dim'}, 'Order'), orders);
  const back = h('p', {}, h('a', {href: '#/matrices'}, '← Matrices'));
  const none = h('p', {hidden: true}, 'There is no matrix of this name' +
      (which.tenant ? ` that tenant ${which.tenant} owns` : '') +
      ', or it is neither yours nor shared with you.');
  const there = h('div', {hidden: true}, known,
      time,
      h('section', {class: 'card'}, h('div', {class: 'bar-line'}, h('h2', {}, 'Pattern'),
          which_order),
        pictures, orderText),
      progress, card('Plans', plans), candidates.element, card('Layouts', layouts));
  return {
    element: h('div', {}, back, head, none, there),
    drawn,
    async refresh() {
      let row = null;
      try {
        row = await ask('matrix', which);
      } catch (error) {
        if (error.status !== 404) throw error;
      }
      none.hidden = row !== null;
      there.hidden = row === null;
      head.lastChild.hidden = row === null;
      if (row === null) return;
      await candidates.refresh();
      replace(head.lastChild, state(row.state));
      time.hidden = !row.time;
      if (row.time) replace(time, timeCard(row.time));
      const features = row.features;
      replace(known.lastChild, facts([
        ...(row.shard ? [['Part', row.shard]] : []),
        ['Owner', row.tenant], ['Rows × columns',
            `${whole.format(row.rows)} × ${whole.format(row.cols)}`],
        ['Nonzeros', whole.format(row.nnz)],
            ['Type', row.type], ['Version', whole.format(row.version)],
        ['In memory', bytes(row.bytes)], ['Size as CSR', bytes(row.csr_bytes)],
        ['Kept', row.durable ? 'on disk' : 'until the server ends'],
        ['Uploaded', `${dateTime(row.created)} UTC`],
        ['Rate', row.rate < 0.005 ? 'not used lately' : `${rate(row.rate)}/s`],
        ['Latency', row.p50 === null || row.rate < 0.005 ? NONE :
            `p50 ${seconds(row.p50)}, p99 ${seconds(row.p99)}`],
        ['Speed-up over plain CSR', row.gain === null && row.plan.startsWith('csr / ') ?
            'plain CSR serves' : gain(row.gain, row.busy)],
        ['Share of the memory roofline', roofline(row)],
        features ? ['Density', percent(features.density)] : null,
        features ? ['Nonzeros per row', `${digits(features.row_nonzeros_mean)} (${whole.format(
          features.row_nonzeros_min)} to ${whole.format(features.row_nonzeros_max)})`] : null,
        features ? ['Empty rows', percent(features.empty_rows)] : null,
        ['Hash of the pattern', h('span', {class: 'mono', title: row.pattern}, row.pattern.slice(0, 16))],
      ]));
      square = row.rows === row.cols;
      const reordered = row.layouts.filter((layout) => layout.reordered);
      // That of the plan that requests use, else of another signature's.
      const plansOf = (layout) => row.plans.filter((plan) => plan.pipeline === layout.pipeline);
      const planned = reordered.find((one) => plansOf(one).some((plan) => plan.in_use)) ||
          reordered.find((one) => plansOf(one).length > 0);
      const layout = reordered.find((one) => one.pipeline === chosen) || planned || reordered[0];
      if (orders.length !== reordered.length) {
        replace(orders, reordered.map((one) => h('option', {value: one.pipeline}, one.pipeline)));
      }
      if (layout) orders.value = layout.pipeline;
      which_order.hidden = reordered.length < 2;
      showPictures(layout);
      orderText.textContent = orderNote(row, layout, layout ? plansOf(layout) : []);
      const job = row.preparation;
      const working = row.state !== 'READY' || job.detail;
      progress.hidden = !working;
      replace(progress, card('Preparation', preparationLine(job),
                             job.detail ? h('p', {class: 'wrap'}, job.detail) : null));
      replace(plans, plainTable('Plans', PLAN_COLUMNS, row.plans, 'none yet: plain CSR serves'));
      replace(layouts, plainTable('Layouts', LAYOUT_COLUMNS, row.layouts, 'none but plain CSR'));
    },
    redraw() {
      drawn.forEach((picture) => picture.draw());
    },
  };
}

/** What the order of the second picture is for, or why there is none. */
function orderNote(row, layout, plans) {
  if (layout) {
    // So that what the order brought together is seen in one place.
    const columns = row.rows === row.cols ?
        ' It is one of rows; the picture has the columns in it, too.' : '';
    return plans.length > 0 ?
      `The second order serves ${plans.map((plan) => plan.signature).join(', ')}.${columns}` :
      `No plan uses the second order now.${columns}`;
  }
  if (row.plans.length === 0) return 'No order of the rows was tried yet.';
  return 'No reordering of its rows won: plans that read them take them as they were uploaded.';
}

/** Where the time of a matrix's products goes, of each transport by itself. */
function timeCard({transports, reference}) {
  const several = transports.length > 1;
  const which = (of) => {
    const by = !several ? '' : of.transport ? ` by ${of.transport}` : ' without arrays';
    return of.products < 2 ? `The last product${by} took` : of.products < 4 ?
      `The last ${of.products} products${by} took on average` :
      `Of the last ${of.products} products${by} those in the middle took`;
  };
  return card('Where the time goes', transports.flatMap((of) => [
    h('p', {}, `${which(of)} ${seconds(of.seconds)}${
      of.transport && !several ? ` (transport: ${of.transport})` : ''}. `, of.finding),
    phases(of, false), legend(PHASES.map((phase) => [phase.replace('_', ' '),
      of.phases[phase] ? seconds(of.phases[phase]) : NONE]),
      ['other', restOf(of) > 0 ? seconds(restOf(of)) : NONE]),
  ]), h('p', {}, 'What limits the kernel: ', h('code', {}, `sparsectl explain ${reference}`)));
}

function preparationLine(job) {
  const text = [job.stage, job.total > 0 ? `${job.done} of ${job.total}` : '', job.message]
    .filter(Boolean).join(' · ');
  return h('p', {}, state(job.state), ' ',
    job.total > 0 && job.state === 'PREPARING' ?
      h('progress', {max: job.total, value: job.done, 'aria-label': 'done'}) : null,
    ` ${text}${text ? ' · ' : ''}${seconds(job.seconds)} for all plans`);
}

function preparations() {
  const numbers = h('dl', {class: 'tiles'});
  const table = new ServerTable({
    title: 'In progress, queued or failed', caption: 'Preparations', endpoint: 'preparations', keep: true,
    empty: 'everything is prepared',
    columns: [
      {title: 'Matrix', cell: (row) => matrixLink(row)},
      {title: 'Owner', class: 'wide', cell: (row) => row.tenant},
      {title: 'State', cell: (row) => state(row.state)},
      {title: 'Nonzeros', right: true, class: 'middle', cell: (row) => count(row.nnz)},
      {title: 'Stage', class: 'middle', cell: (row) => row.stage || NONE},
      {title: 'Done', class: 'done', cell: (row) => row.total > 0 ? [h('progress',
        {max: row.total, value: row.done, 'aria-label': `${row.done} of ${row.total}`}),
        h('span', {class: 'dim num'}, ` ${row.done} of ${row.total}`)] : NONE},
      {title: 'Took in all', right: true, class: 'middle', cell: (row) => seconds(row.seconds)},
      {title: 'Message', class: 'wide wrap', cell: (row) => broken(row.message || row.detail || NONE)},
    ],
  });
  return {
    element: h('div', {}, h('h1', {}, 'Preparations'), numbers, table.element),
    async refresh() {
      await table.refresh();
      const {preparing, queued, ready, failed} = table.answer || {};
      replace(numbers, tiles([['Preparing', whole.format(preparing)],
          ['Queued', whole.format(queued)],
        ['Ready', whole.format(ready)], ['Failed', whole.format(failed)]]));
    },
  };
}

const PHASES = ['queue', 'receive', 'setup', 'to_device', 'kernel', 'from_device', 'send'];
const phaseLegend = () => legend(PHASES.map((phase) => [phase.replace('_', ' ')]), ['other']);
const partsOf = (row) => PHASES.map((phase) => [phase, row.phases[phase] || 0]);
/** The time that is none of the phases'; below 0 where these overlap. */
const restOf = (row) => row.seconds - partsOf(row).reduce((all, [, value]) => all + value, 0);
/** Who had the worker slots meanwhile, if that was not mostly the tenant itself. */
function queueText(row, all) {
  const {trials = 0, others = 0} = row.queue || {};
  const parts = [[trials, 'autotuning'], [others, 'other tenants']]
    .filter(([value]) => value > 0 && value >= 0.1 * all)
    .map(([value, who]) => `${unbroken(seconds(value))} behind ${who}`);
  return parts.length > 0 ? ` (${parts.join(', ')})` : '';
}
function phaseText(row) {
  const parts = partsOf(row).filter(([, value]) => value > 0);
  const rest = restOf(row);
  // As sparsectl says it.
  if (parts.length > 0 && rest > 0.1 * row.seconds) parts.push(['other', rest]);
  const named = ([phase, value]) =>
    `${phase.replace('_', ' ')} ${unbroken(seconds(value))}` +
    (phase === 'queue' ? queueText(row, value) : '');
  return parts.map(named).join(', ') +
    (row.seconds > 0 && rest < -1e-6 ? ' (they overlap)' : '');
}
function phases(row, small = true) {
  const parts = partsOf(row), text = phaseText(row);
  if (!text) return NONE;
  const sum = Math.max(row.seconds, parts.reduce((all, [, value]) => all + value, 0));
  return h('span', {title: text}, stack(parts, sum, small),
           h('span', {class: 'hidden-text'}, text));
}
const asked = (row) =>
  [row.k > 0 ? `K=${row.k}` : '', row.parameters].filter(Boolean).join(' ') || NONE;

const REQUEST_COLUMNS = [
  {title: 'Operation', class: 'brief', cell: (row) => row.op},
  {title: 'Matrix or buffer', class: 'subject', cell: subjectOf},
  {title: 'Parameters', class: 'middle asked', cell: (row) => shortWordsKept(asked(row))},
  {title: 'Took', right: true, cell: (row) => seconds(row.seconds)},
  {title: 'Phases', class: 'middle', cell: phases},
  {title: 'Plan', class: 'wide plan', cell: (row) => row.plan ? planText(row.plan) : NONE},
  {title: 'In', right: true, class: 'widest',
   cell: (row) => row.bytes_in ? bytes(row.bytes_in) : NONE},
  {title: 'Out', right: true, class: 'widest',
   cell: (row) => row.bytes_out ? bytes(row.bytes_out) : NONE},
  {title: 'Transport', class: 'widest', cell: (row) => row.transport || NONE},
  {title: 'Tenant', class: 'widest', cell: (row) => row.tenant},
  {title: 'Ended (UTC)', right: true, class: 'middle', cell: (row) => moment(row.ended)},
  {title: 'Result', cell: (row) => pill(row.code === 'OK' ? 'OK' : 'failed', codeKind(row.code))},
];
const requestTable = (caption, rows) =>
    plainTable(caption, REQUEST_COLUMNS, rows, 'none yet', belowRequest);
/** What was wrong: codes and sentences are wider than a column. On a phone, what has no column. */
function belowRequest(row) {
  const text = phaseText(row);
  const more = [asked(row), row.plan].filter((one) => one && one !== NONE).join(', ');
  const onPhone = text || more ? h('div', {class: 'on-phone'}, text ? phases(row) : null,
    h('div', {'aria-hidden': text ? 'true' : undefined}, [more, text].filter(Boolean).join(': '))) :
    null;
  const failure = row.code === 'OK' ? null :
    h('div', {}, [pill(row.code, codeKind(row.code)), ' ', row.message].filter(Boolean));
  if (!onPhone && !failure) return null;
  return h('tr', {class: failure ? 'below' : 'below on-phone'},
           h('td', {colspan: REQUEST_COLUMNS.length}, failure, onPhone));
}

function requests() {
  const running = h('div', {}), slowest = h('div', {}), recent = h('div', {});
  const IN_FLIGHT = [
    {title: 'Operation', cell: (row) => row.op},
    {title: 'Matrix or buffer', class: 'wrap', cell: subjectOf},
    {title: 'Parameters', class: 'middle', cell: asked},
    {title: 'Running for', right: true, cell: (row) => seconds(row.seconds)},
    {title: 'Activity', cell: (row) => row.activity},
    {title: 'Tenant', class: 'wide', cell: (row) => row.tenant},
  ];
  return {
    element: h('div', {}, h('h1', {}, 'Requests'), card('In flight, the oldest', running),
      card('Slowest of the last hour', phaseLegend(), slowest),
      card('Last ended', recent)),
    async refresh() {
      const answer = await ask('requests');
      replace(running, plainTable('In flight', IN_FLIGHT, answer.in_flight, 'none at this moment'));
      replace(slowest, requestTable('Slowest', answer.slowest));
      replace(recent, requestTable('Last ended', answer.recent));
    },
  };
}

function buffers() {
  const table = new ServerTable({
    title: 'Buffers', heading: 'h1', caption: 'Dense matrices kept under a name',
    endpoint: 'buffers', keep: true,
    sort: 'name', order: 'asc', empty: 'there are no buffers',
    columns: [
      {title: 'Buffer', sort: 'name', cell: (row) => row.name},
      {title: 'Owner', sort: 'tenant', class: 'middle', cell: (row) =>
        row.owner ? `${row.tenant} (${row.owner})` : row.tenant},
      {title: 'Size', class: 'keep',
       cell: (row) => `${count(row.rows)} × ${count(row.cols)} ${row.type}`},
      {title: 'Bytes', sort: 'bytes', right: true, cell: (row) => bytes(row.bytes)},
      {title: 'Version', sort: 'version', right: true, class: 'wide',
       cell: (row) => whole.format(row.version)},
      {title: 'Unused for', sort: 'idle', right: true, class: 'middle',
       cell: (row) => seconds(row.idle_seconds)},
      {title: 'Time to live', right: true, class: 'wide', cell: (row) =>
        row.time_to_live_seconds > 0 ? seconds(row.time_to_live_seconds) : 'for ever'},
      {title: 'Where', class: 'wide', cell: (row) => [
        row.parts ? `columns over ${row.parts} GPUs` : '', row.resident ? 'memory' : '',
        row.durable ? 'disk' : ''].filter(Boolean).join(', ')},
    ],
  });
  return {element: table.element, refresh: () => table.refresh()};
}

function devices() {
  const list = h('div', {}), hidden = h('div', {hidden: true});
  const before = new Map();  // busy seconds, and when
  return {
    element: h('div', {}, h('h1', {}, 'Devices'), list, hidden),
    async refresh() {
      hidden.hidden = status.all;
      if (!status.all) replace(hidden, card('', forOperators('Memory and load of devices are')));
      const now = performance.now() / 1000;
      replace(list, status.devices.map((device) => {
        const last = before.get(device.name);
        const busy = last && now > last.at ?
            (device.busy_seconds - last.busy) / (now - last.at) : null;
        if (device.memory && (!last || now - last.at > 1)) {
          before.set(device.name, {at: now, busy: device.busy_seconds});
        }
        const memory = device.memory;
        const uses = memory ? Object.entries(memory.uses) : [];
        return h('section', {class: 'card'},
          h('div', {class: 'bar-line'}, h('h2', {}, device.name),
            !device.found ? pill('not there') : device.unavailable ?
              pill('does not serve', 'bad') : pill('serves', 'good'),
            h('span', {class: 'dim'}, device.unavailable || device.description)),
          memory ? h('div', {}, facts([
            ['Memory in use', `${bytes(memory.used)} of ${bytes(memory.limit)}`],
            ['Most in use so far', bytes(memory.peak)],
            memory.kept === undefined ? null :
              ['Kept for the next request, not in use', bytes(memory.kept)],
            memory.reserved > 0 ?
              ['Set aside for messages, not in use', bytes(memory.reserved)] : null,
            ['Busy worker slots', busy === null ? NONE : digits(Math.max(0, busy))],
            ['Busy so far', seconds(device.busy_seconds)],
            ['Waiting requests', whole.format(device.queue_depth)],
            ['Memory bandwidth', device.bytes_per_second > 0 ?
              `${digits(device.bytes_per_second / 1e9)} GB/s` : NONE],
            ['Evictions', whole.format(device.evictions)]]),
            stack(uses, memory.limit),
            legend(uses.map(([use, value]) => [use, bytes(value)]),
                   ['free', bytes(Math.max(0, memory.limit - memory.used))])) : null);
      }));
    },
  };
}

function tenants() {
  const before = new Map();
  const lately = (row) => {
    const samples = before.get(row.name) || [];
    const first = samples[0], last = samples[samples.length - 1];
    return !first || last.at - first.at < 1 ?
        null : (last.seconds - first.seconds) / (last.at - first.at);
  };
  const table = new ServerTable({
    title: 'Tenants', heading: 'h1', caption: 'Tenants', endpoint: 'tenants', keep: true,
    sort: 'seconds', order: 'desc', empty: 'no tenant did anything yet',
    about: 'Device time is of all devices, since the start; the line in a bar is the share that the ' +
      'tenant’s weight entitles it to while all have requests.',
    columns: [
      {title: 'Tenant', sort: 'name', cell: (row) => row.name},
      {title: 'Weight', sort: 'weight', right: true, class: 'middle',
       cell: (row) => digits(row.weight)},
      {title: 'Device time', sort: 'seconds', right: true, cell: (row) =>
        row.seconds === undefined ? NONE : seconds(row.seconds)},
      {title: 'Share of it', operators: true, class: 'share', cell: (row) =>
        row.used_share === undefined ? NONE :
          [meter(row.used_share, row.entitled_share), percent(row.used_share)]},
      {title: 'Entitled to', operators: true, class: 'middle', right: true,
       cell: (row) => percent(row.entitled_share)},
      {title: 'Worker slots now', right: true, class: 'widest', cell: (row) => {
        const value = lately(row);
        return value === null ? NONE : digits(value);
      }},
      {title: 'Host memory', sort: 'host_bytes', right: true, class: 'middle', cell: (row) =>
        bytes(row.host_bytes) + (row.host_limit ? ` of ${bytes(row.host_limit)}` : '')},
      {title: 'GPU memory', right: true, class: 'wide', cell: (row) => bytes(row.device_bytes)},
      {title: 'Matrices', sort: 'matrices', right: true, class: 'widest',
       cell: (row) => whole.format(row.matrices)},
      {title: 'Buffers', sort: 'buffers', right: true, class: 'widest',
       cell: (row) => whole.format(row.buffers)},
      {title: 'Refused', sort: 'refused', right: true, class: 'middle',
       cell: (row) => whole.format(row.refused)},
    ],
  });
  return {
    element: table.element,
    async refresh() {
      if (!status.all && !table.about.hidden) {  // of others' use a tenant learns nothing
        table.about.hidden = true;
        table.columns = table.columns.filter((column) => !column.operators);
        table.drawHead();
      }
      await table.refresh();
      const at = performance.now() / 1000;
      for (const row of table.answer ? table.answer.rows : []) {
        if (row.seconds === undefined) continue;
        const samples = before.get(row.name) || [];
        samples.push({at, seconds: row.seconds});
        before.set(row.name, samples.filter((sample) => at - sample.at < 30));
      }
    },
  };
}

/** A setting's number for people; `unit` as the server says it. */
function withUnit(value, unit) {
  const number = Number(value);
  if (!unit || value === '' || Number.isNaN(number)) return '';
  if (unit === 'bytes') return bytes(number);
  if (unit === 'microseconds') return `${digits(number)} µs`;
  return number < 120 ? `${digits(number)} s` : span(number);
}

/** In the place of what a tenant's token does not show. */
function forOperators(what) {
  const code = (text) => h('code', {class: 'mono'}, text);
  return h('p', {}, `${what} for operators to see; this tab has a token of tenant ${status.tenant}. Sign ` +
    'out, and sign in with an operator’s token, of a line with ', code('role: operator'),
    ' in the access file, as ', code('sparsectl token new NAME --tenant=TENANT --role=operator'),
    ' makes one.');
}

function configuration() {
  const lines = h('div', {});
  let shown = false;
  return {
    element: h('div', {}, h('h1', {}, 'Configuration'), card('', lines)),
    async refresh() {
      if (shown) return;
      if (!status.all) {
        shown = true;
        return replace(lines, forOperators('The configuration is'));
      }
      const {yaml, units} = await ask('configuration');
      const rows = yaml.split('\n').filter(Boolean).map((line) => {
        const colon = line.indexOf(':');
        return {key: line.slice(0, colon), value: line.slice(colon + 1).trim()};
      });
      shown = true;
      const file = h('code', {class: 'mono'}, '--config');
      replace(lines, h('p', {class: 'dim'}, 'What is in force, as a file for ', file, ' has it.'),
              plainTable('Configuration', [
        {title: 'Key', cell: (row) => h('span', {class: 'mono'}, broken(row.key))},
        {title: 'Value', class: 'wrap', cell: (row) => h('span', {class: 'mono'}, shortWordsKept(row.value))},
        {title: 'In larger units', class: 'dim', cell: (row) => withUnit(row.value, units[row.key])},
      ], rows, 'empty'));
    },
  };
}

/** Of an address that is none, and of a matrix that there is not. */
function notFound() {
  return {
    element: h('div', {}, h('h1', {}, 'There is no such page'),
      h('p', {}, `Nothing is at “${location.hash}”. The views are above; `,
        h('a', {href: '#/matrices'}, 'all matrices'), '.')),
    async refresh() { /* it stays so */ },
  };
}

// ---- The page

const VIEWS = [
  ['overview', 'Overview', overview], ['matrices', 'Matrices', matrices],
  ['preparations', 'Preparations', preparations], ['requests', 'Requests', requests],
  ['buffers', 'Buffers', buffers], ['devices', 'Devices', devices], ['tenants', 'Tenants', tenants],
  ['configuration', 'Configuration', configuration],
];

let current = null, paused = false, timer = null, failures = 0, updated = null, polls = 0;

function showTabs(view) {
  const active = view === 'matrix' ? 'matrices' : view;
  replace($('tabs'), VIEWS.filter(([name]) => name !== 'configuration' || !status || status.all)
    .map(([name, title], i) => h('li', {}, h('a', {href: address(name === 'overview' ? '' : name),
      'data-key': `tab-${name}`, 'aria-keyshortcuts': String(i + 1),
      'aria-current': name === active ? 'page' : undefined}, title))));
}

function open() {
  const {view, parameters} = place();
  const known = VIEWS.find(([name]) => name === view);
  if (view.startsWith('matrices/')) {  // as one would guess it
    const name = decoded(view.slice('matrices/'.length));
    history.replaceState(null, '', address('matrix', {name}));
    return open();
  }
  const [title, make] = view === 'matrix' ? [parameters.name || 'Matrix', matrix] :
      known ? [known[1], known[2]] : ['Not found', notFound];
  document.title = `${title} · sparsed`;
  showTabs(view);
  current = make(parameters);
  $('main').replaceChildren(current.element);
  const tab = $('tabs').querySelector('[aria-current]');
  if (tab) tab.scrollIntoView({block: 'nearest', inline: 'nearest'});  // on a phone not all fit
  // So that views are not taller than they are when data is there.
  $('main').focus({preventScroll: true});
  window.scrollTo(0, 0);
  poll();
}

function showStatus() {
  const pillElement = $('pill');
  pillElement.className = `pill ${status.ready ? 'good' : 'bad'}`;
  setText(pillElement, status.ready ? 'serving' : 'not serving');
  $('uptime').textContent = `up ${span(status.uptime_seconds)}` + (status.all ?
      '' : ` · tenant ${status.tenant}`);
  const at = (status.addresses || []).join(', ');
  $('about').textContent = `sparsed ${status.version}${at ? ', at ' + at : ''}, ` +
    (status.data_dir ? `data in ${status.data_dir}` : status.durable ?
        'durable' : 'in memory only') +
    (status.all ? '' : `; shown to tenant ${status.tenant}`) + '; times are UTC;';
  $('leave').hidden = !token;
}

/** Above everything, and read aloud; nothing: ''. */
function showBanner(text) {
  $('banner').hidden = !text;
  setText($('banner'), text);
}
/** Why the server is not ready, which only an operator learns. */
function notReady() {
  if (status.ready) return '';
  return status.not_ready ? `Not ready: ${status.not_ready}` : 'The server is not ready.';
}

function showFailure(error) {
  if (error instanceof Refused) return askForToken(error.message);
  const since = updated ? ` What is shown is of ${moment(updated / 1000)} UTC.` : '';
  showBanner(error.status ? error.message : `The server does not answer; this page goes on asking.${since}`);
  if (error.status) return;
  $('pill').className = 'pill bad';
  setText($('pill'), 'unreachable');
}

async function poll() {
  clearTimeout(timer);
  const view = current, mine = ++polls;  // another one that begins meanwhile goes on in its place
  try {
    status = await ask('status');
    showStatus();
    showTabs(place().view);
    await view.refresh();
    failures = 0;
    updated = new Date();
    if (mine === polls) showBanner(notReady());
  } catch (error) {
    ++failures;
    if (mine === polls) showFailure(error);
  }
  if (mine !== polls) return;
  const drawn = document.documentElement.dataset;  // for tests
  drawn.updated = String(Number(drawn.updated || 0) + 1);
  if (!paused && !document.hidden && !$('sign-in').open) {
    timer = setTimeout(poll, Math.min(POLL_MS * 2 ** Math.min(failures, 4), 20000));
  }
}

function setPaused(value) {
  paused = value;
  $('pause').setAttribute('aria-pressed', String(paused));
  $('pause').textContent = paused ? 'Paused' : 'Pause';
  if (!paused) poll();
}

const KEYS = [
  ['1 … 8', 'the views, from the left'], ['/', 'search'],
      ['[  ]', 'the page before, the next page'],
  ['p', 'pause, go on'], ['u', 'from a matrix back to all of them'], ['?', 'this help'],
];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (target.matches('input, select, textarea')) {
    if (event.key !== 'Escape') return;
    if (target.type === 'search') {
      event.preventDefault();  // some browsers empty it, and tell nobody
      if (target.value) {
        target.value = '';
        target.dispatchEvent(new Event('input'));
      }
    }
    target.blur();
    return;
  }
  if ($('sign-in').open || $('keys').open) return;
  const number = Number(event.key);
  const click = (selector) => {
    const button = $('main').querySelector(selector);
    if (button && !button.disabled) button.click();
  };
  if (number >= 1 && number <= VIEWS.length) {
    location.hash = address(VIEWS[number - 1][0] === 'overview' ? '' : VIEWS[number - 1][0]);
  } else if (event.key === '/') {
    const field = $('main').querySelector('input[type=search]');
    if (field) field.focus();
  } else if (event.key === '[') {
    click('[data-page=before]');
  } else if (event.key === ']') {
    click('[data-page=after]');
  } else if (event.key === 'p') {
    setPaused(!paused);
  } else if (event.key === 'u' && place().view === 'matrix') {
    location.hash = '#/matrices';
  } else if (event.key === '?') {
    $('keys').showModal();
  } else {
    return;
  }
  event.preventDefault();
}

$('keys-list').append(...KEYS.flatMap(([key, what]) =>
  [h('dt', {}, key.split('  ').map((one) => h('kbd', {}, one))), h('dd', {}, what)]));
$('pause').addEventListener('click', () => setPaused(!paused));
$('help').addEventListener('click', () => $('keys').showModal());
$('skip').addEventListener('click', (event) => {
  event.preventDefault();  // the address's hash says which view this is
  $('main').focus();
});
$('leave').addEventListener('click', () => {
  sessionStorage.removeItem(TOKEN_KEY);
  token = null;
  location.reload();
});
$('sign-in-form').addEventListener('submit', (event) => {
  event.preventDefault();
  token = $('token').value.trim();
  sessionStorage.setItem(TOKEN_KEY, token);
  $('token').value = '';
  $('sign-in').close();
  poll();
});
$('sign-in').addEventListener('cancel', (event) => event.preventDefault());  // nothing is behind it
document.addEventListener('keydown', onKey);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !paused) poll();
});
window.addEventListener('hashchange', open);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  if (current && current.redraw) current.redraw();
});
open();

})();
