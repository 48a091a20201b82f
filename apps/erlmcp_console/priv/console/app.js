// The console: takes a snapshot a second from the feed, and shows it.

import {at, facts, h, list, sortable, text} from './dom.js';
import {binary, Chart, hundredths, tenths, whole} from './charts.js';
import {age, bytes, clock, count, duration, milliseconds, percent, rate, words} from './text.js';
import {meanings} from './refusals.js';
import {fromServer} from './server.js';
import {startTrying} from './try.js';

const HISTORY_MS = 900_000;
const TOOLS_SHOWN = 25;
// A bound that is used this much is not well.
const NEAR = 0.8;

let history = null;
let snapshot = null;
let latencyBound = 150;
let feed = null;
let paused = false;
let hasPayloads = false;

// The four signals, and the machine's.

const last = (column, index) => history[column][index] ?? 0;
const bound = name => snapshot.bounds.find(each => each.name === name);

const signals = [
  {title: 'Traffic', series: [{key: 'requests', name: 'requests', color: '--one', fill: true}],
   write: rate, steps: tenths, figure: (_, index) => rate(last('requests', index)),
   side: () => 'requests a second'},
  {title: 'Latency',
   series: [{key: 'p50_ms', name: 'p50', color: '--two'},
            {key: 'p95_ms', name: 'p95', color: '--one', fill: true},
            {key: 'p99_ms', name: 'p99', color: '--three'}],
   write: milliseconds, steps: hundredths, least: 0.5,
   figure: (_, index) => milliseconds(last('p95_ms', index)),
   side: () => 'p95',
   bound: () => ({value: latencyBound, name: `bound of p95: ${milliseconds(latencyBound)}`})},
  {title: 'Errors',
   series: [{key: 'faults', name: 'faults', color: '--bad', fill: true},
            {key: 'refusals', name: 'refusals', color: '--warn'},
            {key: 'tool_errors', name: 'errors of tools', color: '--three'}],
   write: rate, steps: tenths,
   figure: (_, index) => rate(last('refusals', index) + last('tool_errors', index)),
   side: () => 'a second'},
  {title: 'Saturation',
   series: [{key: 'in_flight', name: 'in flight', color: '--one', fill: true},
            {key: 'waiting', name: 'waiting', color: '--three'}],
   write: count, steps: whole, least: 4, figure: (_, index) => count(last('in_flight', index)),
   side: () => `of ${count(snapshot.concurrency_limit)} in flight`,
   bound: () => ({value: snapshot.concurrency_limit,
                  name: `limit now: ${count(snapshot.concurrency_limit)}`})},
].map(options => new Chart(at('charts'), options));

const machine = [
  {title: 'Memory of the node',
   series: [{key: 'memory', name: 'in use', color: '--two', fill: true}], write: bytes,
   steps: binary, least: 2 ** 20, figure: (_, index) => bytes(last('memory', index))},
  {title: 'Processors',
   series: [{key: 'processors', name: 'the node’s share', color: '--one', fill: true}],
   write: percent, steps: hundredths, least: 0.1,
   figure: ({processors}, index) =>
     processors[index] == null ? '–' : percent(processors[index]),
   side: () => `of ${snapshot.machine.schedulers}`},
].map(options => new Chart(at('machine-charts'), options));

const charts = [...signals, ...machine];

// The first line.

function showVerdict({verdict: {since, causes}, at: now, totals}) {
  text(at('verdict-since'), `for ${duration(now - since)}, since ${clock(since, true)}`);
  // The words of a cause change with its figures, and the focus on it must stay.
  list(at('causes'), causes, cause => cause.key, ({link, since: began}) =>
    h('li', {}, h('a', {href: `#${link}`}),
      h('span', {class: 'quiet'}, `since ${clock(began, true)}`)),
    (item, {words: said}) => text(item.firstElementChild, said));
  facts(at('totals'), [
    ['requests', count(totals.requests)], ['refused', count(totals.refusals)],
    ['own faults', count(totals.faults)],
    ['sessions', count(snapshot.sessions.open)],
    ['connections', count(last('connections', history.at.length - 1))]]);
}

