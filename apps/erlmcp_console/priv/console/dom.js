// Elements, and lists of them that keep their focus while the figures change.

export const at = id => document.getElementById(id);

// h('td', {class: 'number'}, 'text', child): text is never taken as HTML.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child != null));
  return element;
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// Makes the children of an element those of `items`, in their order. An element is made once for
// each key, and `update` is called for it each time.
export function list(parent, items, key, make, update) {
  const known = parent.known ??= new Map();
  const keys = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    keys.add(name);
    let element = known.get(name);
    if (!element) {
      element = make(item);
      known.set(name, element);
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (!keys.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}

// Pairs of a term and its description.
export function facts(parent, pairs) {
  list(parent, pairs, ([name]) => name,
    ([name]) => h('div', {}, h('dt', {}, name), h('dd', {})),
    (element, [, value]) => {
      text(element.lastElementChild, value);
      element.classList.toggle('long', value.length > 16);
    });
}

// Heads of a table that sorts: the columns are {key, name, number, wide}.
export function sortable(table, columns, first, changed) {
  const state = {key: first, down: true};
  const row = table.tHead.rows[0];
  const show = () => {
    for (const head of row.cells) {
      if (!head.dataset.key) continue;
      const own = head.dataset.key === state.key;
      head.setAttribute('aria-sort', own ? (state.down ? 'descending' : 'ascending') : 'none');
    }
  };
  for (const {key, name, number, wide, hint} of columns) {
    const classes = [number && 'number', wide && 'wide-only'].filter(Boolean).join(' ') || null;
    row.append(key
      ? h('th', {scope: 'col', class: classes, 'data-key': key},
          h('button', {type: 'button', title: hint, onclick: () => {
            state.down = state.key === key ? !state.down : Boolean(number);
            state.key = key;
            show();
            changed();
          }}, name))
      : h('th', {scope: 'col', class: classes}, h('span', {class: 'hidden'}, name)));
  }
  show();
  return items => items.toSorted((one, other) => {
    const [a, b] = [one[state.key], other[state.key]];
    const order = typeof a === 'string' ? a.localeCompare(b) : a - b;
    return (state.down ? -order : order) || String(one.name).localeCompare(String(other.name));
  });
}
