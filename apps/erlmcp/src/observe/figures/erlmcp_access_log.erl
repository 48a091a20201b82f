-module(erlmcp_access_log).
-moduledoc """
The access log of a server: an entry of the log at the end of one in `sample` requests. The module
is an observer of `m:erlmcp_meter`. An entry has no arguments and no results.

No request waits for the log. At most 1,000 entries of a server wait. Further ones are dropped, and
the next entry has their number as `dropped`.

Internal.
""".

-export([observer/1, request_ended/2]).

%% The most bytes of a method and of a target, which are the client's.
-define(BYTES, 256).

-doc """
Returns the observer for the option `access_log` of a server, in a list that is empty for `none`.
""".
-spec observer(erlmcp:access_log() | none) -> [erlmcp_meter:observer()].
observer(none) ->
    [];
observer(Options) ->
    [{?MODULE, {maps:get(sample, Options, 1), erlmcp_drop_counter:new()}}].

-doc """
Logs the end of a request in another process. Only one request in `sample` is logged, chosen at
random. The entry is dropped if 1,000 entries wait already.
""".
-spec request_ended(erlmcp_meter:ended(), {pos_integer(), erlmcp_drop_counter:backlog()}) -> ok.
request_ended(Ended, {Sample, Backlog}) ->
    case (Sample =:= 1 orelse rand:uniform(Sample) =:= 1) andalso
             erlmcp_drop_counter:enter(Backlog) of
        true ->
            #{server := Key} = Ended,
            Report = report(Ended),
            _ = spawn(fun() -> log(Report, Key, Backlog) end),
            ok;
        false ->
            ok
    end.

log(Report, Key, Backlog) ->
    try
        ok = erlmcp_log:report(notice, erlmcp_drop_counter:with_dropped(Report, Backlog), Key)
    after
        ok = erlmcp_drop_counter:leave(Backlog)
    end.

report(#{outcome := Outcome, began := Began, ended := Ended, bytes_in := In, bytes_out := Out,
         context := Context} = Request) ->
    Known = #{Field => erlmcp_printable:part(Value, ?BYTES)
              || Field <- [method, target], #{Field := <<Value/binary>>} <- [Request]},
    %% A request without a call has no principal.
    Called = maps:merge(maps:with([principal], Request), trace(Context)),
    maps:merge(maps:merge(outcome(Outcome), Called),
               Known#{what => request_ended, duration_us => max(0, Ended - Began) div 1_000,
                      bytes_in => In, bytes_out => Out}).

outcome({refused, Refusal}) ->
    #{outcome => refused, code => erlmcp_refusal:number(Refusal),
      refusal => erlmcp_refusal:name(Refusal)};
outcome(Outcome) ->
    #{outcome => Outcome}.

%% Only the process of a call has the context of the call, which has the trace.
trace(#{trace := #{trace_id := Id}}) -> #{trace_id => Id};
trace(_) -> #{}.