// The last figures do not tell how the server is once no more of them come.
function showWell(isLive) {
  if (!snapshot) {
    delete at('verdict').dataset.well;
    text(at('verdict-words'), 'Waiting for the first figures');
    return;
  }
  const {verdict: {well}, at: when} = snapshot;
  const then = `was ${well ? 'well' : 'not well'} at ${clock(when, true)}`;
  if (isLive) at('verdict').dataset.well = well;
  else delete at('verdict').dataset.well;
  text(at('verdict-words'), `The server ${isLive ? `is ${well ? 'well' : 'not well'}` : then}`);
  document.title =
    `${isLive ? well ? 'well' : '(!) not well' : then} · ${serverName()} · erlmcp`;
}

const serverName = () => snapshot.server.title ?? snapshot.server.name ?? 'erlmcp';

function showServer({server, sessions, streams, tasks, cache, at: now}) {
  text(at('server-name'), serverName());
  text(at('server-facts'), [`${server.name ?? ''} ${server.version ?? ''}`.trim(), server.node,
    `up ${duration(now - server.started)}`].filter(Boolean).join(' · '));
  const uses = cache.hits + cache.misses;
  facts(at('server-list'), [
    ['State', words(server.state)],
    ['Error budget', snapshot.zone],
    ['Sessions open', count(sessions.open)],
    ['Sessions opened', count(sessions.opened)],
    ['Streams open', count(streams.open)],
    ['Tasks running', count(tasks)],
    ['Cache', `${count(cache.entries)} results, ${bytes(cache.bytes)}`],
    ['Cache hits', uses === 0 ? 'none asked' : percent(cache.hits / uses)],
    ...server.mounts.map(({prefix, running}) =>
      [`Mounted: ${prefix}`, running ? 'runs' : 'does not run']),
    ['OTP', server.otp],
    ['Listens at', server.listeners.map(({transport, url}) => url ?? transport).join(', ')
      || 'nowhere']]);
}

// Marks on the axis of time, and what they mean.

function showMarks(marks) {
  list(at('marks'), marks.toSorted((a, b) => b.at - a.at).slice(0, 8),
    mark => `${mark.at} ${mark.words}`,
    mark => h('li', {'data-kind': mark.kind}, h('time', {}, clock(mark.at, true)), mark.words),
    () => {});
}

// Tools, resources and prompts.

const toolColumns = [
  {key: 'name', name: 'Name'},
  {key: 'rate', name: 'a second', number: true},
  {key: 'p50', name: 'p50', number: true, wide: true},
  {key: 'p95', name: 'p95', number: true},
  {key: 'p99', name: 'p99', number: true, wide: true},
  {key: 'errors', name: 'errors', number: true, hint: 'results with isError'},
  {key: 'refusals', name: 'refused', number: true, wide: true},
  {key: 'total', name: 'since start', number: true, wide: true},
];
const sortTools = sortable(at('tools-table'), toolColumns, 'rate', () => showTools());
at('tools-filter').addEventListener('input', () => showTools());

function showTools() {
  if (!snapshot) return;
  const wanted = at('tools-filter').value.trim().toLowerCase();
  const found = snapshot.definitions.filter(({name, total}) =>
    wanted ? name.toLowerCase().includes(wanted) : total > 0);
  const shown = sortTools(found).slice(0, TOOLS_SHOWN);
  const slowest = Math.max(1e-9, ...shown.map(({p95}) => p95));
  list(at('tools-table').tBodies[0], shown, ({kind, name}) => `${kind} ${name}`,
    ({kind, name}) => h('tr', {},
      h('th', {scope: 'row', class: 'name'}, name,
        kind === 'tool' ? null : h('span', {class: 'kind'}, kind)),
      ...toolColumns.slice(1).map(({key, wide}) =>
        h('td', {class: `number${wide ? ' wide-only' : ''}${key === 'p95' ? ' spread' : ''}`},
          key === 'p95' ? h('span') : null, key === 'p95' ? h('i') : null))),
    (row, item) => {
      toolColumns.slice(1).forEach(({key}, place) => {
        const cell = row.cells[place + 1];
        if (key === 'p95') {
          text(cell.firstElementChild, milliseconds(item.p95));
          cell.lastElementChild.style.width = `${item.p95 / slowest * 70}%`;
        } else {
          text(cell, key.startsWith('p') ? milliseconds(item[key])
            : key === 'rate' ? rate(item.rate) : count(item[key]));
        }
        cell.classList.toggle('zero', item[key] === 0);
        cell.classList.toggle('bad', key === 'errors' && item.errors > 0 ||
                              key === 'refusals' && item.refusals > 0);
      });
    });
  at('tools-empty').hidden = shown.length > 0;
  text(at('tools-empty'), wanted ? 'No name contains that.' : 'Nothing was called yet.');
  at('tools-more').hidden = found.length <= TOOLS_SHOWN;
  text(at('tools-more'), `and ${count(found.length - TOOLS_SHOWN)} more; filter by name`);
}

