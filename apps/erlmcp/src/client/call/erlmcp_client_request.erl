-module(erlmcp_client_request).
-moduledoc """
Encodes the messages of a client, with the `_meta` and the HTTP headers that each era requires.
Pure.

Sources: specification 2026-07-28, "Base protocol / _meta" and "Streamable HTTP / Request Metadata";
2025-11-25, "Transports / Protocol Version Header".

Internal.
""".

-export([request/4, notification/3, response/3, initialize/2]).

-export_type([identity/0, extra/0]).

-doc "The `clientInfo` and the capabilities that a client declares to servers.".
-type identity() :: #{info := map(), capabilities := map()}.

-doc """
The parts of a request besides its parameters: the progress token, the log level, other members of
`_meta`, and the declarations of the arguments that headers mirror.
""".
-type extra() :: #{
    token => erlmcp_message:id(),
    log_level => binary(),
    meta => map(),
    declarations => [erlmcp_header:declaration()]
}.

-define(VERSION, ~"io.modelcontextprotocol/protocolVersion").
-define(INFO, ~"io.modelcontextprotocol/clientInfo").
-define(CAPABILITIES, ~"io.modelcontextprotocol/clientCapabilities").
-define(LOG_LEVEL, ~"io.modelcontextprotocol/logLevel").

-doc """
Encodes the request `Id` as the revision requires, and returns the message with its HTTP headers.
`Extra` has the other parts of the request, and the identity is that of the client.
""".
-spec request(erlmcp_message:id(), {Method :: binary(), Params :: map()}, extra(),
              {erlmcp_revision:revision(), identity()}) ->
    {iodata(), [{binary(), iodata()}]}.
request(Id, {Method, Params}, Extra, {Revision, Identity}) ->
    Own = maps:get(~"_meta", Params, #{}),
    Meta = maps:merge(maps:merge(maps:get(meta, Extra, #{}), Own),
                      meta(erlmcp_revision:era(Revision), Revision, Identity, Extra)),
    Full = case map_size(Meta) of
        0 -> Params;
        _ -> Params#{~"_meta" => Meta}
    end,
    {erlmcp_message:request(Id, Method, Full), headers(Method, Params, Revision, Extra)}.

%% No header names the revision, since it is not agreed on before the answer to `initialize`.
headers(~"initialize", _, _, _) ->
    [];
headers(Method, Params, Revision, Extra) ->
    erlmcp_request_header:version(Revision)
        ++ case erlmcp_revision:era(Revision) of
               session -> [];
               stateless ->
                   erlmcp_request_header:request(Method, Params)
                       ++ mirrored(Params, maps:get(declarations, Extra, []))
           end.

mirrored(_, []) -> [];
mirrored(#{~"arguments" := Arguments}, Declared) ->
    %% The arguments as they will be in the body, where atoms are strings.
    Sent = json:decode(iolist_to_binary(erlmcp_json:encode(Arguments))),
    erlmcp_request_header:arguments(Sent, Declared);
mirrored(_, _) -> [].

meta(session, _, _, Extra) ->
    maps:from_list([{~"progressToken", Token} || #{token := Token} <- [Extra]]);
meta(stateless, Revision, #{info := Info, capabilities := Capabilities}, Extra) ->
    maps:merge(#{?VERSION => erlmcp_revision:name(Revision),
                 ?INFO => Info,
                 ?CAPABILITIES => Capabilities},
               maps:from_list([{~"progressToken", Token} || #{token := Token} <- [Extra]]
                              ++ [{?LOG_LEVEL, Level}
                                  || #{log_level := Level} <- [Extra]])).

-doc """
Encodes a notification as the revision requires, and returns the message with its HTTP headers.
""".
-spec notification(Method :: binary(), Params :: map(), erlmcp_revision:revision()) ->
    {iodata(), [{binary(), iodata()}]}.
notification(Method, Params, Revision) ->
    {erlmcp_message:notification(Method, Params), headers(Method, Params, Revision, #{})}.

-doc """
Encodes the answer to the server's request `Id`, and returns the message with its HTTP headers.
""".
-spec response(erlmcp_message:id(), {ok, map()} | {error, Code :: integer(), Message :: binary()},
               erlmcp_revision:revision()) -> {iodata(), [{binary(), iodata()}]}.
response(Id, Answer, Revision) ->
    Body = case Answer of
        {ok, Result} -> #{jsonrpc => ~"2.0", id => Id, result => Result};
        {error, Code, Message} ->
            #{jsonrpc => ~"2.0", id => Id, error => #{code => Code, message => Message}}
    end,
    {erlmcp_json:encode(Body), erlmcp_request_header:version(Revision)}.

-doc """
Returns the parameters of `initialize`, by which a client with this identity asks for a revision.
""".
-spec initialize(erlmcp_revision:revision(), identity()) -> map().
initialize(Revision, #{info := Info, capabilities := Capabilities}) ->
    #{~"protocolVersion" => erlmcp_revision:name(Revision),
      ~"capabilities" => in_session(Capabilities),
      ~"clientInfo" => Info}.

%% Stateless servers ask for the roots whenever they need them, so changes are announced only in
%% sessions.
in_session(#{~"roots" := Roots} = Capabilities) ->
    Capabilities#{~"roots" := maps:merge(#{~"listChanged" => true}, Roots)};
in_session(Capabilities) ->
    Capabilities.
