// Drives the console's page in a browser: one case of console_page_SUITE, which reads the lines
// that this prints. Whatever the case, no error may be on the browser's console, and no request may
// go elsewhere.
//
//   node page.mjs PLAYWRIGHT CHROMIUM URL CASE

import {createRequire} from 'node:module';
import assert from 'node:assert/strict';

const [playwright, executablePath, url, name] = process.argv.slice(2);
const {chromium} = createRequire(import.meta.url)(playwright);
const origin = new URL(url).origin;
// On a machine that pauses or is busy. A page that shows nothing at all fails after that time.
const PATIENCE = 60_000;

const say = (...words) => console.log(...words);

// What the page shows of a fact of its first line.
const total = (page, term) =>
  page.locator('#totals div', {hasText: term}).locator('dd').innerText();

const number = async (page, term) => Number((await total(page, term)).replaceAll(',', ''));

const ready = page => page.waitForSelector('#verdict[data-well]');

// Waits in the page; `look` is a function of the page's own.
const until = (page, look, argument) => page.waitForFunction(look, argument, {timeout: PATIENCE});

async function tabTo(page, wanted, most = 150) {
  for (let step = 0; step < most; step++) {
    await page.keyboard.press('Tab');
    const focused = await page.evaluate(() => {
      const element = document.activeElement;
      return {id: element.id, text: element.textContent.trim(), tag: element.tagName};
    });
    if (wanted(focused)) return focused;
  }
  assert.fail(`no such element by the Tab key: ${wanted}`);
}