// Running calls.

function callItem(call) {
  const button = h('button', {type: 'button', class: 'danger', onclick: async () => {
    button.disabled = true;
    const {error} = await fromServer('cancel', {id: call.id});
    button.disabled = !error;
    text(at('calls-said'), error ?? `Ended ${call.target ?? call.method}.`);
  }}, 'End', h('span', {class: 'hidden'}, ` the call of ${call.target ?? call.method}`));
  return h('li', {},
    h('div', {class: 'call'}, h('span', {class: 'age'}),
      h('div', {},
        h('div', {class: 'what'}, h('strong', {class: 'mono'}, call.target ?? call.method)),
        h('div', {class: 'who'}, `${call.method} for ${call.principal}`)), button),
    h('details', {}, h('summary', {}, 'What it executes now'),
      h('div', {class: 'stack', tabindex: '0', role: 'region', 'aria-label': 'Stack'})));
}

function showCalls({calls}) {
  list(at('calls-list'), calls, call => call.id, callItem, (item, call) => {
    text(item.querySelector('.age'), age(call.age));
    text(item.querySelector('.stack'), call.stack.join('\n') || 'nothing of Erlang');
  });
  at('calls-empty').hidden = calls.length > 0;
}

// Requests that have ended.

const sortRequests = sortable(at('requests-table'), [
  {key: 'at', name: 'Ended'},
  {key: 'name', name: 'Request'},
  {key: 'took', name: 'took', number: true},
  {key: 'outcome', name: 'outcome'},
  {key: 'principal', name: 'principal', wide: true},
  {key: 'bytes_out', name: 'bytes', number: true, wide: true},
  {key: 'trace', name: 'trace', wide: true},
], 'at', () => snapshot && showRequests(snapshot));
at('requests-failed').addEventListener('change', () => snapshot && showRequests(snapshot));

const outcomes = {tool_error: 'error of the tool', cancelled: 'cancelled'};

function showRequests({requests}) {
  const names = Object.fromEntries(snapshot.refusals.map(({code, name}) => [code, words(name)]));
  const rows = requests.filter(({error}) => error !== null || !at('requests-failed').checked)
    .map((request, place) => ({...request, place,
      name: request.target ?? request.method ?? 'unread', trace: request.trace ?? '',
      outcome: request.error === null ? 'ok'
        : outcomes[request.error] ?? `${request.error} ${names[request.error] ?? ''}`}));
  list(at('requests-table').tBodies[0], sortRequests(rows),
    row => row.id,
    ({id, at: when, name, method, took, outcome, error, principal, bytes_in: sent, bytes_out: got,
      payload, trace}) => h('tr', {},
      h('td', {}, clock(when, true)),
      h('th', {scope: 'row', class: 'name'},
        payload && hasPayloads
          ? h('button', {type: 'button', class: 'link', title: 'Arguments and result',
                         onclick: event => showPayload(id, name, when, event.currentTarget)}, name)
          : name,
        name === method ? null : h('span', {class: 'kind'}, method ?? '')),
      h('td', {class: 'number'}, milliseconds(took)),
      h('td', {class: error === null ? 'zero' : 'bad'}, outcome),
      h('td', {class: 'wide-only'}, principal),
      h('td', {class: 'number wide-only'}, `${count(sent)} / ${count(got)}`),
      h('td', {class: 'mono wide-only'}, trace || '–')),
    () => {});
  at('requests-empty').hidden = rows.length > 0;
  at('requests-table').hidden = rows.length === 0;
}

// The payload of a request, where payloads are switched on.

let opener = null;

function payloadText(part) {
  if (!part) return 'not known';
  return 'omitted' in part ? `${bytes(part.omitted)}, which is more than is kept` : part.text;
}

