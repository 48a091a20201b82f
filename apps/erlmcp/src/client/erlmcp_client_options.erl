-module(erlmcp_client_options).
-moduledoc """
Checks the target and the options of a client, and has the defaults of the options. A transport
checks its own options.

Internal.
""".

-export([settings/1, first_wrong/2, without_options/1, label/1, defaults/0, limits/0]).

-export_type([settings/0, rules/0, limits/0]).

-type limits() :: #{
    message_bytes := pos_integer(), depth := pos_integer(), members := pos_integer(),
    pages := pos_integer(), list_bytes := pos_integer(), call_heap_bytes := pos_integer()
}.
-doc """
The rules of MCP that depend on the kind of transport. With `http`, sessions have ids and streams,
headers mirror arguments, and a URL identifies a server. A server that does not answer the first
request has failed. With `line`, a connection is a session, and a server that does not answer the
first request may be an older one.
""".
-type rules() :: http | line.
-doc """
Checked options, with the defaults of those that were left out. `options` are those of the
transport, which checks them itself.
""".
-type settings() :: #{
    rules := rules(), transport := module(), target := term(), options := map(),
    info := map(), era := auto | erlmcp_revision:era() | erlmcp_revision:revision(),
    inputs := erlmcp_client:inputs(), capabilities := map(), tasks := boolean(),
    log_level => binary(), trace => erlmcp_tracer:options(),
    cache := erlmcp_client_cache:options() | none,
    timeout := pos_integer(), max_timeout := pos_integer(), connect_timeout := pos_integer(),
    input_timeout := pos_integer(), calls := pos_integer(), subscriptions := pos_integer(),
    limits := limits()
}.

