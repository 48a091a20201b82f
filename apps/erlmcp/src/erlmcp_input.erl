-module(erlmcp_input).
-moduledoc """
Makes the requests with which a handler asks its client for input, in the middle of a call. The
client's user fills in a form or visits a URL (elicitation), its model completes a text (sampling),
or the client lists its roots. Pure.

A handler returns `{input_required, Requests}` or `{input_required, Requests, State}`. `Requests` is
a map of requests made here, under names that the handler chooses. The handler is called again, with
the answers as `input` and its state as `state` of the context. A stateless client sends the state
back with its answers. With `{input_required, Requests, State, #{once => true}}` the client can use
that state only once.

```erlang
handler(_, #{input := #{~"who" := #{~"action" := ~"accept", ~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary>>;
handler(_, _) ->
    {input_required, #{~"who" => erlmcp_input:elicit(~"What is your name?", #{name => string})}}.
```

If the client lacks a capability that a request needs, or does not answer within `input_timeout_ms`
(a limit of the server), the call ends with an error. Content that does not fit the schema of its
form is refused before the handler is called. The handler must deal with answers that are missing,
declined or cancelled.

Source: specification 2026-07-28, "Multi Round-Trip Requests", and the client features' pages.
""".

-export([elicit/2, elicit_url/3, sample/1, roots/0]).

-export_type([request/0, requests/0]).

-doc "A request, as the client gets it.".
-type request() :: #{method := binary(), params := map()}.
-doc "Requests under names that the handler chooses. Each answer has the name of its request.".
-type requests() :: #{binary() => request()}.

-doc """
Returns a request for a form that the user fills in. `Message` tells the user what the form is for.
Only clients of 2025-06-18 and later understand the request. `Schema` is an object of strings,
numbers, booleans and enumerations, which may have `default`, `minimum`, `format` and other
keywords. The answer has `action` (`accept`, `decline`, `cancel`) and, with `accept`, `content`.

## Errors

Raises `{bad_shorthand, Names, Term}` as `erlmcp_schema:expand/1` returns it.

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
-spec elicit(Message :: binary(), Schema :: erlmcp_schema:shorthand()) -> request().
elicit(Message, Schema) ->
    case erlmcp_schema_shorthand:expand(Schema) of
        {ok, Json} ->
            #{method => ~"elicitation/create",
              params => #{message => Message, requestedSchema => requested(Schema, Json)}};
        {error, Reason} ->
            error(Reason, [Message, Schema])
    end.

%% The protocol's subset of JSON Schema for forms has no `additionalProperties`, and requires
%% `properties` even if they are empty.
requested(Schema, Json) ->
    Form = maps:merge(#{~"type" => ~"object", ~"properties" => #{}}, Json),
    case is_map(Schema) andalso erlmcp_schema_shorthand:is_json_schema(Schema) of
        true -> Form;
        false -> maps:remove(~"additionalProperties", Form)
    end.

-doc """
Returns a request to the user to visit `Url`. `Message` tells the user why. Only clients of
2025-11-25 and later understand the request. The answer only has `action`: `accept` means that the
user agreed to visit the URL, not that they did. `Id` is an id that the handler chooses, for
`erlmcp:elicitation_complete/2`. Only clients of 2025-11-25, not those of later revisions, are sent
the id.

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
Returns a request for a completion by the client's model. The parameters are those of
`sampling/createMessage`, of which `messages` and `maxTokens` are required. `tools` needs a client
that offers `sampling.tools`. The answer has `role`, `content` and `model`.

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
Returns a request for the client's roots, the folders that it works on. The answer has `roots`, a
list of maps with `uri` and, perhaps, `name`.

## Examples

```erlang
1> erlmcp_input:roots().
#{method => ~"roots/list", params => #{}}
```
""".
-spec roots() -> request().
roots() ->
    #{method => ~"roots/list", params => #{}}.
