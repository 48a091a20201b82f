-module(erlmcp_pool).
-moduledoc """
Several clients that are used as one: clients of one server, for more connections than one client
has, or clients of several equal servers. A pool is a supervisor for your own tree, and a
`t:erlmcp_client:client/0` like any other:

```erlang
{ok, Pool} = erlmcp_pool:start_link(#{targets => [{http, ~"http://10.0.0.1:8080/mcp", #{}},
                                                  {http, ~"http://10.0.0.2:8080/mcp", #{}}]}),
{ok, _} = erlmcp_client:call_tool(Pool, ~"echo", #{text => ~"hello"}).
```

A call goes to the member with the fewest running calls. Calls with the same call option `key` go to
the same member while that member works. If a member fails, only its own keys move to other members
(rendezvous hashing).

A member whose calls fail in a row gets no calls for a while: its circuit breaker is open. Then the
breaker is half-open, until one call has tried the member again. A call counts as failed if its
server is not reached, closes the connection, does not answer in time or breaks the protocol. So
does one that is answered with a 5xx and no JSON-RPC error, or whose member ends.

A call that was not sent, or was refused with the HTTP status 429 or 503 and no JSON-RPC error, is
tried again, at other members first. After a lost connection, the end of a member or another 5xx, a
server may have run the call. The same holds if a later request of the call fails, such as a poll of
its task. Such a call is tried again only if its option `repeatable` is `true`, the default for
calls that only read. It begins anew, and what its server has asked for is asked for again. After an
answer in MCP, even an error, or a timeout, no call is tried again. All tries share the time of the
call.
""".

-export([start_link/1, start_link/2, child_spec/1, stop/1, info/1]).

-export_type([options/0]).

-doc """
The options of a pool.

- `targets`: the servers; required.
- `size`: clients of each server (1).
- `retries`: how often a failed call is tried again (2).
- `failures`: after how many failed calls in a row a member gets no calls for a while (5).
- `open_ms`: milliseconds for which a member then gets no calls (1,000). They double each time that
  the call which tries the member again fails, up to `longest_open_ms` (30,000). The time is
  lengthened at random, by at most a tenth, or a millisecond if that is more.
""".
-type options() :: #{
    targets := [erlmcp_client:target(), ...],
    size => pos_integer(), retries => non_neg_integer(), failures => pos_integer(),
    open_ms => pos_integer(), longest_open_ms => pos_integer()
}.

-define(DEFAULTS, #{size => 1, retries => 2, failures => 5, open_ms => 1_000,
                    longest_open_ms => 30_000}).

-doc """
Starts a pool, linked to the calling process.

## Errors

Those of `erlmcp_client:start_link/1`. With `{bad_option, Key, Expected}`, `Key` is an option of the
pool or of a target.
""".
-spec start_link(options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    start(none, Options).

-doc """
Starts a pool as `start_link/1` does, and registers it locally under a name. Returns `{error,
{already_started, Pid}}` if a process has that name.
""".
-spec start_link({local, atom()}, options()) -> {ok, pid()} | {error, term()}.
start_link(Name, Options) ->
    start(Name, Options).

start(Name, Given) ->
    maybe
        {ok, #{targets := Targets} = Options} ?= check(Given),
        {ok, Settings} ?= settings(Targets, []),
        {ok, Pid} ?= erlmcp_pool_sup:start_link(Name, Settings, maps:remove(targets, Options)),
        {ok, Pid}
    else
        %% A member has refused its target or an option.
        {error, {shutdown, {failed_to_start_child, _, {shutdown, Reason}}}} -> {error, Reason};
        {error, {shutdown, {failed_to_start_child, _, {not_started, _} = Reason}}} ->
            {error, Reason};
        {error, _} = Error -> Error
    end.

check(#{targets := [_ | _]} = Given) ->
    Options = maps:merge(?DEFAULTS, Given),
    Wrong = [{Key, expected(Key)} || Key := Value <- Options, not is_right(Key, Value)],
    case Wrong of
        [] -> {ok, Options};
        [{Key, Expected} | _] -> {error, {bad_option, Key, Expected}}
    end;
check(_) ->
    {error, {bad_option, targets, ~"a list of targets; it is required"}}.

is_right(targets, Targets) -> erlmcp_user_term:is_proper_list(Targets);
is_right(retries, Value) -> is_integer(Value) andalso Value >= 0;
is_right(Key, Value) -> is_map_key(Key, ?DEFAULTS) andalso is_integer(Value) andalso Value > 0.

expected(targets) -> ~"a list of targets; it is required";
expected(retries) -> ~"an integer, 0 or more";
expected(Key) when is_map_key(Key, ?DEFAULTS) -> ~"a positive integer";
expected(_) -> ~"no such option".

settings([], Settings) ->
    {ok, lists:reverse(Settings)};
settings([Target | Targets], Settings) ->
    case erlmcp_client_options:settings(Target) of
        {ok, One} -> settings(Targets, [One | Settings]);
        {error, _} = Error -> Error
    end.

-doc "Returns the child specification of a pool. Its id contains the pool's name.".
-spec child_spec({{local, atom()}, options()}) -> supervisor:child_spec().
child_spec({{local, Name}, Options}) ->
    #{id => {?MODULE, Name}, type => supervisor,
      start => {?MODULE, start_link, [{local, Name}, Options]}}.

-doc """
Stops a pool that was started outside a supervisor, with its clients, and waits for its end. Their
calls and subscriptions end with `stopped`. Does nothing if the pool has ended already.
""".
-spec stop(erlmcp_client:client()) -> ok.
stop(Pool) ->
    erlmcp_pool_sup:stop(Pool).

-doc """
Returns the state of each member, or `{error, stopped}` if the pool does not run.

- `target`: on HTTP the URL of the member, and on other transports its target without the options.
- `state`: the state of its breaker.
- `calls`: its running calls. `failed`: how many calls have failed in a row.
""".
-spec info(erlmcp_client:client()) ->
    [#{target := term(), state := closed | open | half_open, calls := non_neg_integer(),
       failed := non_neg_integer()}] | {error, stopped}.
info(Pool) ->
    maybe
        {ok, #{members := _} = Found} ?= erlmcp_client_table:find(Pool),
        [_ | _] ?= erlmcp_pool_members:info(Found)
    else
        _ -> {error, stopped}
    end.
