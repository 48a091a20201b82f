-module(erlmcp_input).
-moduledoc """
What a handler can ask a client for, in the middle of a call: a form filled in or a URL visited by
the user (elicitation), a completion by the client's model (sampling), the client's roots. Pure.

A handler returns `{input_required, Requests}` or `{input_required, Requests, State}`, where
`Requests` is a map of names of its own to requests made here, and is called again with the answers
in `maps:get(input, Context)` and its state in `maps:get(state, Context)`. With
`{input_required, Requests, State, #{once => true}}` a stateless client cannot bring that state a
second time (`docs/input.md`).

```erlang
handler(_, #{input := #{~"who" := #{~"action" := ~"accept", ~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary>>;
handler(_, _) ->
    {input_required, #{~"who" => erlmcp_input:elicit(~"What is your name?", #{name => string})}}.
```

The content of an accepted form fits its schema: what does not is refused before the handler sees
it. An answer that is not there, declined or cancelled is the handler's to deal with.

Source: specification 2026-07-28, "Multi Round-Trip Requests", and the client features' pages.
""".

-export([elicit/2, elicit_url/3, sample/1, roots/0]).

-export_type([request/0, requests/0]).

-type request() :: #{method := binary(), params := map()}.
-type requests() :: #{binary() => request()}.

-doc """
A form for the user, since 2025-06-18: an object schema of strings, numbers, booleans and
enumerations, with `default`, `minimum`, `format` ... where they help, as JSON Schema or as a
shorthand (`m:erlmcp_schema_shorthand`). The answer has `action` (`accept`, `decline`, `cancel`)
and, with `accept`, `content`.

## Examples

```erlang
1> erlmcp_input:elicit(~"Name?", #{name => string}).
#{method => ~"elicitation/create",
  params => #{message => ~"Name?",
              requestedSchema => #{~"type" => ~"object",
                                   ~"properties" => #{~"name" => #{~"type" => ~"string"}},
                                   ~"required" => [~"name"]}}}
```
""".
-spec elicit(Message :: binary(), Schema :: erlmcp_schema_shorthand:shorthand()) -> request().
elicit(Message, Schema) ->
    case erlmcp_schema_shorthand:expand(Schema) of
        {ok, Json} ->
            #{method => ~"elicitation/create",
              params => #{message => Message, requestedSchema => requested(Schema, Json)}};
        {error, Reason} ->
            error(Reason, [Message, Schema])
    end.

%% A form has the members that it shows; the protocol's subset of JSON Schema has no word for that,
%% and wants them named even if there are none.
requested(Schema, Json) ->
    Form = maps:merge(#{~"type" => ~"object", ~"properties" => #{}}, Json),
    case is_map(Schema) andalso erlmcp_schema_shorthand:is_json_schema(Schema) of
        true -> Form;
        false -> maps:remove(~"additionalProperties", Form)
    end.

-doc """
A URL for the user to visit, since 2025-11-25. The answer has `action` alone: that the user agreed
to go, not that he went. The id is one of your own, for clients of 2025-11-25, whose revision wants
one (`erlmcp:elicitation_complete/2`); others are not sent it.

## Examples

```erlang
1> erlmcp_input:elicit_url(~"Connect your account", ~"https://example.com/connect", ~"7").
#{method => ~"elicitation/create",
  params => #{mode => url, message => ~"Connect your account",
              url => ~"https://example.com/connect", elicitationId => ~"7"}}
```
""".
-spec elicit_url(Message :: binary(), Url :: binary(), Id :: binary()) -> request().
elicit_url(Message, Url, Id) ->
    #{method => ~"elicitation/create",
      params => #{mode => url, message => Message, url => Url, elicitationId => Id}}.

-doc """
A completion by the client's model. The parameters are those of `sampling/createMessage`; `messages`
and `maxTokens` are required, `systemPrompt`, `temperature`, `modelPreferences` and others may be
there, and `tools` for clients that offer `sampling.tools`. The answer has `role`, `content` and
`model`.

## Examples

```erlang
1> erlmcp_input:sample(#{messages => [#{role => user, content => erlmcp_content:text(~"Hi")}],
                       maxTokens => 100}).
#{method => ~"sampling/createMessage",
  params => #{messages => [#{role => user, content => #{type => ~"text", text => ~"Hi"}}],
              maxTokens => 100}}
```
""".
-spec sample(#{messages := [map()], maxTokens := pos_integer(), atom() => term()}) -> request().
sample(Params) ->
    #{method => ~"sampling/createMessage", params => Params}.

-doc """
The folders that the client works on. The answer has `roots`, a list of `uri` and, perhaps, `name`.

## Examples

```erlang
1> erlmcp_input:roots().
#{method => ~"roots/list", params => #{}}
```
""".
-spec roots() -> request().
roots() ->
    #{method => ~"roots/list", params => #{}}.
