-module(erlmcp_server_options).
-moduledoc """
Checks the options of a server when the server starts, and lists of definitions also when they are
replaced or reloaded. Not pure: it loads and calls modules that the options name, and reads the
folders of skills and the facts of the machine. The limits are data (`limits/0`).

Internal.
""".

-export([check/1, definitions/1, limits/0, gate_limits/0]).

-export_type([limits/0, settings/0, handler/0]).

-type limits() :: erlmcp:limits().
-doc """
The handler module of a server, the definitions of the options, and the local funs in other options
(`m:erlmcp_reload`). The definitions of the options are those that the server has in addition to
those of the module.
""".
-type handler() :: {
    module(), Besides :: #{erlmcp_definition:kind() => [erlmcp_definition:source()]},
    Funs :: [fun()]
}.
-type settings() :: #{
    id := term(),
    handler := handler() | none,
    key := reference(),
    meter := erlmcp_meter:meter(),
    identity := erlmcp_greeting:identity(),
    sources := [{erlmcp_definition:kind(), erlmcp_definition:source() | erlmcp:skill()}],
    lists := erlmcp_catalog:settings(),
    mounts := [{erlmcp_mount:prefix(), erlmcp_mounts:server()}] | [erlmcp_mounts:mount()],
    %% `default`: that of the cluster or, without one, the memory of this node
    task_store := {module(), map()} | default,
    cluster := module() | none,
    %% whether the cluster has the keys of cursors and states
    shares_keys := boolean(),
    workers := #{atom() => erlmcp:workers()},
    on_event := erlmcp_event_handler:handler() | none,
    trace := erlmcp_tracer:options() | none,
    access_log := erlmcp:access_log() | none,
    listen := [erlmcp_listen:listener()],
    limits := limits()
}.

-doc """
Returns every limit, with its default and a description. An envelope may replace the default
(`m:erlmcp_envelope`).
""".
-spec limits() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
limits() ->
    [{message_bytes, 4_194_304, ~"bytes of one message from a client"},
     {depth, 64, ~"nesting of the JSON of a message"},
     {members, 10_000, ~"object members in the JSON of a message"},
     {calls_per_connection, 100, ~"requests of one connection that run at once"},
     {queue_per_connection, 10_000,
      ~"waiting requests of one connection of TCP or stdio; 0 for none"},
     {queue_bytes_per_connection, 16_777_216, ~"bytes of the waiting requests of one connection"},
     {sessions, 10_000, ~"open HTTP sessions"},
     {sessions_per_principal, 1_000,
      ~"open HTTP sessions of one principal, or of one anonymous address"},
     {subscriptions, 1_000, ~"subscriptions to resources of one session, or of one connection"},
     {subscriptions_per_principal, 10_000,
      ~"subscriptions to resources and tasks of one principal, or of one anonymous address"},
     {session_idle_ms, 1_800_000, ~"milliseconds until an unused session ends"},
     {unused_session_ms, 60_000,
      ~"milliseconds until a session ends that was never used after `initialize`"},
     {stored_events, 1_000,
      ~"events that a session keeps for a client that has lost its connection"},
     {stored_bytes, 1_048_576,
      ~"bytes of the events that a session keeps, in addition to the newest one"},
     {stored_ms, 300_000, ~"milliseconds that a session keeps an event"},
     {retry_ms, 1_000, ~"milliseconds, and up to half as many more, until a client reconnects"},
     {rate_retry_ms, 1, ~"minimum `Retry-After` of a rate-limit refusal, in milliseconds"},
     {queue_retry_ms, 1, ~"minimum `Retry-After` of a refusal for load, in milliseconds"},
     {reconnect_ms, 60_000,
      ~"milliseconds until a call ends that waits for input of a disconnected client"},
     {call_timeout_ms, 60_000,
      ~"milliseconds that a call may run, unless its tool sets `timeout_ms`"},
     {input_timeout_ms, 600_000,
      ~"milliseconds that a client may take to answer a request for input"},
     {used_states, 100_000,
      ~"remembered states that can be used once; each is remembered until it expires"},
     {used_states_per_principal, 10_000,
      ~"remembered states of one principal, or of one anonymous address"},
     {call_heap_bytes, 134_217_728, ~"bytes of heap that a call may use"},
     {reply_bytes, 67_108_864, ~"bytes of the answer to a request"},
     {unread_bytes, 16_777_216,
      ~"bytes that a client of HTTP has not read, before its stream or connection is closed"},
     {unread_messages, 1_000, ~"unwritten messages of a call, before some are left out"},
     {cache_entries, 10_000, ~"cached results"},
     {cache_bytes, 67_108_864, ~"bytes of the cached results"},
     {skills_bytes, 67_108_864, ~"bytes of the files of all skills, which are kept in memory"},
     {tasks, 20_000, ~"tasks, including those that have ended and not expired"},
     {tasks_per_principal, 2_000, ~"tasks of one principal, or of one anonymous address"},
     {task_bytes, 268_435_456, ~"bytes of the results of all tasks"},
     {task_bytes_per_principal, 67_108_864,
      ~"bytes of the results of tasks of one principal, or of one anonymous address"},
     {task_ttl_ms, 3_600_000,
      ~"milliseconds from the creation of a task until it is deleted, at most"},
     {task_timeout_ms, 1_800_000,
      ~"milliseconds that a task may run, unless its tool sets `task_timeout_ms`"},
     {authenticate_timeout_ms, 10_000, ~"milliseconds that an `authenticate` process may take"},
     {receive_timeout_ms, 30_000, ~"milliseconds from the first byte of a message to its last"},
     {send_timeout_ms, 30_000, ~"milliseconds that a client may take to read a response"},
     {keep_alive_ms, 15_000, ~"milliseconds until a comment is sent on a quiet stream"},
     {error_budget_requests, 200,
      ~"answers in a window of the error budget before its zone changes"}]
    ++ gate_limits().

