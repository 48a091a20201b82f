-module(erlmcp_server).
-moduledoc """
The behaviour of a module that is a server: `server/0` says who it is, the other callbacks what it
offers. Give the module as `handler` to `erlmcp:start_server/1`.

A definition may leave `handler` out; the module's `call_tool/3`, `read_resource/3` or
`get_prompt/3` is called for it then.

```erlang
-module(calculator).
-behaviour(erlmcp_server).
-export([server/0, tools/0, call_tool/3]).

server() -> #{name => ~"calculator", version => ~"1.0.0"}.

tools() -> [#{name => ~"add", description => ~"Adds two numbers"}].

call_tool(~"add", #{~"a" := A, ~"b" := B}, _Context) -> #{sum => A + B}.
```
""".

-doc "The server's options: at least `name` and `version`. Those given beside `handler` win.".
-callback server() -> erlmcp_server_options:options().
-doc "The definitions of its tools, in the order of the list, before those given beside `handler`.".
-callback tools() -> [erlmcp_definition:source()].
-doc "The same of its resources.".
-callback resources() -> [erlmcp_definition:source()].
-doc "The same of its resource templates.".
-callback resource_templates() -> [erlmcp_definition:source()].
-doc "The same of its prompts.".
-callback prompts() -> [erlmcp_definition:source()].
-doc "Its skills.".
-callback skills() -> [erlmcp_skill:source()].
-doc """
Runs the tool of this name. It returns text, a list of contents (`m:erlmcp_content`), a map or
`{structured, Value}`, `{error, Text | Contents}`, or `{input_required, Requests, State}` and its
other forms (`m:erlmcp_input`). As of every callback that is asked for a result, `{ok, Result}` is
`Result`.
""".
-callback call_tool(Name :: binary(), Arguments :: map(), erlmcp_engine:context()) -> term().
-doc """
Reads the resource of this URI; `Variables` are its template's, empty for a plain one. It returns
text, `{blob, Bytes}`, a map as JSON, contents (`erlmcp_content:text_contents/3`) or a list of them,
`{error, not_found | Text}`, or what asks for input.
""".
-callback read_resource(Uri :: binary(), Variables :: map(), erlmcp_engine:context()) -> term().
-doc """
Gives the prompt of this name. It returns text, a list of messages `#{role => user | assistant,
content => Content}`, `#{messages => Messages, description => Text}`, `{error, Text}`, or what asks
for input.
""".
-callback get_prompt(Name :: binary(), Arguments :: map(), erlmcp_engine:context()) -> term().

-optional_callbacks([tools/0, resources/0, resource_templates/0, prompts/0, skills/0]).
-optional_callbacks([call_tool/3, read_resource/3, get_prompt/3]).
