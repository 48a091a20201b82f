-module(erlmcp_pool).
-moduledoc """
Several clients as one: of one server, for more connections than one client has, or of several
servers that do the same. A supervisor for your own tree. What it gives is a
`t:erlmcp_client:client/0` like any other:

```erlang
{ok, Pool} = erlmcp_pool:start_link(#{targets => [{http, ~"http://10.0.0.1:8080/mcp", #{}},
                                                  {http, ~"http://10.0.0.2:8080/mcp", #{}}]}),
{ok, _} = erlmcp_client:call_tool(Pool, ~"echo", #{text => ~"hello"}).
```

A call goes to the member with the fewest running calls or, with the call option `key`, to the one
that has that key, as long as that member works (rendezvous hashing: of the other keys none moves
when a member goes or comes back).

A member whose calls fail in a row is left out for a while (a circuit breaker: closed, open, and
half-open when one call may try it again). What failed without having been done is tried at another
member; what may have been done only if it reads, or the call option `repeatable` is true.
""".

-export([start_link/1, start_link/2, child_spec/1, stop/1, info/1]).

-export_type([options/0]).

-doc """
- `targets`: the servers, see `t:erlmcp_client:target/0`; required.
- `size`: clients of each, 1.
- `retries`: how often a call is tried again, 2.
- `failures`: calls that fail in a row until a member is left out, 5.
- `open_ms`: milliseconds that it is left out first, 1,000; twice as long each time that it fails
  again, up to `longest_open_ms`, 30,000.
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

`{bad_option, Key, Expected}`, also those of the targets.
""".
-spec start_link(options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    start(none, Options).

-doc "The same with a name to register it by: `{local, Name}`.".
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
        %% What a member's transport has found.
        {error, {shutdown, {failed_to_start_child, _, {shutdown, Reason}}}} -> {error, Reason};
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

is_right(targets, Targets) -> is_list(Targets);
is_right(retries, Value) -> is_integer(Value) andalso Value >= 0;
is_right(Key, Value) -> is_map_key(Key, ?DEFAULTS) andalso is_integer(Value) andalso Value > 0.

expected(targets) -> ~"a list of targets; it is required";
expected(retries) -> ~"an integer, 0 or more";
expected(Key) when is_map_key(Key, ?DEFAULTS) -> ~"a positive integer";
expected(_) -> ~"no such option".

settings([], Settings) ->
    {ok, lists:reverse(Settings)};
settings([Target | Targets], Settings) ->
    case erlmcp_client_target:settings(Target) of
        {ok, One} -> settings(Targets, [One | Settings]);
        {error, _} = Error -> Error
    end.

-doc "The child specification of a pool, with a name to tell it by.".
-spec child_spec({{local, atom()}, options()}) -> supervisor:child_spec().
child_spec({{local, Name}, Options}) ->
    #{id => {?MODULE, Name}, type => supervisor,
      start => {?MODULE, start_link, [{local, Name}, Options]}}.

-doc "Stops a pool and its clients.".
-spec stop(erlmcp_client:client()) -> ok.
stop(Pool) ->
    erlmcp_pool_sup:stop(Pool).

-doc """
How the members do: their `target` without its options, the `state` of their breaker, their running
`calls`, and how many calls have `failed` in a row.
""".
-spec info(erlmcp_client:client()) ->
    [#{target := term(), state := closed | open | half_open, calls := non_neg_integer(),
       failed := non_neg_integer()}] | {error, stopped}.
info(Pool) ->
    case erlmcp_client_table:find(Pool) of
        {ok, #{members := _} = Found} -> erlmcp_pool_members:info(Found);
        _ -> {error, stopped}
    end.
