#!/usr/bin/env python3
"""The status page of a real server in a real browser without a screen.

  page_test.py SPARSED SPARSECTL

Every view has data, the server searches, sorts and turns pages, the keyboard works, names that look
like HTML stay text, nothing is loaded from elsewhere, a tenant sees its own things, a phone does
not scroll sideways, alerts lead to their runbooks. Skipped (exit status 77) where Chromium is not installed.
"""

import contextlib
import hashlib
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import browser as browsers  # noqa: E402
from running import running  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
ATTACK = "<img src=x onerror=window.attacked=1>"
MATRICES = 30
CONTENT = "main tbody tr, main .facts, main .empty:not([hidden])"
SECONDS = 100
VIEWS = ("matrices", "preparations", "requests", "buffers", "devices", "tenants", "configuration")


def check(condition, sentence):
    if not condition:
        raise SystemExit(f"page_test: {sentence}")


@contextlib.contextmanager
def server(sparsed, folder, *flags):
    """The address of its page, and that of its gRPC."""
    with running(sparsed, folder / "log", "--in-memory", "--devices=cpu", "--host-memory=512MiB",
                 f"--listen=unix:{folder}/socket", *flags) as process:
        yield process.page, process.listen


def run(*command, fails=False):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    check(fails or done.returncode == 0, f"{command}: {done.stderr}")


def rows(page):
    return page.js("document.querySelectorAll('main table')[0].tBodies[0].rows.length")


def first(page):
    return page.js("document.querySelector('main tbody th').innerText")


def shows(page, text):
    return f"document.querySelector('main').innerText.includes({text!r})"


def check_views(page, url):
    page.size(1280, 800)
    page.go(url)
    page.wait("document.getElementById('pill').textContent === 'serving'")
    page.wait("document.querySelectorAll('.chart polygon').length > 0", "the chart has an area")
    page.wait("document.querySelectorAll('.chart polyline, .chart circle').length > 0",
              "latency has lines, or dots")
    page.wait(shows(page, "graph"))
    for number, view in enumerate(VIEWS):
        page.press(str(number + 2))
        page.wait(f"location.hash.startsWith('#/{view}')", f"key {number + 2}")
        page.wait("document.querySelector('main h1') !== null &&"
                  f"document.querySelectorAll('{CONTENT}').length > 0", f"{view} has content")
    page.wait(shows(page, "host_memory"), "the configuration is there")
    setting = ("(key) => [...document.querySelectorAll('main tbody tr')].find((row) =>"
               "row.firstChild.innerText === key).lastChild.innerText")
    for key, text in (("host_memory", "512 MiB"), ("buffer_time_to_live", "1 d"), ("stall_after", "10 min"),
                      ("ring_spin", "µs"), ("max_queued", "")):
        said = page.js(f"({setting})({key!r})")
        check(said == text or text == "µs" and said.endswith(text), f"{key} is {said!r}")
    page.press("1")
    page.wait("location.hash === '#/'")


def check_table(page, url):
    page.go(url + "/#/matrices")
    page.wait(f"{shows(page, f'of {MATRICES + 1}')}")
    check(rows(page) == 25, "a page has 25 rows")
    page.press("]")
    page.wait(f"document.querySelector('main tbody').rows.length === {MATRICES + 1 - 25}",
              "the next page")
    check(page.js("location.hash.includes('offset=25')"), "the address says which page")
    page.press("[")
    page.wait("document.querySelector('main tbody').rows.length === 25", "the page before")
    page.js("[...document.querySelectorAll('th button')].find((b) => b.innerText.startsWith("
            "'Nonzeros')).click()")
    page.wait("document.querySelector('main tbody th').innerText === 'graph'", "sorted by nonzeros")
    check(page.js("document.querySelector('th[aria-sort=descending] button').innerText") ==
          "Nonzeros", "the header says how it is sorted")
    page.press("/")
    check(page.js("document.activeElement.type") == "search", "/ goes to the search")
    for key in "m-07":
        page.press(key)
    page.wait("document.querySelector('main tbody').rows.length === 1", "the search")
    check(first(page) == "m-07", "what was searched for is found")
    page.press("Escape")
    page.wait("document.querySelector('main tbody').rows.length === 25 &&"
              "!location.hash.includes('search=')", "Escape takes the search back")
    check(page.js("document.querySelector('input[type=search]').value") == "",
          "and empties its field")
    check(page.js("document.activeElement.type") != "search", "and leaves it")
    page.go(url + "/#/matrices?search=nothing-like-it")
    page.wait(shows(page, "nothing is called"))