async function showPayload(id, name, when, button) {
  const {answer: payload, error} = await fromServer(`payload?id=${id}`);
  opener = button;
  at('payload').hidden = false;
  text(at('payload-title'), `${name} at ${clock(when, true)}${error ? `: ${error}` : ''}`);
  text(at('payload-arguments'), payloadText(payload?.arguments));
  text(at('payload-result'), payloadText(payload?.result));
  at('payload-title').focus();
}

function closePayload() {
  at('payload').hidden = true;
  (opener?.isConnected ? opener : at('requests-failed')).focus();
}

at('payload-close').addEventListener('click', closePayload);
at('payload').addEventListener('keydown', event => {
  if (event.key === 'Escape') closePayload();
});

// Bounds.

const boundNames = {
  in_flight: 'Requests in flight', waiting: 'Requests waiting', connections: 'Connections',
  sessions: 'Sessions', tasks: 'Tasks', memory: 'Memory of the machine',
  processes: 'Processes of the node', ports: 'Ports of the node', atoms: 'Atoms of the node',
};

function forecastText({at: met, earliest, latest}) {
  const now = snapshot.at;
  const off = (latest - earliest) / 2;
  return `Met in about ${duration(met - now)} (${clock(met)}, give or take ${duration(off)}) ` +
    'if the trend of the last hour goes on, a straight line.';
}

function showBounds({bounds}) {
  const known = bounds.filter(({limit}) => limit !== null);
  list(at('bounds-list'), known, ({name}) => name,
    ({name}) => h('li', {class: 'bound'},
      h('span', {id: `bound-${name}`}, boundNames[name] ?? words(name)),
      h('span', {class: 'quiet'}),
      h('div', {class: 'bar', role: 'meter', 'aria-labelledby': `bound-${name}`,
                'aria-valuemin': '0'}, h('i')),
      h('p', {class: 'forecast'})),
    (item, {name, used, limit, forecast}) => {
      const write = name === 'memory' ? bytes : count;
      const share = limit > 0 ? used / limit : 0;
      item.dataset.near = share >= NEAR;
      text(item.children[1], `${write(used)} of ${write(limit)}`);
      const bar = item.children[2];
      bar.setAttribute('aria-valuemax', limit);
      bar.setAttribute('aria-valuenow', Math.min(used, limit));
      bar.setAttribute('aria-valuetext', `${write(used)} of ${write(limit)}`);
      bar.firstElementChild.style.width = `${Math.min(100, share * 100)}%`;
      text(item.children[3], forecast ? forecastText(forecast) : '');
    });
}

// Refusals.

const sortRefusals = sortable(at('refusals-table'), [
  {key: 'code', name: 'Refusal'},
  {key: 'recent', name: 'last minute', number: true},
  {key: 'count', name: 'since start', number: true, wide: true},
], 'recent', () => snapshot && showRefusals(snapshot));

function showRefusals({refusals, windows}) {
  list(at('refusals-table').tBodies[0], sortRefusals(refusals), ({code}) => code,
    ({code, name}) => h('tr', {},
      h('th', {scope: 'row'},
        h('span', {class: 'code'}, String(code)), h('strong', {}, words(name)),
        h('div', {class: 'quiet'}, meanings[code] ?? '')),
      h('td', {class: 'number'}), h('td', {class: 'number wide-only'})),
    (row, {recent, count: all}) => {
      text(row.cells[1], count(recent));
      row.cells[1].classList.toggle('bad', recent > 0);
      row.cells[1].classList.toggle('zero', recent === 0);
      text(row.cells[2], count(all));
    });
  at('refusals-empty').hidden = refusals.length > 0;
  at('refusals-table').hidden = refusals.length === 0;
  text(at('budget'), 'own faults: ' + windows.map(({window: length, requests, faults}) =>
    `${count(faults)} of ${count(requests)} in ${duration(length * 1000)}`).join(', '));
}

// Incidents: internal errors, whose causes are in the log.

const incidentWords = {
  call_crashed: 'crashed', call_timed_out: 'passed its deadline', call_died: 'was killed',
  reply_too_large: 'returned too much', page_crashed: 'a page crashed',
};

function showIncidents({incidents}) {
  list(at('incidents-list'), incidents, ({id}) => id,
    ({at: when, id, what, method, target}) => h('li', {},
      h('time', {class: 'quiet'}, clock(when, true)),
      h('div', {}, h('strong', {class: 'mono'}, target ?? method ?? 'the server'), ' ',
        incidentWords[what] ?? words(what), h('div', {class: 'quiet mono'}, id))),
    () => {});
  at('incidents-empty').hidden = incidents.length > 0;
}

