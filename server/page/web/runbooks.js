// docs/runbooks.md as a page: where an alert's runbook_url leads. Of Markdown, what that file uses:
// headings, paragraphs, fenced blocks; code, emphasis and links within them.
'use strict';
(() => {

const main = document.getElementById('main');

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A paragraph's text. Links to other files of the repository, which the server has not, are their words. */
function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)|\*([^*]+)\*/g)) {
    parts.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    const [, code, label, target, stressed] = found;
    if (code) parts.push(element('code', {}, code));
    else if (stressed) parts.push(element('em', {}, stressed));
    else if (/^(#|https?:)/.test(target)) parts.push(element('a', {href: target}, ...inline(label)));
    else parts.push(...inline(label));
  }
  return [...parts, text.slice(at)];
}

function render(markdown) {
  const made = [];
  let section = element('section', {});
  for (const [block, , command] of markdown.matchAll(/^(```\w*\n([^]*?)```|.+(\n(?!#|```).+)*)$/gm)) {
    const heading = /^(#+) (.*)/.exec(block);
    if (command !== undefined) {
      section.append(element('pre', {}, element('code', {}, command)));
    } else if (heading) {
      const id = heading[2].toLowerCase().replace(/\W+/g, '-');
      section = element('section', {class: 'card', id});
      section.append(element(`h${heading[1].length}`, {}, heading[2]));
      made.push(section);
      // What follows on the next line without a blank one.
      const rest = block.slice(heading[0].length).trim();
      if (rest) section.append(element('p', {}, ...inline(rest)));
    } else {
      section.append(element('p', {}, ...inline(block)));
    }
  }
  return made;
}

/** To the alert that the address names. */
function show() {
  for (const section of main.children) section.classList.remove('here');
  const section = document.getElementById(location.hash.slice(1));
  if (!section || section.parentElement !== main) return;
  section.classList.add('here');
  section.scrollIntoView();
}

fetch('/runbooks.md').then(async (reply) => {
  if (!reply.ok) throw new Error(await reply.text());
  main.replaceChildren(...render(await reply.text()));
  for (const title of main.querySelectorAll('h2')) {
    const link = element('a', {href: `#${title.parentElement.id}`}, title.textContent.replace('Sparsed', ''));
    document.getElementById('alerts').append(element('li', {}, link));
  }
  window.addEventListener('hashchange', show);
  show();
}).catch((error) => main.replaceChildren(element('p', {role: 'alert'}, String(error.message))));

})();