def check_matrix(page, url):
    page.go(url + "/#/matrix?tenant=default&name=graph")
    page.wait("[...document.querySelectorAll('canvas')].some((canvas) => canvas.width === 256)",
              "the picture is drawn")
    dots = page.js("""(() => {
      const canvas = document.querySelector('canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let dots = 0;
      for (let i = 3; i < data.length; i += 4) dots += data[i] > 0;
      return dots;
    })()""")
    check(1000 < dots < 256 * 256, f"the picture has {dots} dots")
    page.wait(shows(page, "spmm K="), "what was measured is there")
    page.wait(shows(page, "Where the time goes"), "where the time of requests went")
    page.wait(shows(page, "%, is "), "what most of it is")
    page.wait(f"{shows(page, 'No reordering of its rows won')} ||"
              "document.querySelectorAll('canvas').length === 2",
              "an order that a plan has, or that none won")
    page.wait("document.querySelectorAll('.chosen').length > 0", "the chosen candidate is marked")
    page.wait(f"{shows(page, 'spgemm f32 cpu')} && {shows(page, 'S * S')}",
              "SpGEMM's signature, and the product")
    page.wait(shows(page, "in use"), "the plan in use is marked")
    check(page.js("document.querySelector('main').innerText.match(/Serves since/) !== null"),
          "since when a plan serves")
    check(page.js("document.querySelector('canvas').getAttribute('aria-label')"), "it has a label")
    page.press("u")
    page.wait("location.hash.startsWith('#/matrices')", "u leads back")


def check_escapes(page, url):
    page.go(url + "/#/requests")
    page.wait(shows(page, ATTACK), "the name is there as text")
    check(page.js("document.querySelectorAll('main img').length") == 0, "no element came of it")
    check(page.js("window.attacked") is None, "a caller's name ran as a script")
    names = page.js("[...document.querySelectorAll('main tbody th')].map((th) => th.innerText)")
    check("spmm" in names and "get_stats" not in names, f"operations are {names}")
    # What was wrong is there in full, and in a line that is no wider than its card.
    page.wait("document.querySelector('main tr.below:not(.on-phone) td') !== null",
              "the sentence of the error")
    check(page.js("[...document.querySelectorAll('main tr.below td')].every((cell) =>"
                  "cell.scrollWidth <= cell.clientWidth)"), "a sentence is cut")
    for width, phone in ((1280, False), (1024, False), (390, True)):
        page.size(width, 844, phone=phone)
        check(page.js("[...document.querySelectorAll('main .scroll')].every((table) =>"
                      "table.scrollWidth <= table.clientWidth)"), f"requests are wider than {width}")
        seen = page.js("[...document.querySelectorAll('main .stack')].filter((bar) =>"
                       "bar.offsetParent !== null && bar.clientWidth > 0).length")
        check(seen > 0, f"there are no phases at {width}")
    page.size(1280, 800)
    page.go(url + "/#/requests")
    page.wait("document.querySelector('main td a') !== null", "a request's matrix is a link")
    check(not page.js(f"[...document.querySelectorAll('main td a')].some((a) => a.innerText === {ATTACK!r})"),
          "what is not there is a link")
    check(page.js("[...document.querySelectorAll('main td a')].every((a) => a.hash.startsWith("
                  "'#/matrix?tenant=default&name='))"), "it leads to the matrix")
    # What the address says is no better than what callers say.
    page.go(url + "/#/matrix?tenant=default&name=" + ATTACK.replace(" ", "%20"))
    page.wait(f"document.querySelector('h1').innerText === {ATTACK!r}")
    check(page.js("document.querySelectorAll('main img').length") == 0, "an element of the address")
    page.wait(shows(page, "There is no matrix of this name"))
    check(page.js("[...document.querySelectorAll('main .card')].every((card) =>"
                  "card.offsetParent === null)"), "cards of a matrix that there is not")


