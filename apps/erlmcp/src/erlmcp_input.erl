-module(erlmcp_input).
-moduledoc """
Makes the requests with which a handler asks its client, in the middle of a call. The client's user
fills in a form or visits a URL (elicitation), its model completes a text (sampling), or the client
lists its roots. Pure.

A handler returns `{input_required, Requests}` or `{input_required, Requests, State}`. `Requests` is
a map of requests made here, by names of the handler's own. The handler is called again, with the
answers as `input` and its state as `state` of the context. With
`{input_required, Requests, State, #{once => true}}` a stateless client can bring that state once.

```erlang
handler(_, #{input := #{~"who" := #{~"action" := ~"accept", ~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary>>;
handler(_, _) ->
    {input_required, #{~"who" => erlmcp_input:elicit(~"What is your name?", #{name => string})}}.
```

The content of an accepted form fits its schema; content that does not is refused before the handler
is called. A missing, declined or cancelled answer is for the handler to deal with.

Source: specification 2026-07-28, "Multi Round-Trip Requests", and the client features' pages.
""".

-export([elicit/2, elicit_url/3, sample/1, roots/0]).

-export_type([request/0, requests/0]).

-doc "A request, as the client gets it.".
-type request() :: #{method := binary(), params := map()}.
-doc "Requests by names of the handler's own, under which the answers come.".
-type requests() :: #{binary() => request()}.

-doc """
Returns a request for a form that the user fills in, since 2025-06-18. `Schema` is an object of
strings, numbers, booleans and enumerations, which may have `default`, `minimum`, `format` and other
keywords. The answer has `action` (`accept`, `decline`, `cancel`) and, with `accept`, `content`.

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

%% A form has the members that it shows; the protocol's subset of JSON Schema has no word for that,
%% and wants them named even if there are none.
requested(Schema, Json) ->
    Form = maps:merge(#{~"type" => ~"object", ~"properties" => #{}}, Json),
    case is_map(Schema) andalso erlmcp_schema_shorthand:is_json_schema(Schema) of
        true -> Form;
        false -> maps:remove(~"additionalProperties", Form)
    end.

-doc """
Returns a request that the user visits a URL, since 2025-11-25. The answer only has `action`: the
user agreed to go, which does not mean that they went. `Id` is an id of the handler's own for
`erlmcp:elicitation_complete/2`. Only clients of 2025-11-25 are sent it.

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
Returns a request for the folders that the client works on. The answer has `roots`, a list of maps
with `uri` and, perhaps, `name`.

## Examples

```erlang
1> erlmcp_input:roots().
#{method => ~"roots/list", params => #{}}
```
""".
-spec roots() -> request().
roots() ->
    #{method => ~"roots/list", params => #{}}.