-doc "Returns the limits of `limits/0` that the server's gate enforces (`m:erlmcp_gate`).".
-spec gate_limits() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
gate_limits() ->
    [{connections, 10_000, ~"open connections of a server's listeners"},
     {connections_per_address, infinity,
      ~"open connections from one IPv4 address, or from one /64 network of IPv6"},
     {connections_per_principal, infinity,
      ~"open connections of one principal that is not `anonymous`"},
     {in_flight, 10_000, ~"requests that run at once"},
     {in_flight_per_principal, infinity,
      ~"requests that run or wait, of one principal or of one anonymous address"},
     {queue, 2_000, ~"requests that wait until they may run; 0 for none"},
     {queue_bytes, 67_108_864, ~"bytes of the waiting requests"},
     {queue_per_principal, 1_000,
      ~"waiting requests of one principal, or of one anonymous address"},
     {queue_ms, 1_000, ~"milliseconds that a request may wait"},
     {messages_per_second, infinity, ~"messages to a server in a second"},
     {messages_per_minute, infinity, ~"messages to a server in a minute"},
     {messages_per_day, infinity, ~"messages to a server in a day"},
     {principal_messages_per_second, infinity,
      ~"messages of one principal, or of one anonymous address, in a second"},
     {principal_messages_per_minute, infinity,
      ~"messages of one principal, or of one anonymous address, in a minute"},
     {principal_messages_per_day, infinity,
      ~"messages of one principal, or of one anonymous address, in a day"},
     {principals, 10_000,
      ~"counts of principals and addresses that are kept at once; a principal may have three"}].

-doc """
Returns the settings of `Given`, the options of a server, or an error for one that is wrong.
`{duplicate, mount, Prefix}` means that two mounts have the same prefix. `bad_skill` names a skill,
the wrong place in it, and what was expected there (`m:erlmcp_skill`). If a callback of the handler
module, the fun of `keys`, or that of a secret for JWTs raises an error, so does this function.

## Examples

```erlang
1> erlmcp_server_options:check(#{version => ~"1.0.0"}).
{error, {bad_option, name, ~"a binary; it is required"}}
2> erlmcp_server_options:check(#{name => ~"greeter", version => ~"1.0.0", limits => #{depth => 0}}).
{error, {bad_option, {limits, depth}, ~"a positive integer"}}
```
""".
-spec check(erlmcp:options()) ->
    {ok, settings()}
    | {error, {bad_option, Key :: term(), Expected :: binary()} | {duplicate, mount, binary()}
              | erlmcp_skill:error()}.