def check_access(page, url):
    """Tables, names of what can be operated, focus that is seen."""
    page.go(url + "/#/matrices")
    page.wait("document.querySelectorAll('main tbody tr').length > 0")
    for what, selector in (
            ("a header without a scope", "th:not([scope])"),
            ("a table without a caption", "table:not(:has(caption))"),
            ("a field without a label", "input:not([id])"),
            ("a picture without a text", "img:not([alt])"),
            ("a chart without a text", "svg[role=img]:not([aria-label])")):
        check(page.js(f"document.querySelectorAll({selector!r}).length") == 0, what)
    check(page.js("[...document.querySelectorAll('button')].every((b) => b.innerText.trim() || "
                  "b.getAttribute('aria-label') || b.closest('dialog, [hidden]'))"),
          "a button without a name")
    page.js("document.getElementById('skip').focus()")
    reached = {page.js("document.activeElement.textContent")}
    for _ in range(14):
        page.press("Tab")
        reached.add(page.js("document.activeElement.textContent.trim()"))
    check("Overview" in reached and "Skip to the content" in reached, f"Tab reaches {reached}")
    # A table that is drawn anew leaves the focus where it was.
    page.js("document.querySelector('main tbody a').focus()")
    before = page.js("document.documentElement.dataset.updated")
    page.wait(f"document.documentElement.dataset.updated > Number({before}) + 1", "it is drawn anew")
    check(page.js("document.activeElement.matches('main tbody a')"), "the focus is lost")
    page.press("?")
    check(page.js("document.getElementById('keys').open"), "? opens the help")
    page.press("Escape")
    page.wait("!document.getElementById('keys').open", "Escape closes it")
    page.press("p")
    check(page.js("document.getElementById('pause').getAttribute('aria-pressed')") == "true",
          "p pauses")
    page.press("p")


def check_phone(page, url):
    page.size(390, 844, phone=True)
    for view in ("", *VIEWS, "matrix?tenant=default&name=graph"):
        page.go(f"{url}/#/{view}")
        page.wait("document.querySelector('main h1') !== null")
        page.wait(f"document.querySelectorAll('{CONTENT}').length > 0")
        check(page.js("document.documentElement.scrollWidth") <= 390, f"{view} is too wide")
        if view in VIEWS:
            check(page.js("[...document.querySelectorAll('nav a')].map((tab) =>"
                          "tab.getBoundingClientRect()).every((tab) => tab.left >= 0 && tab.right <= 390)"),
                  f"tabs are cut off at {view}")
    page.size(1280, 800)


def check_widths(page, url):
    """No table, nor the page, is wider than its window."""
    for view in ("", *VIEWS, "matrix?tenant=default&name=graph"):
        page.size(1280, 800)
        page.go(f"{url}/#/{view}")
        page.wait(f"document.querySelectorAll('{CONTENT}').length > 0")
        for width in (1280, 1200, 1024, 900, 700, 560):
            page.size(width, 800)
            check(page.js("document.documentElement.scrollWidth") <= width, f"{view} is wider than {width}")
            cut = page.js("[...document.querySelectorAll('main .scroll')].filter((table) =>"
                          "table.scrollWidth > table.clientWidth).map((table) => table.ariaLabel)")
            check(not cut, f"{view}: tables that are wider than {width}: {cut}")
        if view == "requests":
            page.size(900, 800)
            words = page.js("[...document.querySelectorAll('.asked .keep')].map((word) =>"
                            "[word.innerText, word.getClientRects().length])")
            check(any("=" in word for word, _ in words), f"no parameters in {words}")
            check(all(lines <= 1 for _, lines in words), f"numbers that are broken: {words}")
    page.size(1280, 800)


