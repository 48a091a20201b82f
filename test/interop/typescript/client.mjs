// Talks to an MCP server as a user of the official TypeScript client would, in each of its version
// negotiation modes, and prints the checks.
//
//   node client.mjs URL                 over Streamable HTTP
//   node client.mjs sse+URL             over HTTP+SSE of 2024-11-05
//   node client.mjs 'COMMAND ...'       over stdio; the command is run by sh
//   --mode default|auto|2026-07-28      only this mode
//
// One line per check, `ok - NAME` or `not ok - NAME: why`; last line `N passed, N failed`; exit 1
// if one failed. The server must be the everything server, with lists of several pages.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import {
    Client, SSEClientTransport, StreamableHTTPClientTransport,
} from '@modelcontextprotocol/client';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const PNG =
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5Erk' +
    'Jggg==';
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';
const TOOLS = [
    'test_simple_text', 'test_image_content', 'test_audio_content', 'test_embedded_resource',
    'test_multiple_content_types', 'test_error_handling', 'test_tool_with_progress', 'echo',
    'slow_tool',
];
const PROMPTS = [
    'test_simple_prompt', 'test_prompt_with_arguments', 'test_prompt_with_embedded_resource',
    'test_prompt_with_image',
];
const MODES = {
    default: { options: {}, version: '2025-11-25' },
    auto: { options: { versionNegotiation: { mode: 'auto' } }, version: '2026-07-28' },
    '2026-07-28': {
        options: { versionNegotiation: { mode: { pin: '2026-07-28' } } },
        version: '2026-07-28',
    },
};
const VIEW_TYPE = 'text/html;profile=mcp-app';
const LIMIT_MS = 15_000;

let passed = 0;
let failed = 0;
let label = '';

async function check(name, body) {
    const limit = new AbortController();
    try {
        const late = sleep(LIMIT_MS, undefined, { signal: limit.signal }).then(() => {
            throw new Error(`no end after ${LIMIT_MS} ms`);
        });
        late.catch(() => {});
        await Promise.race([body(), late]);
        passed += 1;
        console.log(`ok - ${label}: ${name}`);
        return true;
    } catch (error) {
        failed += 1;
        const why = `${error.name} ${error.code ?? ''}: ${error.message}`;
        console.log(`not ok - ${label}: ${name}: ${why.replace(/\s+/g, ' ').slice(0, 600)}`);
        return false;
    } finally {
        limit.abort();
    }
}

async function refused(code, body) {
    let answer;
    try {
        answer = await body();
    } catch (error) {
        assert.equal(error.code, code, `error ${error.code} "${error.message}", expected ${code}`);
        return error;
    }
    assert.fail(`expected error ${code}, got the result ${JSON.stringify(answer)}`);
}

function transportTo(target) {
    if (/^https?:/.test(target)) return new StreamableHTTPClientTransport(new URL(target));
    if (target.startsWith('sse+')) return new SSEClientTransport(new URL(target.slice(4)));
    return new StdioClientTransport({
        command: 'sh',
        args: ['-c', `exec ${target}`],
        // The client passes on only a few variables; the command may need its cache folder.
        env: { ...process.env },
    });
}

