-module(erlmcp_bearer_flight).
-moduledoc """
One question to another machine, in a process of its own, linked to the one that starts it, which is
sent `{landed, Pid, Result}`.

Internal.
""".

-export([start/4]).

%% Words of memory. An answer has at most a megabyte.
-define(HEAP, 4_000_000).

-doc """
Starts it. The token is in a fun, so that nothing prints it; the deadline is in milliseconds of
monotonic time.
""".
-spec start(erlmcp_bearer_source:subject(), Token :: fun(() -> binary()), Deadline :: integer(),
            erlmcp_bearer_options:settings()) -> pid().
start(Subject, Token, Deadline, #{sources := Sources, tls := Tls}) ->
    Owner = self(),
    {_, Source} = lists:keyfind(element(2, Subject), 1, Sources),
    Fetch = #{deadline => Deadline, plain => [loopback], tls => Tls},
    spawn_link(fun() ->
        process_flag(sensitive, true),
        _ = process_flag(max_heap_size, #{size => ?HEAP, kill => true, error_logger => false}),
        Owner ! {landed, self(), answer(Subject, Token, Source, Fetch)}
    end).

answer({keys, _}, _, {jwt, #{keys := {uri, Uri}}}, Fetch) ->
    erlmcp_jwks:fetch(Uri, Fetch);
answer({token, _, _}, Token, {introspection, Source}, Fetch) ->
    erlmcp_introspection:ask(Token(), Source, Fetch).