def check_colours(page, url):
    page.go(url + "/#/")
    colours = []
    for dark in (False, True):
        page.size(1280, 800, dark=dark)
        colours.append(page.js("getComputedStyle(document.body).backgroundColor"))
    check(colours[0] != colours[1], f"light and dark are both {colours[0]}")
    page.size(1280, 800)


def check_idle(page, url):
    """What was measured before nobody asked any more is not shown as what is now."""
    page.go(url + "/#/")
    page.wait("[...document.querySelectorAll('.tile')].some((tile) => tile.innerText.match("
              "/Latency, p50[^]*–[^]*(none for|no products)/))", "there is no latency now")


def check_words(page, url):
    """All that a bar has is in its legend; times are UTC, whatever the browser's zone."""
    page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
    page.go(url + "/#/requests")
    page.wait("document.querySelectorAll('main .stack').length > 0")
    colours = page.js("['.legend .rest', '.stack'].map((one) =>"
                      "getComputedStyle(document.querySelector('main ' + one)).backgroundColor)")
    check(colours[0] == colours[1], f"what no phase has is {colours[1]}, and {colours[0]} in the legend")
    check(page.js("document.querySelector('.legend .rest').parentElement.innerText") == "other",
          "what no phase has is not called other")
    ended = page.js("fetch('/api/requests').then((reply) => reply.json()).then((answer) =>"
                    "answer.slowest.map((row) => new Date(row.ended * 1000).toISOString().slice(11, 19)))")
    page.wait(f"{ended}.some((time) => document.querySelector('main').innerText.includes(time))",
              "when a request ended, in UTC")
    check(page.js(shows(page, "Ended (UTC)")), "the zone of the times")
    page.go(url + "/#/matrix?name=graph")
    created = page.js("fetch('/api/matrix?name=graph').then((reply) => reply.json()).then((answer) =>"
                      "new Date(answer.created * 1000).toISOString().slice(0, 19).replace('T', ' '))")
    page.wait(shows(page, f"{created} UTC"), "when a matrix was uploaded")
    page.call("Emulation.setTimezoneOverride", timezoneId="")


def check_gone(page, url):
    """A server that does not answer, and does again."""
    page.go(url + "/#/")
    page.wait("document.querySelectorAll('.tile').length > 0")
    before = page.js("document.querySelectorAll('.tile').length")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **network)
    page.wait("document.getElementById('banner').innerText.includes('does not answer') &&"
              "document.getElementById('pill').textContent === 'unreachable'", "it is said")
    check(page.js("document.getElementById('banner').innerText").endswith("UTC."), "of when it is")
    check(page.js("document.querySelectorAll('.tile').length") == before, "what was shown is away")
    page.call("Network.emulateNetworkConditions", offline=False, **network)
    page.wait("document.getElementById('banner').hidden &&"
              "document.getElementById('pill').textContent === 'serving'", "it is there again")


def check_unknown(page, url):
    page.go(url + "/#/nowhere/at/all")
    page.wait(shows(page, "There is no such page"), "an address that is none says so")
    page.press("1")
    page.wait("location.hash === '#/' && document.querySelectorAll('.tile').length > 0")
    page.go(url + "/#/matrices/graph")
    page.wait("location.hash === '#/matrix?name=graph' &&"
              "document.querySelectorAll('main .facts dd').length > 0", "as one would guess it")