check(Given) when is_map(Given) ->
    maybe
        {ok, Defined} ?= handler(Given),
        %% These lists stay if `Given` has others.
        Lists = maps:with([skills | [Key || {_, Key} <- definition_keys()]], Defined),
        ok ?= each(Lists, maps:keys(Lists)),
        Options = with_keys(maps:merge(Defined, Given)),
        ok ?= check_names(Options),
        ok ?= each(Options, maps:keys(Options)),
        ok ?= present([name, version], Options),
        ok ?= has_id(Options),
        Key = make_ref(),
        Meter = erlmcp_meter:new(),
        Workers = maps:get(workers, Options, #{}),
        Guards = #{breakers => erlmcp_definition_guard:breakers(maps:get(breakers, Options, #{})),
                   workers => maps:keys(Workers)},
        Limits = maps:merge(default_limits(Options), maps:get(limits, Options, #{})),
        {ok, Skills} ?= erlmcp_skill_folder:load(skills(Defined) ++ skills(Given),
                                                 maps:get(skills_bytes, Limits)),
        {ok, #{id => maps:get(id, Options, make_ref()),
               handler => reloadable(Given, Options),
               key => Key,
               meter => Meter,
               identity => maps:with(identity_keys(), Options),
               sources => sources(Defined, Key) ++ sources(Given, Key)
                   ++ [{skill, Skill} || Skill <- Skills],
               lists => #{page_size => maps:get(page_size, Options, 100),
                          list_ttl_ms => maps:get(list_ttl_ms, Options, 60_000),
                          reply_bytes => maps:get(reply_bytes, Limits),
                          keys => maps:get(keys, Options, [crypto:strong_rand_bytes(32)]),
                          numbering => crypto:strong_rand_bytes(8),
                          middleware => maps:get(middleware, Options, []),
                          cached => erlmcp_result_cache:around(Key),
                          guarded => erlmcp_definition_guard:around(Key, Guards),
                          quick => fun erlmcp_inline_call_watchdog:mark/0,
                          row => fun(Kind, Name) ->
                              erlmcp_meter:definition_row(Kind, Name, Meter)
                          end},
               mounts => maps:get(mounts, Options, []),
               task_store => maps:get(task_store, Options, default),
               cluster => maps:get(cluster, Options, none),
               shares_keys => is_map_key(cluster, Options) andalso not is_map_key(keys, Options),
               workers => Workers,
               on_event => maps:get(on_event, Options, none),
               trace => maps:get(trace, Options, none),
               access_log => maps:get(access_log, Options, none),
               listen => maps:get(listen, Options, []),
               limits => Limits}}
    end;
check(_) ->
    {error, {bad_option, options, ~"a map"}}.

