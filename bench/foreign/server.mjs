// A tool `echo` like the one of erlmcp_bench_fixture, served by the official TypeScript SDK as its
// documentation has it: 2026-07-28 over Streamable HTTP, on node:http, answers in JSON.
//
//   node server.mjs      on a free port of 127.0.0.1; its URL is the first line of stdout

import { createServer } from 'node:http';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { z } from 'zod';

const inputSchema = z.object({ text: z.string() });

// Called for every request, as the SDK wants it.
function serve() {
    const server = new McpServer({ name: 'foreign', version: '1.0.0' });
    server.registerTool('echo', { description: 'Says it again', inputSchema },
        async ({ text }) => ({ content: [{ type: 'text', text }] }));
    return server;
}

const server = createServer(toNodeHandler(createMcpHandler(serve, { legacy: 'reject' })));
server.listen(0, '127.0.0.1', () => {
    console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
