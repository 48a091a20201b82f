// Calls of this server's tools: a form that is made from the schema, and what the tool says.

import {at, h, text} from './dom.js';
import {fromServer} from './server.js';

let tools = [];
let running = null;

// A field for each property of a schema. What has no field of its own is written as JSON.
// Returns {element, read}: read() is the value, undefined if there is none.
function field(name, schema, required, prefix) {
  const id = `${prefix}-${name}`;
  const type = Array.isArray(schema.type) ? schema.type.find(each => each !== 'null') : schema.type;
  const titled = schema.oneOf?.every(each => 'const' in each) ? schema.oneOf
    : schema.anyOf?.every(each => 'const' in each) ? schema.anyOf : null;
  const choices = titled?.map(each => [each.const, each.title ?? String(each.const)])
    ?? schema.enum?.map((value, place) => [value, schema.enumNames?.[place] ?? String(value)]);
  const label = [h('label', {for: id, class: type === 'boolean' ? 'check' : null},
    schema.title ?? name, required ? h('span', {class: 'hint'}, ' required') : null)];
  const hint = schema.description ? h('span', {class: 'hint', id: `${id}-hint`}, schema.description)
    : null;
  const common = {id, name, required, 'aria-describedby': hint && `${id}-hint`};
  if (type === 'boolean') {
    const box = h('input', {...common, required: false, type: 'checkbox'});
    box.checked = schema.default === true;
    label[0].prepend(box);
    return {element: [label[0], hint], read: () => box.checked};
  }
  if (choices) {
    const select = h('select', common, ...(required ? [] : [h('option', {value: ''}, '–')]),
      ...choices.map(([, said], place) => h('option', {value: String(place)}, said)));
    const first = choices.findIndex(([value]) => value === schema.default);
    if (first >= 0) select.value = String(first);
    return {element: [...label, select, hint],
            read: () => select.value === '' ? undefined : choices[Number(select.value)][0]};
  }
  if (type === 'integer' || type === 'number') {
    const input = h('input', {...common, type: 'number', min: schema.minimum, max: schema.maximum,
                              step: type === 'integer' ? '1' : 'any', value: schema.default});
    return {element: [...label, input, hint],
            read: () => input.value === '' ? undefined : Number(input.value)};
  }
  if (type === 'string') {
    const kinds = {email: 'email', uri: 'url', date: 'date', password: 'password'};
    const input = h('input', {...common, type: kinds[schema.format] ?? 'text',
                              minlength: schema.minLength, maxlength: schema.maxLength,
                              value: schema.default, autocomplete: 'off'});
    return {element: [...label, input, hint],
            read: () => input.value === '' && !required ? undefined : input.value};
  }
  const area = h('textarea', {...common, spellcheck: 'false'},
    schema.default === undefined ? '' : JSON.stringify(schema.default));
  return {element: [...label, area, hint ?? h('span', {class: 'hint'}, 'JSON')],
          read: () => area.value.trim() === '' ? undefined : JSON.parse(area.value)};
}

// A form for an object. `send` gets its value.
function fields(schema, prefix) {
  const all = Object.entries(schema?.properties ?? {}).map(([name, property]) => ({
    name, ...field(name, property === true ? {} : property,
                   schema.required?.includes(name) ?? false, prefix)}));
  const wrong = h('p', {class: 'bad', role: 'alert'});
  return {
    elements: [...all.flatMap(({element}) => element).filter(Boolean), wrong],
    read: () => {
      const value = {};
      for (const {name, read} of all) {
        try {
          const own = read();
          if (own !== undefined) value[name] = own;
        } catch (error) {
          text(wrong, `${name}: ${error.message}`);
          return null;
        }
      }
      text(wrong, '');
      return value;
    },
  };
}

function say(kind, tag, ...content) {
  const entry = h('div', {class: kind}, h('span', {class: 'tag'}, tag), ...content);
  at('try-log').append(entry);
  at('try-log').scrollTop = at('try-log').scrollHeight;
  return entry;
}

const shown = value => h('pre', {}, typeof value === 'string' ? value
  : JSON.stringify(value, null, 2));

function sayContent(item) {
  if (item.type === 'text') return shown(item.text);
  if (item.type === 'image') {
    return h('img', {src: `data:${item.mimeType};base64,${item.data}`,
                     alt: 'The image of the result'});
  }
  return shown(item);
}

// What a call says, a line of JSON at a time.

let progress = null;