def check_runbooks(page, url):
    """Every alert's runbook_url leads to its section, with severity, condition and what to do."""
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    addresses = re.findall(r'runbook_url: "http://\{\{ \$labels\.instance \}\}(.*?)"', alerts)
    check(len(addresses) == alerts.count("runbook_url:") > 20, f"{len(addresses)} addresses of runbooks")
    page.size(1280, 800)
    page.go(url + addresses[-1])
    page.wait("document.querySelector('section.here') !== null", "the section that the address names")
    for address in addresses:
        section = f"document.getElementById({address.split('#')[1]!r})"
        page.js(f"location.hash = {address.split('#')[1]!r}")
        page.wait(f"{section}.classList.contains('here')", f"the section {address} is not shown")
        title = page.js(f"{section}.querySelector('h2').innerText")
        rule = re.search(rf"alert: {title}\n(.*?)\n\n", alerts + "\n\n", re.S)
        check(rule, f"{address} leads to {title}")
        severity = re.search(r"severity: (\w+)", rule[1])[1]
        check(page.js(f"{section}.querySelector('.pill').innerText") == severity,
              f"{title} is not {severity}")
        condition = page.js(f"{section}.querySelector('pre').innerText").split()
        check(" ".join(condition) in " ".join(rule[1].split()), f"the condition of {title} is {condition}")
        check(page.js(f"{section}.querySelectorAll('p')[1].innerText.length") > 30, f"{title} means nothing")
        check(page.js(f"{section}.querySelectorAll('ol li').length") > 0, f"{title} has no steps")
    text = page.js("document.querySelector('main').innerText")
    check("```" not in text and "](" not in text, "Markdown is left in the runbooks")
    check(page.js("document.querySelector('pre').innerText").startswith("sparsectl stats"), "no commands")
    check(page.js("[...document.querySelectorAll('.index a')].map((a) => '/runbooks' + a.hash).sort()")
          == sorted(addresses), "the list of alerts is not all of them")
    for width, phone in ((1280, False), (390, True)):
        page.size(width, 800, phone=phone)
        check(page.js("[...document.querySelectorAll('.index a')].every((a) => {"
                      "const box = a.getBoundingClientRect();"
                      f"return box.width > 0 && box.left >= 0 && box.right <= {width}; }})"),
              f"alerts are cut at {width}")
    page.size(1280, 800)
    # All links lead to where this server answers.
    check(page.js("[...document.querySelectorAll('main a')].every((a) => a.pathname !== '/runbooks' ||"
                  "!a.hash || document.querySelector(`main > ${a.hash}`) !== null)"), "a link to no alert")
    views = page.js("[...document.querySelectorAll('main a')].filter((a) => a.pathname === '/' && a.hash)"
                    ".map((a) => a.hash)")
    check("#/requests" in views and all(view[2:] in VIEWS for view in views), f"links to {views}")
    refused = page.js("Promise.all([...document.querySelectorAll('a')].filter((a) => !a.hash)"
                      ".map(async (a) => [a.pathname, (await fetch(a.href)).status]))")
    check(all(status == 200 for _, status in refused), f"links that are not answered: {refused}")


def check_token(page, url):
    page.go(url + "/#/matrices")
    page.wait("document.getElementById('sign-in').open", "a token is asked for")
    check(page.js("document.activeElement.id") == "token", "the field has the focus")
    page.call("Input.insertText", text="wrong")
    page.press("Enter")
    page.wait("!document.querySelector('#sign-in-why').innerText.includes('tab.')",
              "it says why not")
    page.wait("document.getElementById('sign-in').open")
    page.call("Input.insertText", text="alice")
    page.press("Enter")
    page.wait(shows(page, "of-alice"), "alice sees her matrix")
    check(not page.js(shows(page, "of-bob")), "alice sees bob's matrix")
    check(not page.js("document.querySelector('nav').innerText.includes('Configuration')"),
          "a tenant is offered the configuration")
    page.press("8")
    page.wait(f"{shows(page, 'for operators to see')} && {shows(page, 'tenant alice')}",
              "who may see the configuration")
    check(page.js(shows(page, "sparsectl token new")), "what to do to see it")
    check(not any("403" in complaint for complaint in page.complaints), "asked for what is refused")
    page.go(url + "/#/matrix?tenant=bob&name=of-bob")
    page.wait(f"{shows(page, 'Nonzeros')} && document.querySelectorAll('main .facts dd').length > 0",
              "a matrix that is shared opens")
    for other in ("of-bob-alone", "none"):
        page.go(f"{url}/#/matrix?tenant=bob&name={other}")
        page.wait(shows(page, "neither yours nor shared with you"), f"{other} is not there for alice")
    page.go(url + "/#/tenants")
    page.wait(shows(page, "alice"))
    check(not page.js(shows(page, "Entitled to")), "a tenant is offered what others have")
    page.go(url + "/#/matrices")
    page.wait(shows(page, "of-alice"))
    check("alice" not in page.js("location.href"), "the token is in the address")
    page.js("document.getElementById('leave').click()")
    page.wait("document.getElementById('sign-in').open", "signed out")
    page.call("Input.insertText", text="boss")
    page.press("Enter")
    page.wait(f"{shows(page, 'of-alice')} && {shows(page, 'of-bob')}", "an operator sees both")