async function tools(client) {
    const call = (name, args, options) => client.callTool({ name, arguments: args }, options);
    // Without a cursor the client gathers all pages.
    await check('lists the fixture tools, page by page', async () => {
        const { tools: listed } = await client.listTools();
        const names = listed.map((tool) => tool.name);
        assert.deepEqual(TOOLS.filter((name) => !names.includes(name)), [], 'tools missing');
        for (const tool of listed) assert.equal(tool.inputSchema.type, 'object', tool.name);
    });
    await check('calls a tool without arguments', async () => {
        const { content } = await client.callTool({ name: 'test_simple_text' });
        assert.deepEqual(content, [
            { type: 'text', text: 'This is a simple text response for testing.' },
        ]);
    });
    await check('gets an image', async () => {
        const { content } = await call('test_image_content', {});
        assert.deepEqual(content, [{ type: 'image', data: PNG, mimeType: 'image/png' }]);
    });
    await check('gets audio', async () => {
        const { content } = await call('test_audio_content', {});
        assert.deepEqual(content, [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }]);
    });
    await check('gets an embedded resource', async () => {
        const { content } = await call('test_embedded_resource', {});
        assert.equal(content.length, 1);
        assert.deepEqual(content[0].resource, {
            uri: 'test://embedded-resource',
            mimeType: 'text/plain',
            text: 'This is an embedded resource content.',
        });
    });
    await check('gets several kinds of content in order', async () => {
        const { content } = await call('test_multiple_content_types', {});
        assert.deepEqual(content.map((part) => part.type), ['text', 'image', 'resource']);
        assert.equal(content[1].data, PNG);
        assert.deepEqual(JSON.parse(content[2].resource.text), { test: 'data', value: 123 });
    });
    await check('gets a link to a resource', async () => {
        const { content } = await call('resource_link', {});
        assert.deepEqual(content, [{
            type: 'resource_link',
            uri: 'test://static-text',
            name: 'static-text',
            mimeType: 'text/plain',
        }]);
    });
    // The client validates it against the tool's schema.
    await check('gets structured content', async () => {
        const { structuredContent } = await call('system_info', {});
        assert.ok(structuredContent.otp_release, JSON.stringify(structuredContent));
    });
    await check('gets the error of a tool as a result', async () => {
        const result = await call('test_error_handling', {});
        assert.equal(result.isError, true);
        assert.equal(
            result.content[0].text, 'This tool intentionally returns an error for testing');
    });
    await check('sees progress before the result', async () => {
        // The server sends them 50 ms apart. If they all arrive at once, they were held back. A
        // busy machine may do so sometimes, but not each time.
        let ahead = 0;
        for (let tries = 0; tries < 10 && ahead < 30; tries++) {
            const seen = [];
            const onprogress = ({ progress, total }) =>
                seen.push({ progress, total, at: Date.now() });
            await call('test_tool_with_progress', {}, { onprogress });
            ahead = Date.now() - seen[0].at;
            assert.deepEqual(seen.map(({ progress }) => progress), [0, 50, 100]);
            assert.ok(seen.every(({ total }) => total === 100), 'total is 100');
        }
        assert.ok(ahead >= 30, `first one ${ahead} ms before the result`);
    });
    await check('is refused an unknown tool with -32602', () =>
        refused(-32602, () => call('no_such_tool', {})));
    await check('gets back every character it sent', async () => {
        const text = 'a"\\/\n\t\u0001\u007f é 漢字 \u{1f40e} </script> \u2028';
        assert.equal((await call('echo', { text })).content[0].text, text);
    });
    await check('gets back 300,000 characters', async () => {
        const text = 'x'.repeat(300_000);
        assert.equal((await call('echo', { text })).content[0].text, text);
    });
    await check('makes 20 calls at once, each with its own answer', async () => {
        const texts = Array.from({ length: 20 }, (_, n) => `text ${n}`);
        const results = await Promise.all(texts.map((text) => call('echo', { text })));
        assert.deepEqual(results.map((result) => result.content[0].text), texts);
    });
    await check('cancels a slow call and goes on', async () => {
        const abort = new AbortController();
        const start = Date.now();
        const slow = call('slow_tool', { ms: 60_000 }, { signal: abort.signal });
        setTimeout(() => abort.abort(), 300);
        await assert.rejects(slow);
        const took = Date.now() - start;
        assert.ok(took >= 250 && took < 10_000, `the call ended after ${took} ms`);
        assert.equal((await call('echo', { text: 'after' })).content[0].text, 'after');
        assert.ok(Date.now() - start < 12_000, 'the next call was slow');
    });
    await check('learns what is wrong with its arguments', async () => {
        const { isError, content } = await call('add', { a: 1, b: 'two' });
        assert.equal(isError, true);
        assert.match(content[0].text, /\/b must be a number/);
    });
}

