// The catalogue, served by the official TypeScript SDK.
//
//   node server.mjs           on stdio
//   node server.mjs --http    over HTTP on a free port, whose URL is the first line of stdout
//
// CATALOGUE names the file of the catalogue.
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { createMcpHandler, inputRequired, inputResponse, isLegacyRequest, ProtocolError, Server }
    from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest }
    from '@modelcontextprotocol/node';

const catalogue = JSON.parse(readFileSync(process.env.CATALOGUE, 'utf8'));
const say = (text) => ({ content: [{ type: 'text', text }] });

// The state that all connections share, and their listeners for changes.
let counter = 0;
let added = false;
const live = new Set();
let publish;

function page(name, all, params) {
    const from = Number(params?.cursor ?? 0);
    const to = from + catalogue.pageSize;
    const result = { [name]: all.slice(from, to) };
    return to < all.length ? { ...result, nextCursor: String(to) } : result;
}

// An input request is returned as a result. The SDK itself sends it to older clients, and calls
// again.
function asking(question, answer) {
    return (_, ctx) => {
        const response = inputResponse(ctx.mcpReq.inputResponses, 'it');
        return response.kind === 'missing' ?
            inputRequired({ inputRequests: { it: question() } }) : say(answer(response));
    };
}

const tools = {
    add: ({ a, b }) => ({ ...say(JSON.stringify({ sum: a + b })),
        structuredContent: { sum: a + b } }),
    added: () => say('here'),
    ask: asking(() => inputRequired.elicit({ message: 'Who is there?', requestedSchema: {
        type: 'object', properties: { name: { type: 'string' } }, required: ['name'] } }),
    (r) => r.action === 'accept' ? `Hello, ${r.content.name}` : r.action),
    ask_url: asking(() => inputRequired.elicitUrl({ message: 'Look there',
        url: 'https://example.com/page' }), (r) => r.action),
    change: async () => {
        added = !added;
        await tell('sendToolListChanged', (notify) => notify.toolsChanged());
        return say(added ? 'added' : 'removed');
    },
    echo: ({ text }) => say(text),
    fail: () => ({ ...say('It failed.'), isError: true }),
    logs: async (_, ctx) => {
        for (const level of ['debug', 'info', 'error']) {
            await ctx.mcpReq.log(level, `at ${level}`, 'catalogue');
        }
        return say('logged');
    },
    region: ({ region }) => say(region),
    roots: asking(() => inputRequired.listRoots(),
        (r) => r.roots.map((root) => root.uri).join(' ')),
    sample: asking(() => inputRequired.createMessage({ maxTokens: 100, messages: [
        { role: 'user', content: { type: 'text', text: 'Say something' } }] }),
    (r) => r.result.content.text),
    slow: async ({ steps }, ctx) => {
        const progressToken = ctx.mcpReq._meta?.progressToken;
        for (let progress = 1; progress <= steps; progress++) {
            await pause(50, undefined, { signal: ctx.mcpReq.signal });
            if (progressToken !== undefined) {
                await ctx.mcpReq.notify({ method: 'notifications/progress',
                    params: { progressToken, progress, total: steps } });
            }
        }
        return say(`${steps} steps`);
    },
    touch: async () => {
        counter++;
        const uri = 'note://counter';
        await tell('sendResourceUpdated', (notify) => notify.resourceUpdated(uri), { uri });
        return say(String(counter));
    }
};

async function tell(method, modern, params) {
    for (const server of live) {
        if (method !== 'sendResourceUpdated' || server.modern || server.watched.has(params.uri)) {
            await server[method](params);
        }
    }
    if (publish) modern(publish);
}

function read(uri) {
    const text = (text) => ({ contents: [{ uri, mimeType: 'text/plain', text }] });
    const item = /^note:\/\/item\/([^/]+)$/.exec(uri);
    if (item) return text(`item ${item[1]}`);
    switch (uri) {
        case 'note://text': return text(catalogue.text);
        case 'note://counter': return text(String(counter));
        case 'note://blob': return { contents: [{ uri, mimeType: 'application/octet-stream',
            blob: Buffer.from(Array.from({ length: 256 }, (_, i) => i)).toString('base64') }] };
    }
    throw new ProtocolError(-32602, `no resource ${uri}`, { uri });
}

function serve({ era }) {
    const server = new Server(catalogue.server, {
        instructions: catalogue.instructions,
        capabilities: { tools: { listChanged: true }, prompts: {}, completions: {}, logging: {},
            resources: { subscribe: true } }
    });
    server.modern = era === 'modern';
    server.watched = new Set();
    const on = (method, handler) =>
        server.setRequestHandler(method, ({ params }, ctx) => handler(params, ctx));
    on('tools/list', (params) =>
        page('tools', added ? [...catalogue.tools, catalogue.added] : catalogue.tools, params));
    on('tools/call', (params, ctx) => {
        const tool = Object.hasOwn(tools, params.name) && tools[params.name];
        if (!tool) throw new ProtocolError(-32602, `no tool ${params.name}`);
        return tool(params.arguments ?? {}, ctx);
    });
    on('resources/list', (params) => page('resources', catalogue.resources, params));
    on('resources/templates/list', (params) =>
        page('resourceTemplates', catalogue.resourceTemplates, params));
    on('resources/read', ({ uri }) => read(uri));
    if (!server.modern) {
        on('resources/subscribe', ({ uri }) => { server.watched.add(uri); return {}; });
        on('resources/unsubscribe', ({ uri }) => { server.watched.delete(uri); return {}; });
    }
    on('prompts/list', (params) => page('prompts', catalogue.prompts, params));
    on('prompts/get', (params) => {
        if (params.name !== 'greet') throw new ProtocolError(-32602, `no prompt ${params.name}`);
        const content = { type: 'text', text: `Greet ${params.arguments?.name}.` };
        return { messages: [{ role: 'user', content }] };
    });
    on('completion/complete', ({ argument }) => {
        const values = catalogue.names.filter((name) => name.startsWith(argument.value));
        return { completion: { values, total: values.length, hasMore: false } };
    });
    return server;
}

function connected(context) {
    const server = serve(context);
    live.add(server);
    server.onclose = () => live.delete(server);
    return server;
}

async function http() {
    const handler = createMcpHandler(serve, { legacy: 'reject' });
    publish = handler.notify;
    const modern = toNodeHandler(handler);
    const sessions = new Map();
    const legacy = async (req, res, body) => {
        const id = req.headers['mcp-session-id'];
        if (id) {
            if (sessions.has(id)) return sessions.get(id).handleRequest(req, res, body);
            return res.writeHead(404).end();
        }
        const transport = new NodeStreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            onsessioninitialized: (id) => { sessions.set(id, transport); },
            onsessionclosed: (id) => { sessions.delete(id); }
        });
        await connected({ era: 'legacy' }).connect(transport);
        return transport.handleRequest(req, res, body);
    };
    const server = createServer(async (req, res) => {
        let body;
        if (req.method === 'POST') {
            const parts = [];
            for await (const part of req) parts.push(part);
            try {
                body = JSON.parse(Buffer.concat(parts).toString('utf8'));
            } catch {
                return res.writeHead(400).end();
            }
        }
        const old = await isLegacyRequest(await toWebRequest(req, body), body);
        return old ? legacy(req, res, body) : modern(req, res, body);
    });
    server.listen(0, '127.0.0.1', () => {
        console.log(`http://127.0.0.1:${server.address().port}/mcp`);
    });
}

if (process.argv.includes('--http')) await http();
else serveStdio(connected);