// What handlers depend on: breakers, workers, and other servers.

const states = {closed: 'closed', open: 'open', half_open: 'half-open'};

const failures = failed => failed === 0 ? '' : `, ${count(failed)} failed in a row`;

// An item with a state, which stands for itself without its colour.
function stateItem(name) {
  return h('li', {class: 'dependency'}, h('span', {class: 'name'}, name),
    h('span', {class: 'state'}), h('span', {class: 'quiet'}));
}

function showState(item, state, said, more) {
  item.dataset.state = state;
  text(item.children[1], said);
  text(item.children[2], more);
}

const upstreamColumns = [
  {key: 'name', name: 'Server'},
  {key: 'rate', name: 'a second', number: true},
  {key: 'p50', name: 'p50', number: true, wide: true},
  {key: 'p95', name: 'p95', number: true},
  {key: 'errors', name: 'errors', number: true, wide: true, hint: 'results with isError'},
  {key: 'refusals', name: 'failed', number: true, hint: 'without a result'},
  {key: 'running', name: 'running', number: true, wide: true},
  {key: 'connections', name: 'connections', number: true, wide: true},
  {key: 'total', name: 'since start', number: true, wide: true},
];
const sortUpstreams = sortable(at('upstreams-table'), upstreamColumns, 'rate',
                               () => snapshot && showUpstreams(snapshot));

function showUpstreams({upstreams}) {
  at('upstreams').hidden = upstreams.length === 0;
  list(at('upstreams-table').tBodies[0], sortUpstreams(upstreams), ({name}) => name,
    ({name}) => h('tr', {}, h('th', {scope: 'row', class: 'name'}, name),
      ...upstreamColumns.slice(1).map(({wide}) =>
        h('td', {class: `number${wide ? ' wide-only' : ''}`}))),
    (row, item) => upstreamColumns.slice(1).forEach(({key}, place) => {
      const cell = row.cells[place + 1];
      text(cell, key.startsWith('p') ? milliseconds(item[key])
        : key === 'rate' ? rate(item.rate) : count(item[key]));
      cell.classList.toggle('zero', item[key] === 0);
      cell.classList.toggle('bad', ['errors', 'refusals'].includes(key) && item[key] > 0);
    }));
}

function showDependencies({breakers, workers, pools, upstreams}) {
  list(at('breakers'), breakers, ({name}) => name, ({name}) => stateItem(name),
    (item, {state, failed, targets, first, name}) => showState(item, state, states[state],
      (targets > 1 ? `of ${first} and ${count(targets - 1)} more`
        : first === name ? '' : `of ${first}`) + failures(failed)));
  list(at('workers'), workers, ({name}) => name, ({name}) => stateItem(name),
    (item, {size, ready, taken, waiting}) => showState(item,
      ready < size ? 'open' : waiting > 0 ? 'half_open' : 'closed',
      `${count(taken)} of ${count(size)} busy`,
      [ready < size && `${count(size - ready)} not started`,
       waiting > 0 && `${count(waiting)} calls wait`].filter(Boolean).join(', ')));
  const members = pools.flatMap(({name, size, members: all}) =>
    all.map((member, place) => ({...member, place, name, size})));
  list(at('pools'), members, ({name, target, place}) => `${name} ${target} ${place}`,
    ({name, target}) => stateItem(`${name}: ${target}`),
    (item, {state, calls, failed}) => showState(item, state, states[state],
      (calls === 0 ? 'no calls' : calls === 1 ? 'one call' : `${count(calls)} calls`)
        + failures(failed)));
  for (const [id, all] of [['breakers', breakers], ['workers', workers], ['pools', members]]) {
    at(id).parentElement.hidden = all.length === 0;
  }
  at('dependencies-empty').hidden =
    breakers.length + workers.length + members.length + upstreams.length > 0;
}

// The nodes of the cluster, as this one knows them. A node that is silent has no figures.

const nodeStates = {alive: 'closed', leaving: 'half_open', dead: 'open'};