async function resources(client) {
    const read = async (uri) => (await client.readResource({ uri })).contents;
    await check('lists the fixture resources', async () => {
        const uris = (await client.listResources()).resources.map((resource) => resource.uri);
        assert.ok(uris.includes('test://static-text'), String(uris));
        assert.ok(uris.includes('test://static-binary'), String(uris));
    });
    await check('reads text', async () =>
        assert.deepEqual(await read('test://static-text'), [{
            uri: 'test://static-text',
            mimeType: 'text/plain',
            text: 'This is the content of the static text resource.',
        }]));
    await check('reads bytes', async () =>
        assert.deepEqual(await read('test://static-binary'), [
            { uri: 'test://static-binary', mimeType: 'image/png', blob: PNG },
        ]));
    await check('reads what a template describes', async () => {
        const [content, ...rest] = await read('test://template/123/data');
        assert.deepEqual(rest, []);
        assert.equal(content.uri, 'test://template/123/data');
        assert.equal(content.mimeType, 'application/json');
        assert.equal(JSON.parse(content.text).id, '123');
    });
    // The client also makes this code of the -32002 of older revisions, if it comes with the URI.
    await check('is refused an unknown resource with its URI', async () => {
        const uri = 'test://no-such-resource';
        const { data } = await refused(-32602, () => read(uri));
        assert.equal(data?.uri, uri);
    });
    await check('lists the resource template', async () => {
        const { resourceTemplates } = await client.listResourceTemplates();
        const templates = resourceTemplates.map((template) => template.uriTemplate);
        assert.ok(templates.includes('test://template/{id}/data'), String(templates));
    });
}

async function prompts(client) {
    await check('lists the fixture prompts', async () => {
        const names = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
        assert.deepEqual(PROMPTS.filter((name) => !names.includes(name)), [], 'prompts missing');
    });
    await check('gets a prompt', async () => {
        const { messages } = await client.getPrompt({ name: 'test_simple_prompt' });
        assert.deepEqual(messages, [{
            role: 'user',
            content: { type: 'text', text: 'This is a simple prompt for testing.' },
        }]);
    });
    await check('gets a prompt with arguments', async () => {
        const { messages } = await client.getPrompt({
            name: 'test_prompt_with_arguments',
            arguments: { arg1: 'one', arg2: 'two' },
        });
        assert.equal(messages[0].content.text, "Prompt with arguments: arg1='one', arg2='two'");
    });
    await check("completes a prompt's argument", async () => {
        const { completion } = await client.complete({
            ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' },
            argument: { name: 'arg1', value: 'te' },
        });
        assert.deepEqual(completion.values, ['test', 'testing']);
    });
    await check('is refused an unknown prompt with -32602', () =>
        refused(-32602, () => client.getPrompt({ name: 'no_such_prompt' })));
    await check('is refused a prompt without its arguments with -32602', () =>
        refused(-32602, () => client.getPrompt({ name: 'test_prompt_with_arguments' })));
}

const TOLD = {
    'notifications/tools/list_changed': 'tools',
    'notifications/prompts/list_changed': 'prompts',
    'notifications/resources/updated': 'resource',
    'notifications/message': 'message',
};

// Collects notifications by kind, and answers the server's requests.
function attend(client) {
    const heard = { tools: [], prompts: [], resource: [], message: [] };
    for (const [method, kind] of Object.entries(TOLD)) {
        client.setNotificationHandler(method, ({ params }) => void heard[kind].push(params));
    }
    client.setRequestHandler('sampling/createMessage', ({ params }) => ({
        role: 'assistant',
        model: 'none',
        content: {
            type: 'text',
            text: `${params.messages[0].content.text}, in ${params.maxTokens} tokens`,
        },
    }));
    client.setRequestHandler('roots/list', () => ({
        roots: [{ uri: 'file:///work', name: 'work' }],
    }));
    client.setRequestHandler('elicitation/create', ({ params }) => {
        if (params.message.startsWith('Step 2')) {
            return { action: 'accept', content: { color: 'green' } };
        }
        if (params.message.includes('name?')) return { action: 'accept', content: { name: 'Ada' } };
        return { action: 'decline' };
    });
    return heard;
}

async function comes(list) {
    while (list.length === 0) await sleep(5);
    return list.shift();
}