def write_graph(path, size=2000, neighbours=5):
    """Nodes in no order, so that another order of the rows shows something."""
    numbers = random.Random(1)
    places = list(range(size))
    numbers.shuffle(places)
    edges = {(places[i], places[(i + numbers.randrange(1, 40)) % size])
             for i in range(size) for _ in range(neighbours)}
    lines = "".join(f"{i + 1} {j + 1}\n" for i, j in sorted(edges))
    path.write_text(f"%%MatrixMarket matrix coordinate pattern general\n{size} {size} {len(edges)}\n"
                    + lines)


def write_ones(path, rows, cols):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack("<f", 1) * (rows * cols))


def write_small(path):
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 1.5\n3 1 -2\n")
    return path


def make_traffic(sparsectl, listen, folder):
    ctl = (sparsectl, f"--server={listen}")
    write_graph(folder / "graph.mtx")
    small = [write_small(folder / f"m-{i:02}.mtx") for i in range(MATRICES)]
    run(*ctl, "upload", folder / "graph.mtx", *small)
    for k in (8, 32):
        write_ones(folder / "b.npy", 2000, k)
        operands = (f"--operand={folder}/b.npy", f"--out={folder}/c.npy")
        run(*ctl, "spmm", "graph", *operands)
    run(*ctl, "spgemm", "graph", "graph", "--discard")
    run(*ctl, "spmm", ATTACK, *operands, fails=True)
    run(*ctl, "stats")


def main():
    sparsed, sparsectl = (os.path.abspath(path) for path in sys.argv[1:3])
    program = browsers.find()
    if program is None:
        print("skipped: Chromium is not installed (deploy/install-packages test)")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="page_test_") as name:
        folder = pathlib.Path(name)
        with server(sparsed, folder) as (url, listen), browsers.Browser(program, SECONDS) as page:
            make_traffic(sparsectl, listen, folder)
            for part in (check_views, check_table, check_matrix, check_access, check_phone,
                         check_widths, check_colours, check_words, check_idle, check_unknown, check_runbooks):
                part(page, url)
            check(not page.complaints, f"the page complains: {page.complaints}")
            check_escapes(page, url)
            check(all("404" in complaint for complaint in page.complaints),
                  f"the page complains: {page.complaints}")
            check_gone(page, url)
        lines = []
        for who, role in (("alice", "user"), ("bob", "user"), ("boss", "operator")):
            digest = hashlib.sha256(who.encode()).hexdigest()
            lines.append(f"  - {{name: {who}, sha256: {digest}, tenant: {who}, role: {role}}}\n")
        (folder / "access.yaml").write_text("tokens:\n" + "".join(lines))
        (folder / "access.yaml").chmod(0o600)
        with server(sparsed, folder, f"--access-file={folder}/access.yaml") as (url, listen), \
                browsers.Browser(program, SECONDS) as page:
            for who in ("alice", "bob"):
                (folder / who).write_text(who)
                (folder / who).chmod(0o600)
                run(sparsectl, f"--server={listen}", f"--token-file={folder}/{who}", "upload",
                    write_small(folder / f"of-{who}.mtx"))
            as_bob = (sparsectl, f"--server={listen}", f"--token-file={folder}/bob")
            run(*as_bob, "upload", write_small(folder / "of-bob-alone.mtx"))
            run(*as_bob, "share", "of-bob", "--with=alice")
            page.size(1280, 800)
            check_runbooks(page, url)  # which nobody needs a token to read
            check_token(page, url)


if __name__ == "__main__":
    main()
