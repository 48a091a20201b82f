// Plays the model of an agent, which would need an account. It calls the tool `echo` if it is
// offered, and then repeats the answer.
//
//   node model.mjs      prints its URL, and serves until it is killed
//
// It speaks the streams of Anthropic's, Google's and OpenAI's models as far as necessary.
import { createServer } from 'node:http';

const hello = JSON.stringify({ text: 'hello from a host' });

const anthropic = {
    tools: ({ tools = [] }) => tools,
    answers: ({ messages }) => messages.flatMap(({ content }) =>
        Array.isArray(content) ? content.filter(({ type }) => type === 'tool_result') : []),
    reply: (tool, text) => {
        const block = tool ? { type: 'tool_use', id: 'call', name: tool.name, input: {} }
            : { type: 'text', text: '' };
        const delta = tool ? { type: 'input_json_delta', partial_json: hello }
            : { type: 'text_delta', text };
        const usage = { input_tokens: 1, output_tokens: 1 };
        const stop = { stop_reason: tool ? 'tool_use' : 'end_turn', stop_sequence: null };
        return [
            { type: 'message_start', message: { id: 'message', type: 'message', role: 'assistant',
                model: 'played', content: [], stop_reason: null, stop_sequence: null, usage } },
            { type: 'content_block_start', index: 0, content_block: block },
            { type: 'content_block_delta', index: 0, delta },
            { type: 'content_block_stop', index: 0 },
            { type: 'message_delta', delta: stop, usage },
            { type: 'message_stop' },
        ];
    },
};

const google = {
    tools: ({ tools = [] }) => tools.flatMap((tool) => tool.functionDeclarations ?? []),
    answers: ({ contents }) => contents.flatMap(({ parts }) =>
        parts.filter((part) => part.functionResponse)),
    reply: (tool, text) => {
        const part = tool
            ? { functionCall: { name: tool.name, args: JSON.parse(hello) } } : { text };
        return [{ candidates: [{
            index: 0, finishReason: 'STOP', content: { role: 'model', parts: [part] } }] }];
    },
};

const openai = {
    tools: ({ tools = [] }) => tools.flatMap((tool) => tool.type === 'namespace'
        ? tool.tools.map(({ name }) => ({ name, namespace: tool.name })) : [tool]),
    answers: ({ input }) => input.filter(({ type }) => type === 'function_call_output'),
    reply: (tool, text) => {
        const item = tool
            ? { type: 'function_call', id: 'item', call_id: 'call', name: tool.name,
                namespace: tool.namespace, arguments: hello }
            : { type: 'message', id: 'item', role: 'assistant',
                content: [{ type: 'output_text', text }] };
        const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
        return [
            { type: 'response.created', response: { id: 'response' } },
            { type: 'response.output_item.done', output_index: 0, item },
            { type: 'response.completed', response: { id: 'response', usage } },
        ];
    },
};

const server = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    const { pathname } = new URL(request.url, 'http://127.0.0.1');
    const model = pathname === '/v1/messages' ? anthropic
        : pathname.endsWith(':streamGenerateContent') ? google
        : pathname === '/v1/responses' ? openai : undefined;
    if (!model) {
        response.writeHead(404).end();
        return;
    }
    const body = JSON.parse(text);
    const answers = model.answers(body);
    const echo = model.tools(body).find(({ name }) => /^(mcp.*_)?echo$/.test(name));
    const events = answers.length > 0 ? model.reply(undefined, JSON.stringify(answers))
        : echo ? model.reply(echo) : model.reply(undefined, 'There is no tool echo.');
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const event of events) {
        if (event.type) response.write(`event: ${event.type}\n`);
        response.write(`data: ${JSON.stringify(event)}\n\n`);
    }
    response.end();
});
server.listen(0, '127.0.0.1', () =>
    console.log(`http://127.0.0.1:${server.address().port}`));