async function notifications(client, heard, modern) {
    const call = (name, params = {}) => client.callTool({ name, arguments: {}, ...params });
    await check('gets log messages while a call runs', async () => {
        if (!modern) await client.setLoggingLevel('info');
        await call('test_tool_with_logging',
            modern ? { _meta: { 'io.modelcontextprotocol/logLevel': 'info' } } : {});
        for (const text of
            ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
            const { level, data } = await comes(heard.message);
            assert.deepEqual({ level, data }, { level: 'info', data: text });
        }
    });
    const uri = 'test://watched-resource';
    const filter = {
        toolsListChanged: true, promptsListChanged: true, resourceSubscriptions: [uri],
    };
    let subscription;
    if (modern) {
        await check('opens a subscription', async () => {
            subscription = await client.listen(filter);
            assert.deepEqual(subscription.honoredFilter, filter);
        });
    } else {
        await check('subscribes to a resource', () => client.subscribeResource({ uri }));
    }
    for (const kind of ['tool', 'prompt']) {
        await check(`hears that the list of ${kind}s changed`, async () => {
            await call(`test_trigger_${kind}_change`);
            await comes(heard[`${kind}s`]);
        });
    }
    await check('hears that a resource it watches changed', async () => {
        await call('touch_watched');
        assert.equal((await comes(heard.resource)).uri, uri);
    });
    if (modern) {
        await check('ends its subscription', async () => {
            await subscription?.close();
            assert.equal(await subscription?.closed, 'local');
        });
        return;
    }
    await check('hears no more of it once it has unsubscribed', async () => {
        await client.unsubscribeResource({ uri });
        heard.tools.length = 0;
        await call('touch_watched');
        await call('test_trigger_tool_change');
        // Later notifications come later in the same stream.
        await comes(heard.tools);
        assert.deepEqual(heard.resource, []);
    });
}

// Input requests of a call: requests in a session, otherwise results.
async function questions(client) {
    const says = async (expected, name, args = {}) => {
        const { content } = await client.callTool({ name, arguments: args });
        assert.deepEqual(content, [{ type: 'text', text: expected }]);
    };
    await check("answers a call's question to its model", () =>
        says('LLM response: Hello?, in 100 tokens', 'test_sampling', { prompt: 'Hello?' }));
    await check("answers a call's question for its roots", () =>
        says('file:///work\n', 'test_input_required_result_list_roots'));
    await check("answers a call's two forms", () =>
        says('Ada likes green', 'test_input_required_result_multi_round'));
    await check('declines a form', () =>
        says('User response: action=decline, content={}', 'test_elicitation', { message: 'Who?' }));
    await check('answers three questions of a call at once', () =>
        says('Generate a greeting, in 50 tokens Ada of 1 roots',
            'test_input_required_result_multiple_inputs'));
}

// The client compares each entry, and the file that it reads, with the entry's members.
async function skills(client) {
    const mine = new SkillsClient(client);
    let listed = [];
    await check('lists the skills', async () => {
        ({ skills: listed } = await mine.list());
        assert.deepEqual(listed.map(({ frontmatter }) => frontmatter.name).sort(),
            ['pdf-processing', 'try-everything']);
    });
    await check('gets a skill', async () => {
        for (const entry of listed) {
            assert.deepEqual((await mine.get(entry.uri)).skill, entry);
        }
    });
    await check('reads and verifies every file of the skills', async () => {
        const files = listed.flatMap((entry) => entry.resources.map(({ uri }) => [entry, uri]));
        assert.ok(files.length > listed.length, `${files.length} files`);
        for (const [entry, uri] of files) {
            assert.equal((await mine.read(entry, uri)).verified, true, uri);
        }
    });
    await check('reads the folder of a skill', async () => {
        const { uri } = listed.find(({ frontmatter }) => frontmatter.name === 'pdf-processing');
        const folder = uri.replace('/SKILL.md', '');
        const { resources: children } = await mine.readDirectory(folder);
        assert.deepEqual(children.map((child) => child.uri.replace(folder, '')),
            ['/SKILL.md', '/references', '/scripts', '/templates']);
    });
    await check('is refused an unknown skill with -32602', () =>
        refused(-32602, () => mine.get('skill://no-such-skill/SKILL.md')));
}