function showCluster({cluster}) {
  for (const id of ['cluster', 'cluster-link']) at(id).hidden = cluster === null;
  if (cluster === null) return;
  text(at('cluster-facts'), `${count(cluster.majority)} of ${count(cluster.nodes.length)} nodes `
    + `make a majority, and the server's own node ${cluster.lease > 0 ? 'has' : 'has lost'} it`);
  list(at('cluster-nodes'), cluster.nodes, ({node}) => node, ({node}) => stateItem(node),
    (item, {state, leads, lease, sessions, forwarded, inherited}) =>
      showState(item, nodeStates[state], leads ? `${state}, leads` : state,
        sessions === null ? '' : [`lease ${(lease / 1000).toFixed(1)} s`,
          `${count(sessions)} sessions`, `${count(forwarded)} requests passed on`,
          `${count(inherited)} sessions inherited`].join(', ')));
}

function showMachine({machine: node}) {
  const {memory} = node;
  facts(at('machine-facts'), [
    ['Processes', bytes(memory.processes)], ['Binaries', bytes(memory.binary)],
    ['Tables', bytes(memory.ets)], ['Code', bytes(memory.code)],
    ['Waiting to run', count(node.run_queue)],
    ['Collections', `${rate(node.collections)}/s`],
    ['Reductions', `${count(node.reductions)}/s`]]);
}

function show() {
  const marks = snapshot.marks;
  for (const chart of charts) chart.update(history, snapshot, marks);
  showServer(snapshot);
  showVerdict(snapshot);
  showMarks(marks);
  showTools();
  showCalls(snapshot);
  showRequests(snapshot);
  showBounds(snapshot);
  showRefusals(snapshot);
  showIncidents(snapshot);
  showDependencies(snapshot);
  showUpstreams(snapshot);
  showCluster(snapshot);
  showMachine(snapshot);
}

// The feed. While nobody sees the page, it is closed.

// The page is not live if figures stay away while the connection stands.
const SILENCE_MS = 5_000;
let heard = 0;

let columns = [];

function hello(data) {
  columns = data.columns;
  latencyBound = data.latency_ms;
  hasPayloads = data.payloads;
  text(at('requests-payloads'), hasPayloads ? 'a name shows its payload' : 'without payloads');
  history = Object.fromEntries(columns.map((name, place) => [name, data.points[place] ?? []]));
  snapshot = data.snapshot;
  if (snapshot) show();
}

function next(data) {
  snapshot = data;
  const now = data.point[0];
  if (history.at.at(-1) !== now) {
    columns.forEach((name, place) => history[name].push(data.point[place]));
  }
  const old = history.at.findIndex(time => now - time < HISTORY_MS);
  if (old > 0) columns.forEach(name => history[name].splice(0, old));
  show();
}

function say(state, words_) {
  at('live').dataset.state = state;
  text(at('live'), words_);
  showWell(state === 'live');
}

function live() {
  heard = Date.now();
  say('live', 'live');
}

setInterval(() => {
  if (feed?.readyState === EventSource.OPEN && Date.now() - heard > SILENCE_MS) {
    say('lost', 'no figures');
  }
}, 1000);

function open() {
  feed?.close();
  feed = new EventSource('feed');
  feed.addEventListener('hello', event => {
    hello(JSON.parse(event.data));
    live();
  });
  feed.addEventListener('snapshot', event => {
    next(JSON.parse(event.data));
    live();
  });
  feed.addEventListener('error', () => {
    say('lost', 'no connection');
    // A browser gives up after a response that is no stream, as when as many look as may.
    if (feed.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
  });
}

function watch() {
  if (paused || document.hidden) {
    feed?.close();
    feed = null;
    say('paused', 'paused');
  } else if (!feed || feed.readyState === EventSource.CLOSED) {
    open();
  }
}

at('pause').addEventListener('click', () => {
  paused = !paused;
  at('pause').setAttribute('aria-pressed', paused);
  watch();
});
document.addEventListener('visibilitychange', watch);

// The theme: the system's, or the one that was chosen here.

const themes = ['system', 'light', 'dark'];

function wear(theme) {
  document.documentElement.dataset.theme = theme;
  text(at('theme'), `Theme: ${theme}`);
  charts.forEach(chart => chart.restyle());
}

at('theme').addEventListener('click', () => {
  const theme = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3];
  localStorage.setItem('erlmcp-theme', theme);
  wear(theme);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => wear(
  document.documentElement.dataset.theme));

wear(themes.includes(localStorage.getItem('erlmcp-theme'))
  ? localStorage.getItem('erlmcp-theme') : 'system');
startTrying();
watch();
