// A server with planted behaviour, for the suites of the load generator. It shares no code with
// erlmcp, and says what it did to each request.
//
//   node planted_server.mjs WIRE CONTROL PLAN
//
//   WIRE      http1 | http1_tls | http2 | http2_tls | tcp | stdio
//   CONTROL   the port of 127.0.0.1 that it connects to. It writes a line of JSON there for its
//             own port, for each request that it has handled, and for its end. It ends when that
//             connection is closed for writing.
//   PLAN      JSON: delay_ms, events (replies are streams of events, a message first), key and
//             cert (files in PEM), and rules
//
// Requests of the method tools/call are numbered from 1 on as they come. A rule holds for every
// `every`th request (1) from `first` (1) to `last`. The first rule that holds says what the server
// `does`; without one it answers. No answer is earlier than `delay_ms` (0) of the rule, or of the
// plan, after its request.
//
//   answer, content (another text), id (of another request), refuse (number 1056), tool_error,
//   status (502 without JSON), drop (no answer), late (an answer after the next one, on lines),
//   close (the connection), stall (the whole process stands still for `ms` before it answers),
//   work (the process computes for `ms` before it answers)
import { readFileSync } from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';
import https from 'node:https';
import net from 'node:net';

const [wire, controlPort, planText] = process.argv.slice(2);
const plan = JSON.parse(planText);
const control = net.connect({ port: Number(controlPort), host: '127.0.0.1',
    allowHalfOpen: true });
const sockets = new Set();
const bytes = { received: 0, sent: 0 };
let number = 0;
let busy = 0;
let most = 0;
let ending = false;

const now = () => Number(process.hrtime.bigint() / 1000n);
const cpu = () => Object.values(process.cpuUsage()).reduce((one, other) => one + other);
const say = (line) => control.write(JSON.stringify(line) + '\n');

// A timer may come a little early.
function after(since, milliseconds, then) {
    const missing = milliseconds - (now() - since) / 1000;
    if (missing <= 0) then();
    else setTimeout(after, Math.max(1, missing), since, milliseconds, then);
}

function rule(n) {
    const holds = ({ first = 1, last = Infinity, every = 1 }) =>
        n >= first && n <= last && (n - first + 1) % every === 0;
    return (plan.rules ?? []).find(holds) ?? { does: 'answer' };
}

const result = (id, value) => JSON.stringify({ jsonrpc: '2.0', id, result: value });
const error = (id, data) =>
    JSON.stringify({ jsonrpc: '2.0', id, error: { code: -32000, message: 'no', data } });
const text = (words) => ({ content: [{ type: 'text', text: words }] });

function body(does, { id, params }) {
    const words = params?.arguments?.text ?? '';
    switch (does) {
        case 'content': return result(id, text(words.slice(1)));
        case 'id': return result(id + 1000000, text(words));
        case 'refuse': return error(id, { refusal: 1056 });
        case 'tool_error': return result(id, { ...text('no'), isError: true });
        default: return result(id, text(words));
    }
}

// What opens a session or a program is answered at once, and is not counted.
function opening({ id, method }) {
    const own = { protocolVersion: '2025-11-25', capabilities: {},
        serverInfo: { name: 'planted', version: '1' }, supportedVersions: ['2026-07-28'] };
    return id === undefined ? null : result(id, own);
}

// `peer` has the functions of a wire: reply(text), status(code), close() and begin().
function call(message, peer) {
    const from = now();
    const n = ++number;
    const { does, ms = 0, delay_ms = plan.delay_ms ?? 0 } = rule(n);
    busy += 1;
    most = Math.max(most, busy);
    if (does !== 'status') peer.begin();
    if (does === 'stall') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
    if (does === 'work') while (now() - from < ms * 1000);
    const ended = () => {
        busy -= 1;
        say({ n, does, from, until: now(), cpu_us: cpu() });
    };
    if (does === 'drop') return ended();
    after(from, delay_ms, () => {
        ended();
        if (does === 'close') return peer.close();
        if (does === 'status') return peer.status(502);
        const answers = [...(peer.held ?? []), body(does, message)];
        peer.held = does === 'late' ? answers : [];
        if (does !== 'late') answers.forEach((answer) => peer.reply(answer));
    });
}

function messages(write, close) {
    let unread = '';
    const peer = { reply: (line) => write(line + '\n'), close, status: close, begin: () => {} };
    return (chunk) => {
        const lines = (unread + chunk).split('\n');
        unread = lines.pop();
        for (const line of lines) {
            const message = JSON.parse(line);
            if (message.method === 'tools/call') call(message, peer);
            else if (opening(message)) peer.reply(opening(message));
        }
    };
}

function web(request, response) {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
        if (request.method === 'DELETE') return response.end();
        const message = JSON.parse(Buffer.concat(parts));
        const json = { 'content-type': 'application/json' };
        if (message.method !== 'tools/call') {
            const answer = opening(message);
            response.writeHead(answer ? 200 : 202, { ...json, 'mcp-session-id': 'planted' });
            return response.end(answer ?? '');
        }
        const event = (data) => `event: message\ndata: ${data}\n\n`;
        const notice = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message',
            params: { level: 'info', data: 'it begins' } });
        call(message, {
            begin: () => {
                if (!plan.events) return;
                response.writeHead(200, { 'content-type': 'text/event-stream' });
                response.write(event(notice));
            },
            reply: (answer) => {
                if (plan.events) return response.end(event(answer));
                response.writeHead(200, { ...json, 'content-length': Buffer.byteLength(answer) });
                response.end(answer);
            },
            status: (code) => {
                response.writeHead(code, { 'content-type': 'text/plain', 'content-length': 0 });
                response.end();
            },
            close: () => request.stream ? request.stream.session.destroy()
                : request.socket.destroy(),
        });
    });
}

function server() {
    const tls = plan.key && { key: readFileSync(plan.key), cert: readFileSync(plan.cert) };
    switch (wire) {
        case 'http1': return http.createServer({ keepAliveTimeout: 60000 }, web);
        case 'http1_tls': return https.createServer({ ...tls, keepAliveTimeout: 60000 }, web);
        case 'http2': return http2.createServer(web);
        case 'http2_tls': return http2.createSecureServer(tls, web);
        case 'tcp': return net.createServer((socket) => {
            socket.setNoDelay(true);
            socket.on('data', messages((line) => socket.write(line), () => socket.destroy()));
            socket.on('error', () => {});
        });
    }
}

function end() {
    if (ending) return;
    ending = true;
    for (const socket of sockets) {
        bytes.received += socket.bytesRead;
        bytes.sent += socket.bytesWritten;
    }
    say({ end: true, most, ...bytes, rss: process.memoryUsage().rss });
    control.end(() => process.exit());
}

control.on('connect', () => {
    control.setNoDelay(true);
    control.on('error', () => process.exit(1));
    control.on('end', end);
    control.resume();
    if (wire === 'stdio') {
        const write = (line) => {
            bytes.sent += Buffer.byteLength(line);
            process.stdout.write(line);
        };
        const read = messages(write, end);
        process.stdin.on('data', (chunk) => {
            bytes.received += chunk.length;
            read(chunk);
        });
        process.stdin.on('end', end);
        return;
    }
    const serving = server();
    serving.on('connection', (socket) => {
        socket.on('error', () => {});
        sockets.add(socket);
    });
    serving.listen(0, '127.0.0.1', 1024, () => say({ port: serving.address().port }));
});