reloadable(#{handler := Module} = Given, Options) ->
    Keys = [Key || {_, Key} <- definition_keys()],
    {ok, Besides} = definitions(maps:with(Keys, Given)),
    {Module, Besides, local_funs(maps:without(Keys, Options))};
reloadable(_, _) ->
    none.

local_funs(Fun) when is_function(Fun) ->
    case erlang:fun_info(Fun, type) of
        {type, local} -> [Fun];
        {type, external} -> []
    end;
local_funs([Head | Tail]) -> local_funs(Head) ++ local_funs(Tail);
local_funs(Tuple) when is_tuple(Tuple) -> local_funs(tuple_to_list(Tuple));
local_funs(Map) when is_map(Map) -> local_funs(maps:values(Map));
local_funs(_) -> [].

-doc """
Returns the lists of definitions in `Given`, by their kind. `Given` is a map with some of the keys
`tools`, `resources`, `resource_templates` and `prompts`. The error has a key that is unknown or
whose value is not a list, or `definitions` if `Given` is not a map. The definitions themselves are
checked later, when they are compiled.
""".
-spec definitions(Given :: erlmcp:definitions()) ->
    {ok, #{erlmcp_definition:kind() => [erlmcp_definition:source()]}}
    | {error, {bad_option, Key :: term(), Expected :: binary()}}.
definitions(Given) when is_map(Given) ->
    Known = definition_keys(),
    maybe
        [] ?= [Key || Key := _ <- Given, not lists:keymember(Key, 2, Known)],
        ok ?= each(Given, maps:keys(Given)),
        {ok, #{Kind => maps:get(Key, Given) || {Kind, Key} <- Known, is_map_key(Key, Given)}}
    else
        [Key | _] ->
            {error, {bad_option, Key, ~"tools, resources, resource_templates or prompts"}};
        {error, _} = Error ->
            Error
    end;
definitions(_) ->
    {error, {bad_option, definitions, ~"a map"}}.

with_keys(#{keys := Keys} = Options) when is_function(Keys, 0) -> Options#{keys := Keys()};
with_keys(Options) -> Options.

identity_keys() ->
    [name, version, title, description, website_url, icons, instructions].

definition_keys() ->
    [{tool, tools}, {resource, resources}, {resource_template, resource_templates},
     {prompt, prompts}].

sources(Options, Server) ->
    [{Kind, erlmcp_visibility:guarded(Kind, Source, Server)}
     || {Kind, Key} <- definition_keys(), Source <- maps:get(Key, Options, [])].

skills(Options) ->
    maps:get(skills, Options, []).

default_limits(Options) ->
    Envelope = erlmcp_envelope:limits(maps:get(envelope, Options, measured),
                                      erlmcp_machine:facts("/")),
    maps:merge(#{Name => Default || {Name, Default, _} <- limits()}, Envelope).

check_names(Options) ->
    Known = identity_keys() ++ [Key || {_, Key} <- definition_keys()]
        ++ [id, handler, skills, listen, limits, page_size, list_ttl_ms, keys, middleware, mounts,
            task_store, cluster, breakers, workers, on_event, trace, access_log, envelope],
    case maps:keys(Options) -- Known of
        [] -> ok;
        [Key | _] -> {error, {bad_option, Key, ~"no such option"}}
    end.

present(Keys, Options) ->
    case [Key || Key <- Keys, not is_map_key(Key, Options)] of
        [] -> ok;
        [Key | _] -> {error, {bad_option, Key, ~"a binary; it is required"}}
    end.

%% Each node finds the server by its id.
has_id(#{cluster := _} = Options) when not is_map_key(id, Options) ->
    {error, {bad_option, id, ~"a term that is the same on each node; `cluster` needs it"}};
has_id(_) ->
    ok.

each(_, []) ->
    ok;
each(Options, [Key | Keys]) ->
    case option(Key, maps:get(Key, Options)) of
        ok -> each(Options, Keys);
        {expected, Expected} -> {error, {bad_option, Key, Expected}};
        {error, _} = Error -> Error
    end.

option(id, _) -> ok;
option(handler, Module) when is_atom(Module) -> ok;
option(handler, _) -> {expected, ~"a module"};
option(listen, Listeners) -> erlmcp_listen_options:check(Listeners);
option(limits, Limits) when is_map(Limits) -> first_error(fun limit/1, maps:to_list(Limits));
option(limits, _) -> {expected, ~"a map of limits"};
option(middleware, Value) ->
    case erlmcp_middleware:is_list_of(Value) of
        true -> ok;
        false -> {expected, ~"a list of funs of three arguments"}
    end;
option(breakers, Value) ->
    named(fun erlmcp_breaker:is_options/1, Value,
          ~"a map of names, atoms, to maps with failures, open_ms and longest_open_ms");
option(workers, Value) ->
    named(fun erlmcp_workers:is_options/1, Value,
          ~"a map of names, atoms, to maps with size, start and, perhaps, stop and queue");
option(mounts, Value) -> erlmcp_mount:check(Value);
option(skills, Skills) when length(Skills) >= 0 -> ok;
option(skills, _) -> {expected, ~"a list of skills"};
option(page_size, Size) when is_integer(Size), Size > 0 -> ok;
option(page_size, _) -> {expected, ~"a positive integer"};
option(task_store, {Module, Options}) when is_atom(Module), is_map(Options) ->
    _ = code:ensure_loaded(Module),
    case erlang:function_exported(Module, open, 2) of
        true -> ok;
        false -> {expected, ~"a module with -behaviour(erlmcp_task_store)"}
    end;
option(task_store, _) -> {expected, ~"a module and a map of its options"};
option(cluster, Module) when is_atom(Module) ->
    _ = code:ensure_loaded(Module),
    case erlang:function_exported(Module, init, 2) of
        true -> ok;
        false -> option(cluster, [Module])
    end;
option(cluster, _) -> {expected, ~"a module with -behaviour(erlmcp_server_cluster)"};
option(envelope, Name) ->
    case lists:member(Name, erlmcp_envelope:names()) of
        true -> ok;
        false -> {expected, ~"measured, team, enterprise or gov"}
    end;
option(trace, Trace) ->
    case erlmcp_trace_options:check(Trace) of
        true -> ok;
        {Member, Expected} -> {error, {bad_option, {trace, Member}, Expected}};
        Expected -> {expected, Expected}
    end;
option(access_log, Given) when Given =:= #{} -> ok;
option(access_log, #{sample := Sample} = Given) when map_size(Given) =:= 1 ->
    case is_integer(Sample) andalso Sample > 0 of
        true -> ok;
        false -> {error, {bad_option, {access_log, sample}, ~"a positive integer"}}
    end;
option(access_log, _) -> {expected, ~"a map with sample, or an empty one"};
option(on_event, Fun) when is_function(Fun, 1) -> ok;
option(on_event, _) -> {expected, ~"a fun of one argument"};
option(list_ttl_ms, Milliseconds) when is_integer(Milliseconds), Milliseconds >= 0 -> ok;
option(list_ttl_ms, _) -> {expected, ~"milliseconds, 0 or more"};
option(keys, [_ | _] = Keys) when length(Keys) > 0 ->
    case [Key || Key <- Keys, not (is_binary(Key) andalso byte_size(Key) =:= 32)] of
        [] -> ok;
        _ -> {expected, ~"a list of 32-byte binaries"}
    end;
option(keys, _) -> {expected, ~"a list of 32-byte binaries"};
option(icons, Icons) ->
    try length(Icons) >= 0 andalso lists:all(fun is_map/1, Icons)
        andalso erlmcp_json:encode(Icons)
    of
        false -> {expected, ~"a list of maps that are JSON"};
        _ -> ok
    catch
        error:_ -> {expected, ~"a list of maps that are JSON"}
    end;
option(Key, Value) ->
    case lists:keymember(Key, 2, definition_keys()) of
        true when length(Value) >= 0 -> ok;
        true -> {expected, ~"a list of definitions"};
        false ->
            case erlmcp_user_term:is_utf8(Value) of
                true -> ok;
                false -> {expected, ~"a binary in UTF-8"}
            end
    end.

named(IsOptions, Value, Expected) ->
    case is_map(Value) andalso lists:all(fun({Name, Options}) ->
        is_atom(Name) andalso IsOptions(Options)
    end, maps:to_list(Value)) of
        true -> ok;
        false -> {expected, Expected}
    end.

first_error(_, []) -> ok;
first_error(Check, [Item | Items]) ->
    case Check(Item) of
        ok -> first_error(Check, Items);
        Error -> Error
    end.

limit({Name, Value}) ->
    case lists:keyfind(Name, 1, limits()) of
        {_, infinity, _} when Value =:= infinity -> ok;
        {_, Default, _} ->
            {Least, Most} = Range = range(Name),
            %% Every integer is less than an atom.
            case is_integer(Value) andalso Value >= Least andalso Value =< Most of
                true -> ok;
                false -> {error, {bad_option, {limits, Name}, expected(Range, Default)}}
            end;
        false -> {error, {bad_option, {limits, Name}, ~"no such limit"}}
    end.

range(queue) -> {0, infinity};
range(queue_per_connection) -> {0, infinity};
range(call_heap_bytes) -> {erlmcp_heap:least_of_call(), infinity};
range(Name) ->
    case lists:suffix("_ms", atom_to_list(Name)) of
        true -> {1, erlmcp_user_term:longest_wait_ms()};
        false -> {1, infinity}
    end.

expected({1, infinity}, infinity) -> ~"a positive integer, or infinity";
expected({1, infinity}, _) -> ~"a positive integer";
expected({Least, infinity}, _) -> <<"an integer, ", (integer_to_binary(Least))/binary, " or more">>;
expected({Least, Most}, _) ->
    <<"an integer of ", (integer_to_binary(Least))/binary, " to ",
      (integer_to_binary(Most))/binary>>.

%% Returns the options of the handler module. Its callbacks handle definitions without a fun.
handler(#{handler := Module}) when is_atom(Module) ->
    maybe
        {module, Module} ?= code:ensure_loaded(Module),
        true ?= erlang:function_exported(Module, server, 0),
        {ok, Options} ?= erlmcp_handler_module:options(Module),
        {ok, maps:remove(handler, Options)}
    else
        {error, {bad_option, _, _}} = Error -> Error;
        _ -> {error, {bad_option, handler, ~"a module with -behaviour(erlmcp_server)"}}
    end;
handler(_) ->
    {ok, #{}}.
