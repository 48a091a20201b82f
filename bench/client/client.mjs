// The official TypeScript client for bench/client.sh.
//
//   node client.mjs TARGET ERA CALLERS SECONDS
//
// client.sh explains the arguments and the output.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const [target, era, callers, seconds] = process.argv.slice(2);
const versions = { stateless: '2026-07-28', session: '2025-11-25' };

// Microseconds of CPU time of this process, user and system.
function cpu() {
    const fields = readFileSync('/proc/self/stat', 'utf8').split(') ').pop().split(' ');
    return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

async function caller(client, end, took) {
    for (let start = performance.now(); start < end;) {
        const result = await client.callTool({ name: 'echo', arguments: { text: 'hello' } });
        assert.equal(result.content[0].text, 'hello');
        const now = performance.now();
        took.push((now - start) * 1000);
        start = now;
    }
}

async function run(client, length) {
    const took = [];
    const end = performance.now() + length * 1000;
    await Promise.all(Array.from({ length: Number(callers) }, () => caller(client, end, took)));
    return took.sort((a, b) => a - b);
}

const client = new Client({ name: 'bench', version: '1.0.0' }, era === 'stateless'
    ? { versionNegotiation: { mode: { pin: versions[era] } } } : {});
await client.connect(target.startsWith('http')
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target }));
assert.equal(client.getNegotiatedProtocolVersion(), versions[era]);
await run(client, 1.5);
const start = performance.now();
const before = cpu();
const took = await run(client, Number(seconds));
const spent = cpu() - before;
const wall = (performance.now() - start) / 1000;
const [p50, p99] = [0.5, 0.99].map((part) => Math.round(took[Math.floor(took.length * part)]));
console.log(`${took.length} ${wall.toFixed(3)} ${spent} ${p50} ${p99}`);
await client.close();
process.exit(0);
