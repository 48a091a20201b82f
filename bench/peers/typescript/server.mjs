// The tools of tools.json, served by the official TypeScript SDK.
//
//   node server.mjs                      on stdio
//   node server.mjs --http [PROCESSES]   over HTTP on a free port, whose URL is the first line of
//                                        stdout; more than one process serves no sessions
//
// TOOLS names the file of the tools.
import cluster from 'node:cluster';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { createMcpHandler, ProtocolError, Server } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';

const tools = JSON.parse(readFileSync(process.env.TOOLS, 'utf8'));
const say = (text) => ({ content: [{ type: 'text', text }] });

// Called for every request of 2026-07-28, as the SDK wants it.
function serve() {
    const server = new Server({ name: 'typescript', version: '2.4.0' },
        { capabilities: { tools: {} } });
    server.setRequestHandler('tools/list', () => ({ tools }));
    server.setRequestHandler('tools/call', async ({ params: { name, arguments: given } }) => {
        if (name === 'echo' && typeof given?.text === 'string') return say(given.text);
        if (name === 'sleep' && Number.isInteger(given?.ms)) {
            await pause(given.ms);
            return say('done');
        }
        throw new ProtocolError(-32602, 'no such tool, or not its arguments');
    });
    return server;
}

function http() {
    const modern = toNodeHandler(
        createMcpHandler(serve, { legacy: 'reject', responseMode: 'json' }));
    const sessions = new Map();
    const older = async (req, res) => {
        const id = req.headers['mcp-session-id'];
        if (id) {
            if (sessions.has(id)) return sessions.get(id).handleRequest(req, res);
            return res.writeHead(404).end();
        }
        const transport = new NodeStreamableHTTPServerTransport({
            enableJsonResponse: true,
            sessionIdGenerator: randomUUID,
            onsessioninitialized: (id) => { sessions.set(id, transport); },
            onsessionclosed: (id) => { sessions.delete(id); }
        });
        await serve().connect(transport);
        return transport.handleRequest(req, res);
    };
    const server = createServer((req, res) =>
        req.headers['mcp-protocol-version'] >= '2026-07-28' ? modern(req, res) : older(req, res));
    server.listen(0, '127.0.0.1', () => {
        const { port } = server.address();
        if (cluster.isPrimary) console.log(`http://127.0.0.1:${port}/mcp`);
        else process.send(port);
    });
}

const at = process.argv.indexOf('--http');
const processes = Number(process.argv[at + 1] ?? 1);
if (at < 0) {
    serveStdio(serve);
} else if (processes > 1 && cluster.isPrimary) {
    // All of them get the port that the first one got.
    let ready = 0;
    cluster.on('message', (_, port) => {
        ready++;
        if (ready === processes) console.log(`http://127.0.0.1:${port}/mcp`);
    });
    for (let n = 0; n < processes; n++) cluster.fork();
} else {
    http();
}