async function heard(message, call) {
  switch (message.kind) {
    case 'started':
      call.id = message.call;
      break;
    case 'progress': {
      const {progress: done, total, message: said} = message.params;
      progress ??= say('progress', 'progress', h('progress', {}), h('span'));
      const bar = progress.querySelector('progress');
      if (total) {
        bar.max = total;
        bar.value = done;
      }
      text(progress.lastElementChild, ` ${done}${total ? ` of ${total}` : ''} ${said ?? ''}`);
      break;
    }
    case 'log':
      say('said', `log: ${message.params.level}`, shown(message.params.data));
      break;
    case 'question':
      ask(message, call);
      break;
    case 'result': {
      const {content, structuredContent, isError} = message.result;
      say(isError ? 'failed' : 'result', isError ? 'the tool’s error' : 'result',
        ...(content ?? []).map(sayContent),
        structuredContent === undefined ? null : shown(structuredContent));
      break;
    }
    case 'failed':
      say('failed', 'error', message.words);
      break;
  }
}

// A question of the tool, as a form.
function ask({question, form, params}, call) {
  const made = fields(form === 'form' ? params.requestedSchema : {}, `question-${question}`);
  const answer = async (action, content) => {
    const {error} = await fromServer('answer', {call: call.id, question, action, content});
    if (error) {
      say('failed', 'not answered', error);
      return;
    }
    element.remove();
    say('said', 'answered', action);
    at('try-log').focus();
  };
  const element = h('form', {class: 'question', 'aria-label': 'A question of the tool',
    onsubmit: event => {
      event.preventDefault();
      const content = made.read();
      if (content) answer('accept', content);
    }},
    h('strong', {}, params.message ?? 'The tool asks'),
    form === 'url' ? h('p', {}, h('a', {href: /^https?:/.test(params.url) ? params.url : null,
                                        rel: 'noopener', target: '_blank'}, params.url)) : null,
    ...made.elements,
    h('div', {class: 'buttons'}, h('button', {class: 'primary', type: 'submit'}, 'Answer'),
      h('button', {type: 'button', onclick: () => answer('decline')}, 'Decline'),
      h('button', {type: 'button', onclick: () => answer('cancel')}, 'Cancel')));
  at('try-log').append(element);
  element.querySelector('input, select, textarea, button').focus();
  at('try-log').scrollTop = at('try-log').scrollHeight;
}

async function call(tool, args, button, stop) {
  const own = {id: null};
  running = new AbortController();
  progress = null;
  at('try-log').replaceChildren();
  say('said', 'called', shown(args));
  button.disabled = true;
  stop.hidden = false;
  const began = performance.now();
  try {
    const response = await fetch('call', {
      method: 'POST', headers: {'content-type': 'application/json'}, signal: running.signal,
      body: JSON.stringify({tool, arguments: args})});
    if (!response.ok) {
      say('failed', 'error', (await response.json()).error);
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) await heard(JSON.parse(line), own);
    }
    say('said', 'ended', `after ${Math.round(performance.now() - began)} ms`);
  } catch (error) {
    say('failed', error.name === 'AbortError' ? 'ended by you' : 'error',
      error.name === 'AbortError' ? '' : error.message);
  } finally {
    at('try-log').querySelectorAll('.question').forEach(element => element.remove());
    button.disabled = false;
    stop.hidden = true;
    running = null;
  }
}

function choose() {
  const tool = tools.find(({name}) => name === at('try-tool').value);
  const form = at('try-fields');
  form.replaceChildren();
  text(at('try-about'), tool?.description ?? '');
  if (!tool) return;
  const made = fields(tool.inputSchema, 'argument');
  const button = h('button', {class: 'primary', type: 'submit'}, 'Call');
  const stop = h('button', {class: 'danger', type: 'button', hidden: true,
                            onclick: () => running?.abort()}, 'Stop');
  form.append(...made.elements, h('div', {class: 'buttons'}, button, stop));
  form.onsubmit = event => {
    event.preventDefault();
    const args = made.read();
    if (args && !running) call(tool.name, args, button, stop);
  };
}

async function fill() {
  const {answer, error} = await fromServer('tools');
  if (error) {
    text(at('try-about'), error);
    return;
  }
  const chosen = at('try-tool').value;
  tools = answer.tools;
  at('try-tool').replaceChildren(h('option', {value: ''}, 'Choose a tool'),
    ...tools.map(({name, title}) => h('option', {value: name}, title && title !== name
      ? `${name}: ${title}` : name)));
  at('try-tool').value = tools.some(({name}) => name === chosen) ? chosen : '';
}

// The list is asked for when somebody comes near it.
export function startTrying() {
  at('try-tool').addEventListener('focus', () => tools.length === 0 && fill());
  at('try-tool').addEventListener('change', choose);
  new IntersectionObserver((entries, observer) => {
    if (entries.some(entry => entry.isIntersecting)) {
      observer.disconnect();
      fill();
    }
  }).observe(at('try'));
}
