-module(erlmcp_greeting).
-moduledoc """
The answers that introduce a server and its capabilities: the result of `initialize` in revisions
with sessions, and of `server/discover`. Pure.

Internal.
""".

-export([implementation/1, encode/1]).

-export_type([identity/0, server/0]).

-doc "The identity of a server: the fields of MCP's `Implementation`, and `instructions`.".
-type identity() :: #{
    name := binary(), version := binary(), title => binary(), description => binary(),
    website_url => binary(), icons => [map()], instructions => binary()
}.
-doc """
The content of a greeting. `identity` is an `Implementation`, and `server_meta` the encoded `_meta`
of stateless results. Clients may cache the greeting for `ttl_ms` milliseconds.
""".
-type server() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    extensions := erlmcp_extension:extensions(),
    server_meta := binary(),
    ttl_ms := non_neg_integer()
}.

-doc "Returns the `Implementation` object of a server, with the fields of the newest revision.".
-spec implementation(identity()) -> #{binary() => term()}.
implementation(Identity) ->
    Names = #{name => ~"name", version => ~"version", title => ~"title",
              description => ~"description", website_url => ~"websiteUrl", icons => ~"icons"},
    #{Wire => maps:get(Name, Identity) || Name := Wire <- Names, is_map_key(Name, Identity)}.

-doc "Returns the encoded result of `initialize` or `server/discover` for each revision.".
-spec encode(server()) -> #{erlmcp_revision:revision() => binary()}.
encode(Server) ->
    #{Revision => iolist_to_binary(encode(Revision, Server)) || Revision <- erlmcp_revision:all()}.

encode(Revision, #{instructions := Instructions, server_meta := ServerMeta} = Server) ->
    Instructing = [{~"instructions", Instructions} || Instructions =/= undefined],
    Members = members(erlmcp_revision:era(Revision), Revision, Server),
    erlmcp_result:object(Members ++ Instructing, Revision, ServerMeta).

members(stateless, Revision, #{extensions := Extensions, ttl_ms := Milliseconds}) ->
    [{~"supportedVersions", erlmcp_revision:supported(stateless)},
     {~"capabilities", capabilities(Revision, Extensions)}
     | erlmcp_result:caching(Milliseconds, public, Revision)];
members(session, Revision, #{extensions := Extensions, identity := Identity}) ->
    Fields = erlmcp_revision:fields(implementation, Revision),
    [{~"protocolVersion", erlmcp_revision:name(Revision)},
     {~"capabilities", capabilities(Revision, Extensions)},
     {~"serverInfo", maps:with(Fields, Identity)}].

%% Definitions can be added at any time, so the capabilities for all kinds are offered, even while a
%% list is empty.
capabilities(Revision, Extensions) ->
    List = #{~"listChanged" => true},
    Base = #{~"tools" => List, ~"resources" => List#{~"subscribe" => true}, ~"prompts" => List,
             ~"completions" => #{}, ~"logging" => #{}},
    %% The only revision with tasks in its core.
    Core = maps:merge(Base, #{~"tasks" => erlmcp_task:capability()
                              || Revision =:= '2025-11-25',
                                 is_map_key(erlmcp_extension:tasks(), Extensions)}),
    case erlmcp_extension:in_revision(Revision, Extensions) of
        Shown when map_size(Shown) =:= 0 -> Core;
        Shown -> Core#{~"extensions" => Shown}
    end.
