// docs/runbooks.md as a page: where an alert's runbook_url leads. Of Markdown, what that file uses:
// headings, paragraphs, numbered lists, fenced blocks; code, emphasis and links within them.
'use strict';
(() => {

const main = document.getElementById('main');

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Where code leads that is a path of this server: `/metrics`, `/#/requests`. */
const isPath = (code) => /^\/(#\/\w+|metrics|readyz|healthz|runbooks)?$/.test(code);

/** A link of the repository's, whose files the server has not: its words, and the file's path. */
function reference(label, target) {
  const path = target.split('#')[0];
  const name = path.startsWith('../') ? path.slice('../'.length) : `docs/${path}`;
  return label.includes(name) ? inline(label) : [...inline(label), ' (', element('code', {}, name), ')'];
}

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)|\*([^*]+)\*/g)) {
    parts.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    const [, code, label, target, stressed] = found;
    if (code && isPath(code)) parts.push(element('a', {href: code}, element('code', {}, code)));
    else if (code) parts.push(element('code', {}, code));
    else if (stressed) parts.push(element('em', {}, stressed));
    else if (/^(#|https?:)/.test(target)) parts.push(element('a', {href: target}, ...inline(label)));
    else parts.push(...reference(label, target));
  }
  return [...parts, text.slice(at)];
}

function paragraph(block) {
  if (!/^\d+\. /.test(block)) return element('p', {}, ...inline(block));
  const items = block.split(/^\d+\. /m).slice(1);
  return element('ol', {}, ...items.map((item) => element('li', {}, ...inline(item.trim()))));
}

function render(markdown) {
  const made = [];
  let section = element('section', {});
  for (const [block, , command] of markdown.matchAll(/^(```\w*\n([^]*?)```|.+(\n(?!#|```).+)*)$/gm)) {
    const heading = /^(#+) (.*)/.exec(block);
    const severity = /^Severity: (\w+)\. /.exec(block);
    if (command !== undefined) {
      section.append(element('pre', {tabindex: '0'}, element('code', {}, command)));
    } else if (heading) {
      const id = heading[2].toLowerCase().replace(/\W+/g, '-');
      section = element('section', {class: 'card', id});
      section.append(element(`h${heading[1].length}`, {}, heading[2]));
      made.push(section);
    } else if (severity) {
      section.dataset.severity = severity[1];
      const kind = severity[1] === 'critical' ? 'bad' : 'warn';
      section.append(element('p', {}, element('span', {class: `pill ${kind}`}, severity[1]), ' ',
                             ...inline(block.slice(severity[0].length))));
    } else {
      section.append(paragraph(block));
    }
  }
  return made;
}

/** All alerts, those that should wake somebody first. */
function index(sections) {
  const card = element('nav', {class: 'card index', 'aria-label': 'Alerts'});
  for (const severity of new Set(sections.map((one) => one.dataset.severity).filter(Boolean).sort())) {
    const those = sections.filter((one) => one.dataset.severity === severity);
    card.append(element('h2', {}, `${severity[0].toUpperCase()}${severity.slice(1)} (${those.length})`),
      element('ul', {}, ...those.map((one) =>
        element('li', {}, element('a', {href: `#${one.id}`}, one.firstChild.textContent)))));
  }
  return card;
}

/** To the alert that the address names. */
function show() {
  for (const section of main.children) section.classList.remove('here');
  const section = document.getElementById(location.hash.slice(1));
  document.title = 'Runbooks · sparsed';
  if (!section || section.parentElement !== main) return;
  section.classList.add('here');
  section.scrollIntoView();
  document.title = `${section.firstChild.textContent} · ${document.title}`;
}

document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();  // the address's hash says which alert this is
  main.focus();
});
fetch('/runbooks.md').then(async (reply) => {
  if (!reply.ok) throw new Error(await reply.text());
  const [about, ...alerts] = render(await reply.text());
  main.replaceChildren(about, index(alerts), ...alerts);
  window.addEventListener('hashchange', show);
  show();
}).catch((error) => main.replaceChildren(element('p', {role: 'alert'}, String(error.message))));

})();