async function apps(client) {
    await check('gets the view of a tool', async () => {
        const { tools: listed } = await client.listTools();
        const { _meta: meta } = listed.find(({ name }) => name === 'clock');
        const { contents: [page] } = await client.readResource({ uri: meta.ui.resourceUri });
        assert.equal(page.mimeType, VIEW_TYPE);
        const { structuredContent } = await client.callTool({ name: 'clock', arguments: {} });
        assert.equal(structuredContent.shown, true);
    });
}

async function visit(target, mode) {
    const http = /^https?:/.test(target);
    const kind = http ? 'http' : target.startsWith('sse+') ? 'http+sse' : 'stdio';
    const { options, version } = MODES[mode];
    const modern = version >= '2026-07-28';
    label = `typescript ${mode} ${kind}`;
    const client = new Client({ name: 'erlmcp-interop', version: '1.0.0' }, {
        ...options,
        capabilities: {
            sampling: {},
            elicitation: {},
            roots: { listChanged: true },
            extensions: { 'io.modelcontextprotocol/ui': { mimeTypes: [VIEW_TYPE] } },
        },
    });
    const heard = attend(client);
    const transport = transportTo(target);
    if (!(await check('connects', () => client.connect(transport)))) {
        await client.close().catch(() => {});
        return;
    }
    await check(`negotiates ${version}`, async () =>
        assert.equal(client.getNegotiatedProtocolVersion(), version));
    await check('learns who the server is', async () => {
        const { name, version: released } = client.getServerVersion() ?? {};
        assert.ok(name && released, `name ${name}, version ${released}`);
    });
    await check('learns what the server offers', async () => {
        const offered = Object.keys(client.getServerCapabilities() ?? {});
        const wanted = ['tools', 'resources', 'prompts'];
        assert.deepEqual(wanted.filter((kind) => !offered.includes(kind)), []);
    });
    await tools(client);
    await resources(client);
    await prompts(client);
    await notifications(client, heard, modern);
    await questions(client);
    await skills(client);
    await apps(client);
    // Other transports never close the connection from the server's side.
    if (!modern && http) {
        await check('comes back for the answer of a call', async () => {
            const tokens = [];
            const { content } = await client.callTool({ name: 'test_reconnection' },
                { onresumptiontoken: (token) => tokens.push(token) });
            assert.equal(content[0].text, 'The client came back for this.');
            assert.ok(tokens.length > 0, 'the stream had no event ids');
        });
    }
    // 2026-07-28 has no ping and no session to end.
    if (!modern) await check('pings', () => client.ping());
    if (!modern && http) {
        await check('ends its session, which is then unknown', async () => {
            const gone = transport.sessionId;
            assert.ok(gone, 'the server gave no session');
            await transport.terminateSession();
            const answer = await fetch(target, {
                method: 'POST',
                headers: {
                    'content-type': 'application/json',
                    accept: 'application/json, text/event-stream',
                    'mcp-protocol-version': version,
                    'mcp-session-id': gone,
                },
                body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
            });
            assert.equal(answer.status, 404);
        });
    }
    await check('closes', async () => {
        const start = Date.now();
        await client.close();
        // The client closes stdin, waits 2 s, asks the program to end, and kills it 2 s later. How
        // soon it ends by itself is a suite's; here the machine may be busy with the other peers.
        assert.ok(Date.now() - start < 3900, `after ${Date.now() - start} ms`);
    });
}

const args = process.argv.slice(2);
const only = args[0] === '--mode' ? args.splice(0, 2)[1] : undefined;
if (args.length !== 1 || (only !== undefined && !(only in MODES))) {
    console.error(`client.mjs [--mode ${Object.keys(MODES).join('|')}] URL | sse+URL | COMMAND`);
    process.exit(2);
}
for (const mode of only ? [only] : Object.keys(MODES)) await visit(args[0], mode);
console.log(`${passed} passed, ${failed} failed`);
// Resources that a failed check left open must not keep the process alive.
process.exit(failed === 0 ? 0 : 1);