-define(CACHE, #{entries => 1_000, bytes => 8_388_608}).

-doc """
Checks the options of a target, and returns the settings of a client of that target. The error names
a wrong option, and what was expected. The location of the server and the transport's own options
are checked when the client starts.
""".
-spec settings(erlmcp_client:target()) ->
    {ok, settings()} | {error, {bad_option, Key :: term(), Expected :: binary()}}.
settings({http, Url, Options}) ->
    check(http, erlmcp_httpc_channel, Url, Options);
settings({stdio, Command, Options}) ->
    check(line, erlmcp_line_channel, {stdio, Command}, Options);
settings({tcp, Host, Port, Options}) ->
    check(line, erlmcp_line_channel, {tcp, Host, Port}, Options);
settings({server, Server, Options}) ->
    check(line, erlmcp_line_channel, {server, Server}, Options);
settings(_) ->
    {error, {bad_option, target, ~"{http | stdio | tcp | server, ...}"}}.

check(Rules, Transport, Target, Options) when is_map(Options) ->
    Own = [name, version, title, era, inputs, capabilities, tasks, log_level, trace, cache, limits
           | [Name || {Name, _, _} <- defaults()]],
    Common = maps:with(Own, Options),
    case first_wrong(Common, fun option/2) of
        ok ->
            Settings = maps:merge(#{Name => Default || {Name, Default, _} <- defaults()},
                                  maps:without([name, version, title], Common)),
            {ok, (log_level(Settings))#{
                rules => Rules, transport => Transport, target => Target,
                options => maps:without(Own, Options),
                info => info(Common),
                era => maps:get(era, Common, auto),
                inputs => maps:get(inputs, Common, #{}),
                capabilities => maps:get(capabilities, Common, #{}),
                tasks => maps:get(tasks, Common, false),
                cache => cache(maps:get(cache, Common, #{})),
                limits => maps:merge(#{Name => Default || {Name, Default, _} <- limits()},
                                     maps:get(limits, Common, #{}))}};
        Error ->
            Error
    end;
check(_, _, _, _) ->
    {error, {bad_option, options, ~"a map"}}.

info(Options) ->
    _ = application:load(erlmcp),
    {ok, Version} = application:get_key(erlmcp, vsn),
    maps:from_list([{name, maps:get(name, Options, ~"erlmcp")},
                    {version, maps:get(version, Options, list_to_binary(Version))}
                    | [{title, Title} || #{title := Title} <- [Options]]]).

log_level(#{log_level := Level} = Settings) -> Settings#{log_level := atom_to_binary(Level)};
log_level(Settings) -> Settings.

cache(false) -> none;
cache(Given) -> maps:merge(?CACHE, Given).

-doc """
Returns the error of a wrong option, or `ok` if there is none. `Check` returns `true` for an option
that is right, or else a text that says what was expected. For a wrong member of a map, it returns
the member's name with the text. The error then has `{Key, Member}` in place of the key.
""".
-spec first_wrong(#{term() => term()},
                  fun((Key :: term(), Value :: term()) ->
                      true | Expected :: binary() | {Member :: term(), Expected :: binary()})) ->
    ok | {error, {bad_option, Key :: term(), Expected :: binary()}}.
first_wrong(Options, Check) ->
    case [{Key, Wrong} || Key := Value <- Options, Wrong <- [Check(Key, Value)], Wrong =/= true] of
        [] -> ok;
        [{Key, {Member, Expected}} | _] -> {error, {bad_option, {Key, Member}, Expected}};
        [{Key, Expected} | _] -> {error, {bad_option, Key, Expected}}
    end.

option(Key, Value) when Key =:= name; Key =:= version; Key =:= title ->
    erlmcp_user_term:is_utf8(Value) orelse ~"a binary in UTF-8";
option(era, Era) ->
    lists:member(Era, [auto, stateless, session | erlmcp_revision:all()])
        orelse ~"auto, stateless, session or a revision";
option(inputs, Inputs) when is_map(Inputs) ->
    members(fun input/2, Inputs);
option(inputs, _) ->
    ~"a map of funs";
option(capabilities, Value) ->
    case is_json_object(Value) andalso erlmcp_client_operation:members(Value) of
        false -> ~"a map that is JSON";
        #{~"extensions" := Extensions} when not is_map(Extensions) -> {extensions, ~"a map"};
        #{} -> true
    end;
option(tasks, Value) ->
    is_boolean(Value) orelse ~"a boolean";
option(log_level, Level) ->
    is_atom(Level) andalso erlmcp_meta:level(atom_to_binary(Level)) =/= error
        orelse ~"a log level";
option(trace, Trace) ->
    erlmcp_trace_options:check(Trace);
option(cache, false) -> true;
option(cache, Bounds) when is_map(Bounds) ->
    members(fun(Key, Value) when Key =:= entries; Key =:= bytes -> positive(Value);
               (_, _) -> ~"no such bound"
            end, Bounds);
option(cache, _) -> ~"false, or a map of entries and bytes";
option(limits, Limits) when is_map(Limits) ->
    members(fun(Key, Value) ->
                case lists:keymember(Key, 1, limits()) of
                    true -> positive(Value);
                    false -> ~"no such limit"
                end
            end, Limits);
option(limits, _) -> ~"a map of limits";
option(Key, Value) when Key =:= calls; Key =:= subscriptions -> positive(Value);
option(_, Value) -> erlmcp_user_term:check_wait(Value).

positive(Value) ->
    is_integer(Value) andalso Value > 0 orelse ~"a positive integer".

input(Key, Fun) when Key =:= elicit; Key =:= elicit_url; Key =:= sample ->
    is_function(Fun, 1) orelse ~"a fun of one argument";
input(roots, Roots) ->
    is_function(Roots, 0) orelse erlmcp_user_term:is_list_of(fun is_map/1, Roots)
        orelse ~"a list of maps, or a fun that gives one";
input(_, _) ->
    ~"no such input".

members(Check, Map) ->
    case first_wrong(Map, Check) of
        ok -> true;
        {error, {bad_option, Member, Expected}} -> {Member, Expected}
    end.

is_json_object(Value) ->
    try is_map(Value) andalso erlmcp_json:encode(Value) of
        false -> false;
        _ -> true
    catch
        error:_ -> false
    end.

-doc "Returns the target without its options, which may hold secrets.".
-spec without_options(erlmcp_client:target()) -> tuple().
without_options(Target) ->
    erlang:delete_element(tuple_size(Target), Target).

-doc """
Returns a list for labels: the kind of a target, and the location of its server. The location is a
host and port, the name of a program, or the `id` of a server of this node. Paths and arguments may
have secrets, and are left out. `Target` is the one in `t:settings/0`. A malformed URL gives
`[http]`.
""".
-spec label(Target :: term()) -> [term()].
label({stdio, [Program | _]}) when not is_integer(Program) ->
    [stdio, filename:basename(Program)];
label({stdio, Program}) ->
    [stdio, filename:basename(Program)];
label({tcp, Host, Port}) ->
    [tcp, {Host, Port}];
label({server, Server}) ->
    [memory, Server];
label(Url) ->
    case erlmcp_httpc_target:parse(Url) of
        {ok, Parts} ->
            {Scheme, Host, Port} = erlmcp_httpc_target:origin(Parts),
            [Scheme, {Host, Port}];
        error ->
            [http]
    end.

-doc "Returns every numeric option with its default and its meaning.".
-spec defaults() -> [{atom(), Default :: pos_integer(), What :: binary()}].
defaults() ->
    [{timeout, 60_000, ~"milliseconds until a call's answer, or its next progress"},
     {max_timeout, 600_000, ~"milliseconds of a call, however much progress it makes"},
     {connect_timeout, 10_000, ~"milliseconds to establish a connection"},
     {input_timeout, 600_000, ~"milliseconds for an answer to a question of the server"},
     {calls, 1_000, ~"calls that run at once"},
     {subscriptions, 100, ~"subscriptions at once"}].

-doc "Returns every limit on data from a server, with its default and its meaning.".
-spec limits() -> [{atom(), Default :: pos_integer(), What :: binary()}].
limits() ->
    [{message_bytes, 4_194_304, ~"bytes of one message from a server"},
     {depth, 64, ~"nesting of a message's JSON"},
     {members, 100_000, ~"object members in a message's JSON"},
     {pages, 1_000, ~"pages of one list"},
     {list_bytes, 16_777_216, ~"bytes of all pages of a list"},
     {call_heap_bytes, 50_331_648, ~"bytes of heap that a call may use"}].