const cases = {
  async figures_move(page) {
    await ready(page);
    const plot = page.locator('#charts .chart').first();
    const first = await number(page, 'requests');
    const before = await plot.locator('.plot').getAttribute('aria-label');
    say('looking');
    await until(page, ([least]) => {
      const facts = [...document.querySelectorAll('#totals div')];
      const own = facts.find(fact => fact.querySelector('dt').textContent === 'requests');
      return Number(own.querySelector('dd').textContent.replaceAll(',', '')) > least + 100;
    }, [first]);
    await until(page, ([said]) =>
      document.querySelector('#charts .plot').getAttribute('aria-label') !== said, [before]);
    assert.equal(await page.locator('#charts canvas').count(), 4);
    // Something other than the paper is drawn.
    const drawn = await page.evaluate(() => {
      const canvas = document.querySelector('#charts canvas');
      const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.some(value => value !== 0);
    });
    assert.ok(drawn, 'the plot is empty');
    await page.locator('#tools-table th', {hasText: 'echo'}).waitFor();
  },

  async silence_is_said(page) {
    await ready(page);
    const said = words => until(page, ([wanted]) =>
      document.getElementById('live').textContent === wanted, [words]);
    const isNow = async () => {
      await said('live');
      await page.locator('#verdict-words', {hasText: /^The server is (not )?well$/}).waitFor();
      assert.match(await page.title(), /^(well|\(!\) not well) · /);
    };
    const isOld = async state => {
      await said(state);
      const was = /was (not )?well at \d\d:\d\d:\d\d/.source;
      const words = await page.locator('#verdict-words').innerText();
      assert.match(words, new RegExp(`^The server ${was}$`));
      assert.match(await page.title(), new RegExp(`^${was} · `));
      assert.equal(await page.locator('#verdict[data-well]').count(), 0);
    };
    await isNow();
    say('live');
    await isOld('no figures');
    say('silent');
    await isNow();
    await page.getByRole('button', {name: 'Pause'}).click();
    await isOld('paused');
    await page.getByRole('button', {name: 'Pause'}).click();
    await isNow();
    await page.locator('#verdict[data-well]').waitFor();
  },

  async a_slow_call_is_cancelled(page) {
    await ready(page);
    say('looking');
    await until(page, () => document.querySelectorAll('#calls-list > li').length === 5);
    // A call whose button was pressed is there until the next figures come.
    const call = page.locator('#calls-list > li:has(button:enabled)', {hasText: 'wait'}).first();
    for (let left = 5; left > 0; left--) {
      await call.locator('summary').click();
      await until(page, () => document.querySelector('#calls-list > li:has(button:enabled) .stack')
        .textContent.includes('console_page_SUITE'));
      // The time that the browser takes to find and to press the button is its own.
      await page.evaluate(() => {
        document.getElementById('calls-said').textContent = '';
        document.querySelector('#calls-list button:enabled').addEventListener(
          'click', () => { globalThis.pressed = Date.now(); }, {capture: true});
      });
      await call.getByRole('button', {name: 'End the call of wait'}).click();
      say('pressed', await page.evaluate(() => globalThis.pressed));
      await page.getByText('Ended wait.').waitFor();
      say('ended');
    }
    await page.getByText('No call runs now.').waitFor();
    assert.equal(await page.locator('#calls-list > li').count(), 0);
  },

  // What a proxy answers is no JSON, and may be nothing. Each failure can be tried again.
  async a_failure_is_said(page) {
    await ready(page);
    say('looking');
    const button = page.getByRole('button', {name: 'End the call of wait'});
    const said = words => page.locator('#calls-said', {hasText: words}).waitFor();
    await button.waitFor({timeout: PATIENCE});
    for (const [answer, words] of [
      [route => route.fulfill({status: 502, contentType: 'text/html', body: '<h1>Bad</h1>'}),
       'The answer had the status 502.'],
      [route => route.abort(), 'The server did not answer.'],
      [route => route.fulfill({status: 200, contentType: 'text/html', body: '<h1>Log in</h1>'}),
       'The answer had the status 200.']]) {
      await page.route('**/cancel', answer, {times: 1});
      await button.click();
      await said(words);
      assert.ok(await button.isEnabled());
    }
    await button.click();
    await said('Ended wait.');
    // A payload that did not come is another thing than one that is gone.
    await page.route('**/payload?*', route => route.abort(), {times: 1});
    await page.locator('#requests-table button', {hasText: 'wait'}).first()
      .click({timeout: PATIENCE});
    await page.locator('#payload-title', {hasText: 'The server did not answer.'}).waitFor();
  },

  // While nothing runs, and so all values are small.
  async labels_of_axes_differ(page) {
    await page.addInitScript(() => {
      // The texts of each plot's last drawing, with their places.
      globalThis.drawn = new Map();
      const proto = CanvasRenderingContext2D.prototype;
      const {clearRect, fillText} = proto;
      proto.clearRect = function (...place) {
        globalThis.drawn.set(this.canvas, []);
        return clearRect.apply(this, place);
      };
      proto.fillText = function (text, x, ...place) {
        globalThis.drawn.get(this.canvas)?.push([text, Math.round(x)]);
        return fillText.call(this, text, x, ...place);
      };
    });
    await page.reload();
    await ready(page);
    await until(page, () =>
      [...globalThis.drawn.values()].filter(all => all.length > 4).length === 6);
    const axes = await page.evaluate(() => [...globalThis.drawn.values()].map(texts => {
      const places = Map.groupBy(texts, ([, x]) => x);
      return [...places.values()].sort((a, b) => b.length - a.length)[0].map(([text]) => text);
    }));
    for (const labels of axes) {
      assert.ok(labels.length > 1, `an axis has no labels: ${labels}`);
      assert.equal(new Set(labels).size, labels.length, `labels are repeated: ${labels}`);
    }
  },

  async a_payload_is_shown(page) {
    await ready(page);
    await page.getByText('a name shows its payload').waitFor();
    say('looking');
    const name = page.locator('#requests-table button', {hasText: 'echo'}).first();
    await name.waitFor({timeout: PATIENCE});
    await name.focus();
    await page.keyboard.press('Enter');
    await page.locator('#payload').waitFor();
    const sent = await page.locator('#payload-arguments').innerText();
    assert.deepEqual(JSON.parse(sent), {city: 'Oslo', password: '[redacted]', order: 2 ** 53});
    // A number of the page cannot be 2^53 + 1, so the page shows the server's text.
    assert.match(sent, /"order": 9007199254740993\b/);
    const got = JSON.parse(await page.locator('#payload-result').innerText());
    assert.equal(got.content[0].text, 'done');
    assert.ok(!(await page.content()).includes('hunter2'));
    assert.equal(await page.evaluate(() => document.activeElement.id), 'payload-title');
    await page.keyboard.press('Escape');
    await page.locator('#payload').waitFor({state: 'hidden'});
    await until(page, () => document.activeElement.textContent === 'echo');
  },

  async dependencies_are_shown(page) {
    await ready(page);
    const breaker = page.locator('#breakers li', {hasText: 'printer'});
    await breaker.getByText('closed').waitFor();
    await page.locator('#workers li', {hasText: 'db'}).getByText('0 of 2 busy').waitFor();
    say('looking');
    await breaker.getByText('open', {exact: true}).waitFor({timeout: PATIENCE});
    await page.locator('#causes a', {hasText: 'A circuit breaker is open'}).click();
    assert.equal(new URL(page.url()).hash, '#dependencies');
    // The client of this case calls a server of its own node, and its call has failed.
    await page.locator('#upstreams-table tr', {hasText: 'local'}).locator('td.bad').first()
      .waitFor();
  },

  async an_elicitation_is_answered(page) {
    await ready(page);
    await page.locator('#try').scrollIntoViewIfNeeded();
    await page.locator('#try-tool option[value="ask"]').waitFor({state: 'attached'});
    await page.selectOption('#try-tool', 'ask');
    await page.getByLabel('dish').fill('soup');
    await page.getByRole('button', {name: 'Call', exact: true}).click();
    const question = page.getByRole('form', {name: 'A question of the tool'});
    await question.getByText('How hot shall the soup be?').waitFor();
    await page.locator('#try-log progress').waitFor();
    await question.getByLabel('degrees').fill('60');
    await question.getByLabel('salt').check();
    await question.getByRole('button', {name: 'Answer'}).click();
    await page.locator('#try-log .result', {hasText: 'soup, 60 degrees, salt: true'}).waitFor();
    await page.locator('#try-log', {hasText: 'ended'}).waitFor();
    // And one that is declined.
    await page.getByRole('button', {name: 'Call', exact: true}).click();
    await question.getByRole('button', {name: 'Decline'}).click();
    await page.locator('#try-log .result', {hasText: 'no soup'}).waitFor();
  },

  async a_token_is_demanded(page) {
    assert.equal((await page.reload()).status(), 401);
    await page.getByLabel('Token').fill('a-token-that-is-wrong');
    await page.getByRole('button', {name: 'Enter'}).click();
    await page.getByLabel('Token').fill(process.env.CONSOLE_TOKEN);
    await page.getByRole('button', {name: 'Enter'}).click();
    await ready(page);
    assert.equal(page.url(), url);
    const cookies = await page.context().cookies();
    assert.equal(cookies.length, 1);
    assert.ok(cookies[0].httpOnly && cookies[0].sameSite === 'Strict');
    assert.ok(!cookies[0].value.includes(process.env.CONSOLE_TOKEN));
    // With a token in its URL the page comes at once, and keeps no token there.
    await page.context().clearCookies();
    await page.goto(`${url}?token=${process.env.CONSOLE_TOKEN}`);
    await ready(page);
    assert.equal(page.url(), url);
  },

  async the_keyboard_is_enough(page) {
    await ready(page);
    await page.locator('#tools-table th', {hasText: 'echo'}).waitFor({timeout: PATIENCE});
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'To the figures');
    await page.keyboard.press('Enter');
    await until(page, () => document.activeElement.id === 'main');
    // A table is sorted.
    await tabTo(page, ({tag, text}) => tag === 'BUTTON' && text === 'Name');
    await page.keyboard.press('Enter');
    assert.equal(await page.locator('#tools-table th[aria-sort="ascending"]').innerText(), 'Name');
    // A call is ended, though its list is drawn anew each second.
    say('looking');
    await page.locator('#calls-list button').waitFor({timeout: PATIENCE});
    await tabTo(page, ({tag, text}) => tag === 'BUTTON' && text.startsWith('End'));
    for (let drawn = 0; drawn < 2; drawn++) {
      const age = await page.locator('#calls-list .age').innerText();
      await until(page, ([before]) =>
        document.querySelector('#calls-list .age').textContent !== before, [age]);
    }
    assert.ok(await page.evaluate(() => document.activeElement.textContent.startsWith('End')),
      'the focus was lost');
    await page.keyboard.press('Enter');
    await page.getByText('Ended wait.').waitFor();
    // A tool is chosen, called and answered.
    await tabTo(page, ({id}) => id === 'try-tool');
    await page.locator('#try-tool option[value="ask"]').waitFor({state: 'attached'});
    await page.keyboard.type('ask');
    await tabTo(page, ({id}) => id === 'argument-dish');
    await page.keyboard.type('stew');
    await page.keyboard.press('Enter');
    await page.getByText('How hot shall the stew be?').waitFor();
    await until(page, () => document.activeElement.id.endsWith('-degrees'));
    await page.keyboard.type('70');
    await page.keyboard.press('Enter');
    await page.locator('#try-log .result', {hasText: 'stew, 70 degrees'}).waitFor();
  },

  // Everything that can be used has a name, and can be seen where it is used.
  // Of console_drills_SUITE: a cause comes, leads to what shows it, and goes.
  async a_cause_is_named(page) {
    await ready(page);
    say('looking');
    const {CONSOLE_CAUSE: words, CONSOLE_SECTION: section} = process.env;
    const cause = page.locator('#causes a', {hasText: words});
    await cause.waitFor({timeout: 2 * PATIENCE});
    await page.getByText('The server is not well').waitFor();
    await cause.click();
    await until(page, ([id]) => document.getElementById(id).matches(':target')
      && document.getElementById(id).getBoundingClientRect().top < innerHeight, [section]);
    say('named');
    await page.locator('#verdict[data-well="true"]').waitFor({timeout: 2 * PATIENCE});
    await page.getByText('The server is well').waitFor();
  },

  async everything_has_a_name(page) {
    await ready(page);
    const nameless = await page.evaluate(() => {
      const named = element => (element.getAttribute('aria-label') ?? '').trim()
        || [...(element.labels ?? [])].some(label => label.textContent.trim())
        || (element.getAttribute('aria-labelledby') ?? '').split(' ')
          .some(id => document.getElementById(id)?.textContent.trim())
        || (['BUTTON', 'A', 'SUMMARY'].includes(element.tagName) && element.textContent.trim());
      return [...document.querySelectorAll('a, button, input, select, textarea, summary, ' +
        '[tabindex="0"], [role=img], [role=meter], main > section')]
        .filter(element => !named(element)).map(element => element.outerHTML);
    });
    assert.deepEqual(nameless, []);
    const headings = await page.locator('h1, h2, h3').evaluateAll(all =>
      all.map(({tagName}) => Number(tagName[1])));
    headings.forEach((level, place) =>
      assert.ok(level <= (headings[place - 1] ?? 0) + 1, 'a heading is skipped'));
  },

  // From a telephone to a wall, light and dark: nothing is wider than the window, and texts stand
  // out from what is behind them.
  async every_width_and_theme(page) {
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({colorScheme});
      for (const [width, height] of [[320, 640], [1280, 800], [2560, 1440]]) {
        await page.setViewportSize({width, height});
        await page.reload();
        await ready(page);
        await page.locator('#tools-table th', {hasText: 'echo'}).waitFor({timeout: PATIENCE});
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
        const faint = await page.evaluate(() => {
          const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
          const light = color => {
            const [r, g, b] = color.map(part => part / 255)
              .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const paint = colors => {
            canvas.clearRect(0, 0, 1, 1);
            for (const color of colors) {
              canvas.fillStyle = color;
              canvas.fillRect(0, 0, 1, 1);
            }
            return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const papers = element => {
            const all = [];
            for (let each = element; each; each = each.parentElement) {
              all.unshift(getComputedStyle(each).backgroundColor);
            }
            return all;
          };
          const ratio = element => {
            const behind = papers(element);
            const one = light(paint([...behind, getComputedStyle(element).color]));
            const other = light(paint(behind));
            return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
          };
          const texts = 'h1, h2, h3, p, a, dt, dd, th, td, li, button, label';
          return [...document.querySelectorAll(texts)]
            .filter(element => element.textContent.trim() && element.checkVisibility()
              && !element.matches('.zero, .skip'))
            .filter(element => ratio(element) < 4.5)
            .map(element => `${element.className} ${element.textContent.trim().slice(0, 40)} ` +
              ratio(element).toFixed(2));
        });
        assert.deepEqual(faint, [], `${colorScheme} ${width}`);
      }
    }
  },
};

const browser = await chromium.launch({executablePath, args: ['--no-sandbox'], timeout: PATIENCE});
const wrong = [];
try {
  const page = await browser.newPage({viewport: {width: 1280, height: 800}});
  page.setDefaultTimeout(PATIENCE);
  page.on('console', message => {
    // A browser itself reports the status of the login's page, and requests that fail.
    const expected = {a_token_is_demanded: /status of 40[13]/,
                      a_failure_is_said: /status of 502|ERR_FAILED/}[name]?.test(message.text());
    if (['error', 'warning'].includes(message.type()) && !expected) {
      wrong.push(`${message.type()}: ${message.text()}`);
    }
  });
  page.on('pageerror', error => wrong.push(`error: ${error.stack}`));
  page.on('request', request => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith('data:')) {
      wrong.push(`a request to ${request.url()}`);
    }
  });
  await page.goto(url);
  await cases[name](page);
} catch (error) {
  wrong.push(error.stack);
} finally {
  await browser.close();
}
wrong.forEach(each => say('wrong', each.replaceAll('\n', ' | ')));
say(wrong.length === 0 ? 'passed' : 'failed');
